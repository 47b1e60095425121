#pragma once

// Diagonal Longhorn (recurrence.hpp) as its kernels get it.

#include "core/cuda/rows.hpp"
#include "recurrence/cuda/source.hpp"

namespace rankone::recurrence::cuda {

inline constexpr int kLonghornChunk = 64;  // rows between the states that the way back starts from

inline constexpr int kLonghornSegment =
    8;  // chunks: longer sequences are walked in segments at once

// What the segments of a walk do to the state, element by element: S <- scale S + add. Where a
// sequence begins in these lists, `slots` counts: segment_slots() of all sequences before it.
struct LonghornSegments {
  int most = 1;                              // of a sequence
  float *scales = nullptr, *adds = nullptr;  // [slots, HV, K, V]; adds: then the state before each
};

struct LonghornCall {
  rankone::cuda::Rows rows;  // chunks of kLonghornChunk
  LonghornSegments segments;
  std::int64_t heads = 0, value_heads = 0;
  int d_k = 0, d_v = 0;
  Source q, k, v, beta;
  const float* initial = nullptr;  // [N, HV, K, V]
  Sink o;
  float* final = nullptr;   // may be initial
  float* states = nullptr;  // [chunks, HV, K, V]: before each chunk; null: not wanted
};

struct LonghornBack {
  Source d_o;
  const float* d_final = nullptr;
  Sink d_q, d_k, d_v, d_beta;
  float* d_initial = nullptr;
  float* cotangents = nullptr;               // scratch [chunks, HV, K, V]: dL/dS behind each chunk
  float *sum_q = nullptr, *sum_k = nullptr;  // scratch [R, H, K]
};

// Slots for the segments of any sequences with so many chunks of rows.
inline std::int64_t segment_slots(std::int64_t sequences, std::int64_t chunks) {
  return chunks / kLonghornSegment + sequences;
}

void launch_longhorn(const LonghornCall& call, void* stream);
// With call.states as scratch.
void launch_longhorn_back(const LonghornCall& call, const LonghornBack& back, void* stream);

}  // namespace rankone::recurrence::cuda
