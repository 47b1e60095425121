#pragma once

// A call of the two-key recurrence (recurrence.hpp) as the kernels get it: pointers and sizes, by
// value. Tensors are contiguous, rows first. `Format` of a kernel is the dtype of q, e, w, v, o and
// their gradients: float, bf16 or f16. Gates (g, b) are of that dtype or float: see Gate.

#include <limits>

#include "core/cuda/rows.hpp"

namespace rankone::recurrence::cuda {

using rankone::cuda::Rows;

enum class GateKind : std::uint8_t { none, scalar, channel };

// A tensor of gates, whose dtype is known at run time.
struct Gate {
  const void* data = nullptr;  // null: absent
  Dtype dtype = Dtype::f32;
};

struct TwoKeyCall {
  Rows rows;
  std::int64_t heads = 0, value_heads = 0;  // H, HV
  int d_k = 0, d_v = 0;
  float scale = 1.0F;
  Dtype format = Dtype::f32;
  GateKind gate = GateKind::none;
  bool delta = true;               // false: additive solve, no e
  bool same_key = false;           // w is e
  Dtype state_dtype = Dtype::f32;  // of the states, which are then bf16 behind float*: decode only

  const void *q = nullptr, *e = nullptr, *w = nullptr;  // [R, H, K]
  const void* v = nullptr;                              // [R, HV, V]
  Gate g;                                               // [R, HV] or [R, HV, K]
  Gate b;                                               // [R, HV]; absent: one
  const float* initial_state = nullptr;                 // [N, HV, K, V]; null: zero

  // Outputs; null where not wanted.
  void* o = nullptr;             // [R, HV, V]
  float* final_state = nullptr;  // may be initial_state

  // Sequences of fewer or more rows are left to another kernel: which one reads a sequence depends
  // on its length alone, so that its results do not depend on its neighbours.
  std::int64_t fewest = 0, most = std::numeric_limits<std::int64_t>::max();
  __host__ __device__ bool takes(std::int64_t length) const {
    return length >= fewest && length <= most;
  }

  __host__ __device__ std::int64_t key_head(std::int64_t value_head) const {
    return value_head / (value_heads / heads);
  }
};

// The cotangents and gradients of a call; null where absent or not wanted.
struct TwoKeyBack {
  const void* d_o = nullptr;                            // [R, HV, V], never null
  const float* d_final = nullptr;                       // [N, HV, K, V]
  void *d_q = nullptr, *d_e = nullptr, *d_w = nullptr;  // [R, H, K]
  void* d_v = nullptr;                                  // [R, HV, V]
  void* d_g = nullptr;                                  // as g, in its dtype
  void* d_b = nullptr;                                  // as b, in its dtype
  float* d_initial = nullptr;                           // [N, HV, K, V]
  // Where d_e and d_w are the same memory (tied keys) it receives the sum of both.
};

}  // namespace rankone::recurrence::cuda
