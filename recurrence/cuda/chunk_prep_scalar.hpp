#pragma once

// Preparation without decay and for scalar decay. Four warps work on one (chunk, value head): a and
// P from the keys as they are, exact products of 16-bit numbers summed in float32, scaled by
// exp(G_i - G_j); then Y. Warp w has rows 8 w .. and 56 - 8 w .., so that all have as much of the
// lower triangle. For lean records P is left out.

#include "recurrence/cuda/chunk_inputs.hpp"
#include "recurrence/cuda/chunk_inverse.hpp"

namespace rankone::recurrence::cuda {

// What a chunk's gates come to, in shared memory. exp(G_i - G_j), rows i and j in different groups
// of eight, is row[i] times the element j of `column` for the group of i: the anchor is the last
// row before that group. Columns of group 1 come first (8), then those of group 2 (16), ...
struct ScalarNumbers {
  float2 sums[64];  // of sum_gates()
  float gain[64], row[64];
  float column[224], column_gain[224];  // the latter times the gain of row j
  int count;                            // rows of the chunk
  std::uint32_t item;                   // the number of its record
  int unused[30];

  static __device__ int columns_of(int group) { return 4 * group * (group - 1); }
};
static_assert(sizeof(ScalarNumbers) % 128 == 0);

// Fills `numbers` (what products need of it where they are made here) and the record's rows that
// depend on gates alone. By one warp.
template <bool Delta, bool Lean>
__device__ __forceinline__ void put_numbers(ScalarNumbers& numbers, const GatePair& gates,
                                            const ChunkCall& c, unsigned char* record, int count) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  float2 sums[2];
  sum_gates(sums, gates);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    numbers.sums[32 * half + lane] = sums[half];
    numbers.gain[32 * half + lane] = gates.b[half];
    if constexpr (Lean) {
      reinterpret_cast<float2*>(record + c.layout.sums)[32 * half + lane] = sums[half];
    }
  }
  if (lane == 0) numbers.count = count;
  __syncwarp();
  const auto row = [&](std::int64_t at) { return reinterpret_cast<float*>(record + at); };
  const float2 last = numbers.sums[63];
  const float keep = decay_factor(last.x + last.y);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int i = 32 * half + lane;
    row(c.layout.in)[i] = decay_factor(sums[half].x + sums[half].y);
    row(c.layout.out)[i] = decay_factor(between(last, sums[half]));
    row(c.layout.gain)[i] = gates.b[half];
    if constexpr (Delta || !Lean) {
      if (i >= 8) numbers.row[i] = decay_factor(between(sums[half], numbers.sums[i / 8 * 8 - 1]));
    }
  }
  for (int i = lane; i < (Lean ? kLeanKeep : key_columns(c.call.d_k)); i += 32) {
    row(c.layout.keep)[i] = i < c.call.d_k ? keep : 0.0F;
  }
  if constexpr (Lean && !Delta) return;
#pragma unroll
  for (int group = 1; group < 8; ++group) {
    const float2 anchor = numbers.sums[8 * group - 1];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int j = 32 * half + lane;
      if (32 * half < 8 * group && j < 8 * group) {
        const float factor = decay_factor(between(anchor, sums[half]));
        if constexpr (!Lean) numbers.column[ScalarNumbers::columns_of(group) + j] = factor;
        numbers.column_gain[ScalarNumbers::columns_of(group) + j] = factor * gates.b[half];
      }
    }
  }
}

// Where four warps put what they make of a chunk.
template <bool Delta, bool Lean>
struct ScalarOutput {
  unsigned char y[kSquareBytes], p[kSquareBytes];
  float triangle[kTriangleBytes / 4];
  int notes[32];  // of note_size(); padded
};
template <>
struct ScalarOutput<true, true> {
  unsigned char y[kSquareBytes];
  float triangle[kTriangleBytes / 4];
  int notes[32];
};
template <>
struct ScalarOutput<false, false> {
  unsigned char p[kSquareBytes];
};
static_assert(sizeof(ScalarOutput<true, false>) % 128 == 0);
static_assert(sizeof(ScalarOutput<true, true>) % 128 == 0);

// The left sides of step k of the products: this warp's rows of a key tile.
template <class T>
__device__ __forceinline__ void load_rows(std::uint32_t (&a)[4], const unsigned char* tile,
                                          int warp, int k) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int row = (lane / 8 % 2 == 0 ? 8 * warp : 56 - 8 * warp) + lane % 8;
  load_matrix_x4(a, tile + T::place(row, 2 * k + lane / 16));
}

// q w^T (not Lean) and e w^T (Delta), before any decay.
template <class Engine, class T, bool Delta, bool Lean>
__device__ __forceinline__ void multiply_keys(float (&p)[32], float (&a)[32],
                                              const unsigned char* query,
                                              const unsigned char* write,
                                              const unsigned char* erase, int warp) {
  constexpr int kSteps =
      Lean && T::kColumns <= 128 ? T::kColumns / 16 : 4;  // that registers have room for
#pragma unroll
  for (int first = 0; first < T::kColumns / 16; first += kSteps) {
    std::uint32_t q[kSteps][4], e[kSteps][4];
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      if constexpr (!Lean) load_rows<T>(q[k], query, warp, first + k);
      if constexpr (Delta) load_rows<T>(e[k], erase, warp, first + k);
    }
    Engine::begin();
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      const bool clear = first + k == 0;
      if constexpr (!Lean) Engine::template multiply<T, false>(p, q[k], write, first + k, clear);
      if constexpr (Delta) Engine::template multiply<T, false>(a, e[k], write, first + k, clear);
    }
    Engine::commit();
    Engine::template wait<0>();
    if constexpr (!Lean) Engine::hold(p);
    if constexpr (Delta) Engine::hold(a);
  }
}

// Decays: P to its tile, a diag(b) to the triangle; both tiles stay as they are above the diagonal.
template <class Format, bool Delta, bool Lean>
__device__ __forceinline__ void put_products(const float (&p)[32], const float (&a)[32],
                                             const ScalarNumbers& numbers,
                                             ScalarOutput<Delta, Lean>& out, float scale,
                                             int warp) {
  const int lane = static_cast<int>(threadIdx.x % 32), g = lane / 4, t = lane % 4;
  float squares[2] = {0.0F, 0.0F};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int group = half == 0 ? warp : 7 - warp, row = 8 * group + g;
    [[maybe_unused]] unsigned char* to_p = nullptr;
    if constexpr (!Lean) to_p = out.p + row * 16 + t * 4;
    const float own = numbers.row[row], scaled = scale * own;
    [[maybe_unused]] const float* const columns =
        numbers.column + ScalarNumbers::columns_of(group) + 2 * t;
    const float* const gains = numbers.column_gain + ScalarNumbers::columns_of(group) + 2 * t;
    [[maybe_unused]] const auto put_a = [&](auto& to, int n, float left, float right) {
      squares[half] += left * left + right * right;
      *reinterpret_cast<float2*>(to.triangle + row * kTriangleRow + 8 * n + 2 * t) =
          make_float2(left, right);
    };
    float diagonal[4] = {};
#pragma unroll
    for (int n = half == 0 ? 0 : 4; n < (half == 0 ? 4 : 8); ++n) {
      if (n != group) continue;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if constexpr (!Lean) diagonal[i] = p[4 * n + 2 * half + i];
        if constexpr (Delta) diagonal[2 + i] = a[4 * n + 2 * half + i];
      }
    }
#pragma unroll
    for (int n = 0; n < (half == 0 ? 3 : 7); ++n) {
      if (n >= group) break;
      const int at = 4 * n + 2 * half;
      if constexpr (!Lean) {
        const float2 factor = *reinterpret_cast<const float2*>(columns + 8 * n);
        *reinterpret_cast<std::uint32_t*>(to_p + n * 1024) =
            pack<Format>(p[at] * (scaled * factor.x), p[at + 1] * (scaled * factor.y));
      }
      if constexpr (Delta) {
        const float2 gain = *reinterpret_cast<const float2*>(gains + 8 * n);
        put_a(out, n, a[at] * (own * gain.x), a[at + 1] * (own * gain.y));
      }
    }
    const int column = 8 * group + 2 * t;
    const float4 sums = *reinterpret_cast<const float4*>(numbers.sums + column);
    const float2 sum = numbers.sums[row];
    const float left = decay_factor(between(sum, make_float2(sums.x, sums.y)));
    const float right = decay_factor(between(sum, make_float2(sums.z, sums.w)));
    if constexpr (!Lean) {
      *reinterpret_cast<std::uint32_t*>(to_p + group * 1024) =
          pack<Format>(column <= row ? diagonal[0] * (scale * left) : 0.0F,
                       column < row ? diagonal[1] * (scale * right) : 0.0F);
    }
    if constexpr (Delta) {
      const float2 gain = *reinterpret_cast<const float2*>(numbers.gain + column);
      put_a(out, group, column < row ? diagonal[2] * (left * gain.x) : 0.0F,
            column + 1 < row ? diagonal[3] * (right * gain.y) : 0.0F);
    }
  }
  if constexpr (Delta) note_size(squares[0], squares[1], out.notes);
}

}  // namespace rankone::recurrence::cuda
