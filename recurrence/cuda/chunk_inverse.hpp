#pragma once

// The inverse of a unit lower triangle [64, 64] by four warps: by substitution in float32 on the
// diagonal blocks of 16, then block by block down each column of blocks,
//
//     T_ic = -T_ii sum_{c <= k < i} A_ik T_kc
//
// with products of float32 class (three tf32 products). A warp takes one column of blocks, so
// nothing passes between warps but the diagonal blocks. It works with transposes: then the result
// of one product is the left side of the next, in the same registers. The result goes out without
// its diagonal of ones.

#include "recurrence/cuda/tile.hpp"

namespace rankone::recurrence::cuda {

// Rows of 72 floats: 8 rows of 8 bytes at a time use every bank once.
inline constexpr int kTriangleRow = 72;
inline constexpr int kTriangleBytes = 64 * kTriangleRow * 4;

// A block of 16 x 16 on the diagonal, in place. By one warp.
__device__ __forceinline__ void invert_diagonal_block(float* block) {
  const int lane = static_cast<int>(threadIdx.x % 32), column = lane % 16;
  float x[16];
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    float sum = i == column ? 1.0F : 0.0F;
#pragma unroll
    for (int j = 0; j < i; j += 4) {
      const float4 row = *reinterpret_cast<const float4*>(block + i * kTriangleRow + j);
      sum -= row.x * x[j];
      if (j + 1 < i) sum -= row.y * x[j + 1];
      if (j + 2 < i) sum -= row.z * x[j + 2];
      if (j + 3 < i) sum -= row.w * x[j + 3];
    }
    x[i] = sum;
  }
  __syncwarp();
  if (lane < 16) {
#pragma unroll
    for (int i = 0; i < 16; ++i) block[i * kTriangleRow + column] = x[i];
  }
}

// The left side of a product, [16, 16] in two halves of the contraction, as the sum of two tf32. Of
// the eight steps of a half, mma's step t is 2t here and t + 4 is 2t + 1. The products look at the
// upper 19 bits of a number alone, so `high` is the number itself, and `low` what they do not see.
struct SplitLeft {
  std::uint32_t high[2][4], low[2][4];
};

__device__ __forceinline__ std::uint32_t unseen(std::uint32_t value) {
  return float_to_bits(bits_to_float(value) - bits_to_float(value & 0xffffe000U));
}

// From an accumulator: two tiles of m16n8.
__device__ __forceinline__ void split(SplitLeft& out, const float (&value)[2][4]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      out.high[half][i] = float_to_bits(value[half][i / 2 + i % 2 * 2]);
      out.low[half][i] = unseen(out.high[half][i]);
    }
  }
}

// out += left right^T for a block of 16 x 16, rows of kTriangleRow floats.
__device__ __forceinline__ void multiply_block(float (&out)[2][4], const SplitLeft& left,
                                               const float* right) {
  const int lane = static_cast<int>(threadIdx.x % 32), g = lane / 4, t = lane % 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const float2 value =
          *reinterpret_cast<const float2*>(right + (8 * n + g) * kTriangleRow + 8 * half + 2 * t);
      const std::uint32_t x = float_to_bits(value.x), y = float_to_bits(value.y);
      mma_m16n8k8_tf32(out[n], left.low[half], x, y);
      mma_m16n8k8_tf32(out[n], left.high[half], unseen(x), unseen(y));
      mma_m16n8k8_tf32(out[n], left.high[half], x, y);
    }
  }
}

// Blocks (i, c) of the inverse, held transposed, to [64, 64] tiles: what is rounded to Format to
// shared memory, and where `low` is not null what that leaves to global memory.
struct InverseTiles {
  unsigned char *high, *low;
};

template <class Format>
__device__ __forceinline__ void put_block(const InverseTiles& tiles, const float (&value)[2][4],
                                          int i, int c) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  std::uint32_t pairs[4];
#pragma unroll
  for (int j = 0; j < 4; ++j) {  // rows 8 (j / 2) .. of the block, columns 8 (j % 2) ..
    pairs[j] = pack<Format>(value[j / 2][j % 2 * 2], value[j / 2][j % 2 * 2 + 1]);
  }
  store_matrix_x4_transposed(
      tiles.high + (2 * c + lane / 8 % 2) * 1024 + (16 * i + lane / 16 * 8 + lane % 8) * 16, pairs);
  if (tiles.low == nullptr) return;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const float2 high = unpack<Format>(pairs[j]);
    const std::uint32_t low =
        pack<Format>(value[j / 2][j % 2 * 2] - high.x, value[j / 2][j % 2 * 2 + 1] - high.y);
    *reinterpret_cast<std::uint32_t*>(tiles.low + (2 * c + j % 2) * 1024 +
                                      (16 * i + j / 2 * 8) * 16 + lane * 4) = transpose_matrix(low);
  }
}

// Column `c` of blocks of the inverse, by one warp. `triangle` holds the inverses of the diagonal
// blocks and, below them, the triangle itself.
template <class Format>
__device__ __forceinline__ void invert_column(const InverseTiles& tiles, const float* triangle,
                                              int c) {
  const int lane = static_cast<int>(threadIdx.x % 32), g = lane / 4, t = lane % 4;
  const auto block = [&](int i, int k) { return triangle + 16 * (i * kTriangleRow + k); };
  SplitLeft done[3];
  float value[2][4];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int at = 0; at < 4; ++at) {
      value[half][at] = block(c, c)[(8 * half + 2 * t + at % 2) * kTriangleRow + g + at / 2 * 8];
    }
  }
  split(done[0], value);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int odd = 0; odd < 2; ++odd) {
      float& one = value[half][2 * half + odd];
      one = 2 * t + odd == g ? 0.0F : one;
    }
  }
  put_block<Format>(tiles, value, c, c);
#pragma unroll
  for (int step = 1; step < 4; ++step) {
    const int i = c + step;
    if (i >= 4) break;
    float sum[2][4] = {};
#pragma unroll
    for (int k = 0; k < step; ++k) multiply_block(sum, done[k], block(i, c + k));
    SplitLeft left;
    split(left, sum);
#pragma unroll
    for (int j = 0; j < 8; ++j) value[j / 4][j % 4] = 0.0F;
    multiply_block(value, left, block(i, i));
#pragma unroll
    for (int j = 0; j < 8; ++j) value[j / 4][j % 4] = -value[j / 4][j % 4];
    put_block<Format>(tiles, value, i, c);
    if (step < 3) split(done[step], value);
  }
  if (tiles.low == nullptr) return;
#pragma unroll
  for (int at = 0; at < 3; ++at) {  // above the diagonal
    const int piece = at * 32 + lane, column = piece / 48, row = piece % 48;
    if (row < 16 * c) {
      *reinterpret_cast<uint4*>(tiles.low + (2 * c + column) * 1024 + row * 16) =
          make_uint4(0, 0, 0, 0);
    }
  }
}

// What invert_triangle() does not write of a tile in shared memory: zeros above the diagonal. By
// 128 threads.
__device__ __forceinline__ void clear_above(unsigned char* tile) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int at = i * 128 + static_cast<int>(threadIdx.x) % 128, piece = at / 64, row = at % 64;
    if (row / 8 < piece) *reinterpret_cast<uint4*>(tile + at * 16) = make_uint4(0, 0, 0, 0);
  }
}

// Whether the inverse calls for products of float32 class: the squares of a row of the triangle sum
// to half or more. `sums`: of the squares of this lane's elements of two rows (rows of a warp's
// accumulator). Noted for the block in `notes`, one per warp of four.
__device__ __forceinline__ void note_size(float upper, float lower, int* notes) {
  const float sum[2] = {upper + __shfl_xor_sync(0xffffffffU, upper, 1),
                        lower + __shfl_xor_sync(0xffffffffU, lower, 1)};
  const float first = sum[0] + __shfl_xor_sync(0xffffffffU, sum[0], 2);
  const float second = sum[1] + __shfl_xor_sync(0xffffffffU, sum[1], 2);
  // Not "at least": NaN counts as large.
  const int large = __any_sync(0xffffffffU, !(first < 0.5F && second < 0.5F));
  if (threadIdx.x % 32 == 0) notes[threadIdx.x / 32 % 4] = large;
}

// All of it, from the strict triangle in shared memory (the upper part of the diagonal blocks is
// not looked at) to `tile` in shared memory, which is zero above the diagonal, and with `precise`
// to `low` in global memory. By four warps, whose barrier it is. `turn` says which warp begins with
// the longest column.
template <class Format>
__device__ __forceinline__ bool invert_triangle(float* triangle, unsigned char* tile,
                                                unsigned char* low, const int* notes, int barrier,
                                                int turn = 0) {
  const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
  barrier_sync(barrier, 128);
  invert_diagonal_block(triangle + 16 * warp * (kTriangleRow + 1));
  barrier_sync(barrier, 128);
  const bool precise = (notes[0] | notes[1] | notes[2] | notes[3]) != 0;
  invert_column<Format>({tile, precise ? low : nullptr}, triangle, (warp + turn) % 4);
  return precise;
}

// A tile from shared to global memory, by 128 threads.
__device__ __forceinline__ void put_tile(unsigned char* to, const unsigned char* tile) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int at = (i * 128 + static_cast<int>(threadIdx.x) % 128) * 16;
    *reinterpret_cast<uint4*>(to + at) = *reinterpret_cast<const uint4*>(tile + at);
  }
}

}  // namespace rankone::recurrence::cuda
