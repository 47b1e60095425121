#pragma once

// P of a chunk from its queries and write keys in a stage of the scan, as preparation makes it
// (chunk_prep_scalar.hpp): exact products of 16-bit numbers summed in float32, and decays as
// products of two, over the last row before a row's group of eight. Within a group each is one.

#include "recurrence/cuda/chunk_inputs.hpp"
#include "recurrence/cuda/chunk_scan_parts.hpp"

namespace rankone::recurrence::cuda {

// Columns of a group of eight rows are decays from a row before it to the anchor: of group 1 come
// first (8), then those of group 2 (16), ... A warp makes and reads those of its two groups.
inline constexpr int kTableBytes = 1024;
__device__ __forceinline__ int table_of(int group) { return 4 * group * (group - 1); }

// A stage of the forward scan.
template <int DK, bool Scaled, bool Delta, bool Seen, bool Lean>
using FedStage = ScanStage<DK, Scaled, Delta, Seen, RowTile<64, kValueTile>,
                           Lean && Seen ? kTableBytes : 0, Lean>;

// By four warps; warp w has rows 16 w .. 16 w + 15. All elements of the tile are written, zeros
// above the diagonal. Rows beyond the end of the sequence become anything: the groups of the block
// may be clearing the keys there. Fragments: with the queries in registers, which takes 32 more.
template <class Format, class Stage, class Engine, bool Fragments>
__device__ __forceinline__ void make_products(unsigned char* stage, float scale) {
  using Key = typename Stage::Key;
  const int warp = group_warp(), lane = static_cast<int>(threadIdx.x % 32);
  const int g = lane / 4, t = lane % 4;
  constexpr int kSteps = Key::kColumns / 16;
  float p[32];
  [[maybe_unused]] std::uint32_t query[kSteps][4];
  if constexpr (Fragments) {
#pragma unroll
    for (int k = 0; k < kSteps; ++k) load_a<Key>(query[k], stage + Stage::kQuery, 16 * warp, k);
  }
  Engine::begin();
#pragma unroll
  for (int k = 0; k < kSteps; ++k) {
    if constexpr (Fragments) {
      Engine::template multiply<Key, false>(p, query[k], stage + Stage::kWrite, k, k == 0);
    } else {
      Engine::template multiply_tiles<Key, false, Key, false>(p, stage + Stage::kQuery,
                                                              stage + Stage::kWrite, k, k == 0);
    }
  }
  Engine::commit();

  const auto* const sums = reinterpret_cast<const float2*>(stage + Stage::kSums);
  auto* const table = reinterpret_cast<float*>(stage + Stage::kOwn);
  float own[2], diagonal[2][2];  // with the scale
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int group = 2 * warp + half, row = 8 * group + g;
    const float2 sum = sums[row];
    const float2 anchor = sums[group == 0 ? 0 : 8 * group - 1];
    own[half] = scale * decay_factor(between(sum, anchor));
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int j = 32 * i + lane;
      if (j < 8 * group) table[table_of(group) + j] = decay_factor(between(anchor, sums[j]));
    }
    const float4 columns = *reinterpret_cast<const float4*>(sums + 8 * group + 2 * t);
    diagonal[half][0] = scale * decay_factor(between(sum, make_float2(columns.x, columns.y)));
    diagonal[half][1] = scale * decay_factor(between(sum, make_float2(columns.z, columns.w)));
  }
  __syncwarp();
  Engine::template wait<0>();
  Engine::hold(p);

  unsigned char* const tile = stage + Stage::kSquareP;
#pragma unroll
  for (int pair = 0; pair < 4; ++pair) {
    std::uint32_t rounded[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int half = j % 2, n = 2 * pair + j / 2, group = 2 * warp + half;
      float2 factor = make_float2(diagonal[half][0], diagonal[half][1]);
      if (n < group) {
        factor = *reinterpret_cast<const float2*>(table + table_of(group) + 8 * n + 2 * t);
        factor.x *= own[half];
        factor.y *= own[half];
      }
      const float x = p[4 * n + 2 * half] * factor.x, y = p[4 * n + 2 * half + 1] * factor.y;
      const bool left = n < group || (n == group && 2 * t <= g);
      const bool right = n < group || (n == group && 2 * t < g);
      rounded[j] = pack<Format>(left ? x : 0.0F, right ? y : 0.0F);
    }
    store_matrix_x4(tile + Stage::Square::place(16 * warp + lane % 16, 2 * pair + lane / 16),
                    rounded);
  }
}

}  // namespace rankone::recurrence::cuda
