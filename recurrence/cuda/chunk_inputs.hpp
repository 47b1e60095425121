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

// rows.span(chunk) without divisions of 64 bits, where there are such.
__device__ __forceinline__ Span span_of(const Rows& rows, std::uint32_t chunk) {
  if (rows.chunk_boundaries != nullptr || rows.time >> 31 != 0) return rows.span(chunk);
  const auto time = static_cast<std::uint32_t>(rows.time);
  const std::uint32_t sequence = chunk / ((time + kChunkRows - 1) / kChunkRows);
  const std::uint32_t first = chunk % ((time + kChunkRows - 1) / kChunkRows) * kChunkRows;
  const std::uint32_t left = time - first;
  return {sequence, sequence * rows.time + first,
          static_cast<int>(left < kChunkRows ? left : kChunkRows), first == 0, left <= kChunkRows};
}

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

// Scalar gates of rows lane and lane + 32 of a chunk: log decay and gain; nothing beyond `count`.
struct GatePair {
  float g[2], b[2];
};
template <class Format>
__device__ __forceinline__ GatePair load_gates(const TwoKeyCall& call, std::int64_t first,
                                               int count, std::int64_t head) {
  GatePair out;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = 32 * half + static_cast<int>(threadIdx.x % 32);
    const std::int64_t at = (first + row) * call.value_heads + head;
    const bool valid = row < count;
    out.g[half] = valid && call.g.data != nullptr ? gate_value<Format>(call.g, at) : 0.0F;
    out.b[half] = valid ? gain_value<Format>(call.b, at) : 0.0F;
  }
  return out;
}

// The sums G of those log decays in base 2, each as the sum of two floats: the difference of two of
// them is as exact as the sum of the gates between. By one warp.
__device__ __forceinline__ void sum_gates(float2 (&sums)[2], const GatePair& gates) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  double sum[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const double gate = static_cast<double>(gates.g[half]) * 1.4426950408889634;
    sum[half] = gate < kLeastGate ? kLeastGate : gate > -kLeastGate ? -kLeastGate : gate;
  }
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
#pragma unroll
    for (double& one : sum) {
      const double before = __shfl_up_sync(0xffffffffU, one, distance);
      if (lane >= distance) one += before;
    }
  }
  sum[1] += __shfl_sync(0xffffffffU, sum[0], 31);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const auto high = static_cast<float>(sum[half]);
    sums[half] = make_float2(high, static_cast<float>(sum[half] - static_cast<double>(high)));
  }
}

// G_i - G_j
__device__ __forceinline__ float between(float2 i, float2 j) { return (i.x - j.x) + (i.y - j.y); }

// ---- Keys --------------------------------------------------------------------------------------

template <int Columns>
using KeyTile = RowTile<64, Columns>;

// Tiles of Columns keys: q, w and, where it is another tensor, e; zero beyond the rows and columns
// of the call. By 128 threads; asynchronous. A thread keeps its piece and goes down the rows.
template <int Columns>
__device__ __forceinline__ void load_keys(const TwoKeyCall& call, std::int64_t first, int count,
                                          std::int64_t head, bool erase, unsigned char* tiles) {
  using T = KeyTile<Columns>;
  constexpr int kPieces = Columns / 8, kStep = 128 / kPieces;
  const int piece = static_cast<int>(threadIdx.x) % kPieces;
  const int start = static_cast<int>(threadIdx.x) / kPieces;
  const int rows = 8 * piece < call.d_k ? count : 0;
  const bool whole = count == 64 && call.d_k == Columns;
  const std::int64_t stride = call.heads * call.d_k * 2;
  const std::uint32_t group =
      static_cast<std::uint32_t>(call.value_heads) / static_cast<std::uint32_t>(call.heads);
  const std::int64_t offset =
      (first + start) * stride +
      static_cast<std::uint32_t>(head) / group * std::int64_t{2} * call.d_k + piece * 16;
  const auto load = [&](int slot, const void* tensor) {
    const auto* const base = static_cast<const unsigned char*>(tensor);
    const unsigned char* from = base + offset;
    unsigned char* const tile = tiles + slot * T::kBytes;
    if (whole) {
#pragma unroll
      for (int i = 0; i < 64 / kStep; ++i) {
        copy_16(tile + T::place(start + i * kStep, piece), from);
        from += kStep * stride;
      }
      return;
    }
#pragma unroll 2
    for (int i = 0; i < 64 / kStep; ++i) {
      const int row = start + i * kStep;
      const bool valid = row < rows;
      copy_16(tile + T::place(row, piece), valid ? from : base, valid);
      from += kStep * stride;
    }
  };
  load(0, call.q);
  load(1, call.w);
  if (erase) load(2, call.e);
}

// Does nothing for about as long.
#if defined(RANKONE_CUDA_EMULATION)
inline void pause(std::uint32_t) {}
#else
__device__ __forceinline__ void pause(std::uint32_t nanoseconds) { __nanosleep(nanoseconds); }
#endif

// The number of this warp, so that the compiler knows that its lanes agree.
__device__ __forceinline__ int warp_number() {
  return __shfl_sync(0xffffffffU, static_cast<int>(threadIdx.x / 32), 0);
}

}  // namespace rankone::recurrence::cuda
