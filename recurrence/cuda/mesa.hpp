#pragma once

// MesaNet's solve (recurrence.hpp) as its kernels get it.

#include "core/cuda/rows.hpp"
#include "recurrence/cuda/source.hpp"

namespace rankone::recurrence::cuda {

inline constexpr int kMesaChunk = 64;  // rows

// (Hkk_t + diag(lambda)) x_t = right_t for every row t.
struct MesaSolve {
  rankone::cuda::Rows rows;  // chunks of kMesaChunk
  std::int64_t heads = 0;
  int d_k = 0, max_iterations = 0;
  float tolerance = 0.0F, damping = 0.0F;
  Source right, k;                 // [R, H, K]
  Source g, b;                     // [R, H]
  Source lambda;                   // [H, K]
  const float* initial = nullptr;  // [N, H, K, K]
  float* solution = nullptr;       // [R, H, K]
  float* final = nullptr;          // [N, H, K, K]; may be initial; null: not wanted
  float* states = nullptr;         // scratch [chunks, H, K, K]: Hkk before each chunk
  float* decays = nullptr;         // scratch [chunks, H]
};

// Fills states and final. They serve any number of solves with the same keys and gates.
void launch_mesa_states(const MesaSolve& solve, void* stream);
void launch_mesa_solve(const MesaSolve& solve, void* stream);

// to[i] = factor * (a[i] + b[i] + c[i]); absent tensors are zero.
void launch_combine(const Sink& to, const Source& a, const Source& b, const Source& c, float factor,
                    std::int64_t count, void* stream);

// to = -sum over all rows of x y; [H, K] from [R, H, K]. Scratch [chunks, H, K].
void launch_lambda_grad(const MesaSolve& solve, const float* x, const float* y, const Sink& to,
                        float* partials, void* stream);

}  // namespace rankone::recurrence::cuda
