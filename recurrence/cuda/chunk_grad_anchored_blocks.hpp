#pragma once

// The products of chunks for whose decays one anchor a channel does not do
// (chunk_grad_anchored.hpp): an anchor for every block of 16 rows, or, where decays are stronger
// still, of four. Rows are scaled from and to the anchor of their block; a sum over the rows of
// others is carried from the frame of one block to that of the next, by the decay from its anchor
// to its end and by that from the start of the next one to its anchor. These are apart since both
// may be small where a row between is scaled by a large number.

#include "recurrence/cuda/chunk_grad_anchored_tiles.hpp"

namespace rankone::recurrence::cuda {

template <class Format, bool Delta>
class AnchoredBlocks : protected AnchoredTiles<Format, Delta> {
 protected:
  using Base = AnchoredTiles<Format, Delta>;
  using Shared = AnchoredShared;
  using typename Base::Keys;
  using typename Base::Place;
  using typename Base::Values;
  using Products = MmaEngine<Format>;
  using Base::at;
  using Base::Base;
  using Base::decay;
  using Base::decay_place;
  using Base::group;
  using Base::kBelow;
  using Base::key;
  using Base::lane;
  using Base::rows_;
  using Base::warp_;

  // What a thread knows of its channels and block of rows: the sum of gates from the anchor to the
  // start of the block; and if the block has its own, the sums to that, from there to the end of
  // the block, and those of the blocks behind.
  struct Start {
    float2 from_anchor, to_anchor, to_end, behind;
  };

  // Between the frames of blocks of 16 rows, two channels a number: the decay from the start of
  // each to its anchor, from that to its end, and to the end of the chunk.
  struct Frames {
    float2 to_anchor[4][64], to_end[4][64], to_last[4][64];
  };
  // Of blocks of four rows: from the start of each to its anchor; from the end of each 16 to that
  // of the chunk. The decay from an anchor to the end of its block is that of its last row.
  struct FineFrames {
    float2 to_anchor[16][64], behind[4][64];
  };
  static constexpr int kFrames = 16384 - sizeof(FineFrames);
  static_assert(sizeof(AnchoredSums) <= kFrames && sizeof(Frames) <= sizeof(FineFrames));
  static __device__ __forceinline__ Frames& frames() {
    return *reinterpret_cast<Frames*>(at(Shared::kColumns) + kFrames);
  }
  static __device__ __forceinline__ FineFrames& fine_frames() {
    return *reinterpret_cast<FineFrames*>(at(Shared::kColumns) + kFrames);
  }
  static __device__ __forceinline__ float2 decays_of(float2 sum) {
    return make_float2(exp2_fast(sum.x * kLog2e), exp2_fast(sum.y * kLog2e));
  }
  // And exp(G_last) in the place of that of the anchor of the chunk.
  __device__ __forceinline__ void put_frames(const Start& start, bool fine) const {
    const int pair = static_cast<int>(threadIdx.x % 64), part = static_cast<int>(threadIdx.x / 64);
    const float2 last =
        make_float2(start.to_end.x + start.behind.x, start.to_end.y + start.behind.y);
    if (part == 0) {
      *reinterpret_cast<float2*>(rows_.anchor + 2 * pair) =
          decays_of(make_float2(start.to_anchor.x + last.x, start.to_anchor.y + last.y));
    }
    if (fine) {
      fine_frames().behind[part][pair] = decays_of(start.behind);
      return;
    }
    frames().to_anchor[part][pair] = decays_of(start.to_anchor);
    frames().to_end[part][pair] = decays_of(start.to_end);
    frames().to_last[part][pair] = decays_of(last);
  }

  // ---- Blocks of 16 rows ------------------------------------------------------------------------

  // d times decays, per column.
  static __device__ __forceinline__ void cross(float (&d)[32], const float2* decays) {
    const int first = Place().column / 2;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const float2 t = decays[first + 4 * n];
      d[4 * n] *= t.x;
      d[4 * n + 1] *= t.y;
      d[4 * n + 2] *= t.x;
      d[4 * n + 3] *= t.y;
    }
  }
  __device__ __forceinline__ const unsigned char* keys_of(int slot) const {
    return at(slot) + group() * Keys::kBlock;
  }
  // dq or de in the frame of the warp's block, from the start of the chunk and the blocks before;
  // `square`: 0 for M1, 1 for M2.
  __device__ __forceinline__ void add_writes(float (&d)[32], int square) const {
#pragma unroll 1
    for (int b = 0; b <= warp_ % 4; ++b) {
      if (b > 0) cross(d, frames().to_end[b - 1]);
      cross(d, frames().to_anchor[b]);
      std::uint32_t m[4];
      load_a<Values>(m, at(Shared::kSquares) + square * Values::kBytes, 16 * (warp_ % 4), b);
      Products::template multiply<Values, true>(d, m, keys_of(Shared::kWrite), b, false);
    }
  }
  // dw from the end of the chunk and the blocks behind.
  __device__ __forceinline__ void add_reads(float (&d)[32]) const {
#pragma unroll 1
    for (int a = 3; a >= warp_ % 4; --a) {
      if (a < 3) cross(d, frames().to_anchor[a + 1]);
      cross(d, frames().to_end[a]);
      std::uint32_t m[4];
      load_a_transposed<Values>(m, at(Shared::kSquares), 16 * (warp_ % 4), a);
      Products::template multiply<Values, true>(d, m, keys_of(Shared::kQuery), a, false);
      if (!Delta) continue;
      load_a_transposed<Values>(m, at(Shared::kSquares) + Values::kBytes, 16 * (warp_ % 4), a);
      Products::template multiply<Values, true>(d, m, keys_of(Shared::kErase), a, false);
    }
  }

  // ---- Blocks of four rows ----------------------------------------------------------------------

  // The block of the thread's first row. That of the second is two further.
  __device__ __forceinline__ int fine_block() const { return 4 * (warp_ % 4) + lane() / 16; }
  // From the frame of block c - 1 to that of block c, or back: the rows that `upper` and `lower`
  // say.
  __device__ __forceinline__ void cross_fine(float (&d)[32], int c, bool upper, bool lower) const {
    const Place here;
    const float2* const next = fine_frames().to_anchor[c] + here.column / 2;
    const int last = decay_place(4 * c - 1, here.column / 2);
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      float2 end = make_float2(1.0F, 1.0F);
      if (c > 0) end = decay(last ^ 32 * n);
      const float2 t = next[4 * n];
      d[4 * n] *= upper ? end.x : 1.0F;
      d[4 * n + 1] *= upper ? end.y : 1.0F;
      d[4 * n + 2] *= lower ? end.x : 1.0F;
      d[4 * n + 3] *= lower ? end.y : 1.0F;
      d[4 * n] *= upper ? t.x : 1.0F;
      d[4 * n + 1] *= upper ? t.y : 1.0F;
      d[4 * n + 2] *= lower ? t.x : 1.0F;
      d[4 * n + 3] *= lower ? t.y : 1.0F;
    }
  }
  // Of a left side, the columns of one block of four.
  static __device__ __forceinline__ void keep_block(std::uint32_t (&m)[4], int c) {
    const bool mine = lane() % 4 / 2 == c % 2;
    const std::uint32_t first = mine && c % 4 < 2 ? ~0U : 0U,
                        second = mine && c % 4 >= 2 ? ~0U : 0U;
    m[0] &= first;
    m[1] &= first;
    m[2] &= second;
    m[3] &= second;
  }
  __device__ __forceinline__ void add_fine_writes(float (&d)[32], int square) const {
    const int own = fine_block();
#pragma unroll 1
    for (int c = 0; c < 4 * (warp_ % 4) + 4; ++c) {
      cross_fine(d, c, c <= own, c <= own + 2);
      std::uint32_t m[4];
      load_a<Values>(m, at(Shared::kSquares) + square * Values::kBytes, 16 * (warp_ % 4), c / 4);
      keep_block(m, c);
      Products::template multiply<Values, true>(d, m, keys_of(Shared::kWrite), c / 4, false);
    }
  }
  __device__ __forceinline__ void add_fine_reads(float (&d)[32]) const {
    const int own = fine_block();
    leave_chunk(d);
#pragma unroll 1
    for (int c = 15; c >= 4 * (warp_ % 4); --c) {
      if (c < 15) cross_fine(d, c + 1, own <= c, own + 2 <= c);
      std::uint32_t m[4];
      load_a_transposed<Values>(m, at(Shared::kSquares), 16 * (warp_ % 4), c / 4);
      keep_block(m, c);
      Products::template multiply<Values, true>(d, m, keys_of(Shared::kQuery), c / 4, false);
      if (!Delta) continue;
      load_a_transposed<Values>(m, at(Shared::kSquares) + Values::kBytes, 16 * (warp_ % 4), c / 4);
      keep_block(m, c);
      Products::template multiply<Values, true>(d, m, keys_of(Shared::kErase), c / 4, false);
    }
  }
  // From the end of the chunk to the last anchor.
  __device__ __forceinline__ void leave_chunk(float (&d)[32]) const {
    const int last = decay_place(63, Place().column / 2);
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const float2 t = decay(last ^ 32 * n);
      d[4 * n] *= t.x;
      d[4 * n + 1] *= t.y;
      d[4 * n + 2] *= t.x;
      d[4 * n + 3] *= t.y;
    }
  }
  // exp(G_last - A) of the thread's rows, tile n.
  __device__ __forceinline__ void fine_last(float2 (&keep)[2], const Place& here, int n) const {
    const int own = lane() / 16, part = warp_ % 4, pair = here.column / 2 + 4 * n;
    float2 all = fine_frames().behind[part][pair];
#pragma unroll
    for (int c = 3; c >= 0; --c) {
      const float2 end = decay(decay_place(16 * part + 4 * c + 3, pair));
      all = make_float2(all.x * end.x, all.y * end.y);
      if (c == own) keep[0] = all;
      if (c == own + 2) keep[1] = all;
      const float2 t = fine_frames().to_anchor[4 * part + c][pair];
      all = make_float2(all.x * t.x, all.y * t.y);
    }
  }
};

}  // namespace rankone::recurrence::cuda
