#pragma once

// Keys and gates of a chunk, as the preparation kernels read them. Decays are base 2.

#include "recurrence/cuda/chunk.hpp"
#include "recurrence/cuda/tile.hpp"

namespace rankone::recurrence::cuda {

inline constexpr float kLog2e = 1.4426950408889634F;

// A factor above 1 (g > 0 is legal) stays finite, so that it leaves a zero state zero: at most
// about 1e37, with room for a key that multiplies it.
inline constexpr float kMostExponent = 122.9F;
// A log decay below this is one that nothing survives; sums of 64 such keep their last bits.
inline constexpr double kLeastGate = -65536.0;

// Comparisons rather than fminf: a NaN remains one.
__device__ __forceinline__ float decay_factor(float exponent) {
  return exp2_fast(exponent > kMostExponent ? kMostExponent : exponent);
}

template <class Format>
__device__ __forceinline__ float gate_value(const Gate& gate, std::int64_t index) {
  return gate.dtype == Dtype::f32 ? static_cast<const float*>(gate.data)[index]
                                  : widen(static_cast<const Format*>(gate.data)[index]);
}

template <class Format>
__device__ __forceinline__ float gain_value(const Gate& gain, std::int64_t index) {
  return gain.data == nullptr ? 1.0F : gate_value<Format>(gain, index);
}

// The sums G of a chunk's scalar log decays in base 2, each as the sum of two floats, one behind
// the other: the difference of two of them is as exact as the sum of the gates between. By one
// warp; `step` is the distance between rows.
template <class Format>
__device__ __forceinline__ void sum_gates(float* sums, const Gate& g, std::int64_t first,
                                          std::int64_t step, int count) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  double sum[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = 32 * half + lane;
    double gate = 0.0;
    if (g.data != nullptr && row < count) {
      gate = static_cast<double>(gate_value<Format>(g, first + row * step)) * 1.4426950408889634;
      gate = gate < kLeastGate ? kLeastGate : gate > -kLeastGate ? -kLeastGate : gate;
    }
    sum[half] = gate;
  }
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const double before = __shfl_up_sync(0xffffffffU, sum[half], distance);
      if (lane >= distance) sum[half] += before;
    }
  }
  sum[1] += __shfl_sync(0xffffffffU, sum[0], 31);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const auto high = static_cast<float>(sum[half]);
    float* const to = sums + 2 * (32 * half + lane);
    to[0] = high;
    to[1] = static_cast<float>(sum[half] - static_cast<double>(high));
  }
}

// G_i - G_j
__device__ __forceinline__ float between(float2 i, float2 j) { return (i.x - j.x) + (i.y - j.y); }

// ---- Keys --------------------------------------------------------------------------------------

template <int Columns>
using KeyTile = RowTile<64, Columns>;

// Tiles of Columns keys: q, w and, where it is another tensor, e. By 128 threads; asynchronous.
template <int Columns>
__device__ __forceinline__ void load_keys(const TwoKeyCall& call, std::int64_t first, int count,
                                          std::int64_t head, bool erase, unsigned char* tiles) {
  using T = KeyTile<Columns>;
  const int thread = static_cast<int>(threadIdx.x);
  const std::int64_t stride = call.heads * call.d_k * 2;
  const std::int64_t offset = first * stride + call.key_head(head) * call.d_k * 2;
  const auto load = [&](int slot, const void* from) {
    load_tile<T>(tiles + slot * T::kBytes, static_cast<const unsigned char*>(from) + offset, stride,
                 count, call.d_k, thread, 128);
  };
  load(0, call.q);
  load(1, call.w);
  if (erase) load(2, call.e);
}

}  // namespace rankone::recurrence::cuda
