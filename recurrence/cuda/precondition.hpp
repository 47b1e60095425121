#pragma once

// The diagonal preconditioner (recurrence.hpp) as its kernels get it.

#include "core/cuda/rows.hpp"
#include "recurrence/choices.hpp"
#include "recurrence/cuda/source.hpp"

namespace rankone::recurrence::cuda {

inline constexpr int kPreconditionChunk = 64;  // rows

// A scan in two levels: what each chunk of rows adds to the state and how far it lets an earlier
// state decay, then the states between the chunks, in their order.
struct ChunkScan {
  float* states = nullptr;  // [chunks, H, K]: the sum of a chunk, then the state before it
  float* decays = nullptr;  // [chunks, H]
};

struct PreconditionCall {
  rankone::cuda::Rows rows;  // chunks of kPreconditionChunk
  std::int64_t heads = 0;    // H
  int d_k = 0;
  PreconditionerKind kind = PreconditionerKind::atk;
  bool normalize = false;
  float log_x = 0.0F, eps = 0.0F;
  Source k, target;
  Source g, b;                     // [R, H]
  Source parameter;                // center [H] or ridge [H, K]
  const float* initial = nullptr;  // [N, H, K]
  Sink out;
  float* final = nullptr;  // may be initial
  ChunkScan scan;
};

struct PreconditionBack {
  Source d_out;
  const float* d_final = nullptr;
  Sink d_k, d_target, d_g, d_b, d_parameter;
  float* d_initial = nullptr;
  ChunkScan scan;             // of dL/dA, from the last chunk to the first
  float* partials = nullptr;  // [chunks, H, K]; null: the parameter has no gradient
};

void launch_precondition(const PreconditionCall& call, void* stream);
void launch_precondition_back(const PreconditionCall& call, const PreconditionBack& back,
                              void* stream);

}  // namespace rankone::recurrence::cuda
