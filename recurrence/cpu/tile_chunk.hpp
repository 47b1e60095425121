#pragma once

// The factors of a chunk (two_key_chunk.hpp) as operands of products on a tile unit. The gain
// stands on the columns of the solve here:
//
//     Z = V - erase S_0 - A (b Z)       A(i, j) = e_i . w_j with its decay, j < i
//     O = query S_0 + seen (b Z)
//     S_C = keep S_0 + write^T (b Z)
//
// so Z, what each token finds wrong, is there also where a gain is zero; its gradient needs it.

#include <optional>

#include "core/context.hpp"
#include "recurrence/cpu/tiles.hpp"
#include "recurrence/cpu/two_key_chunk.hpp"

namespace rankone::recurrence::cpu {

// The sizes of a call with whole pairs of tiles in scratch.
inline TwoKeySizes tile_sizes(const TwoKeyShape& shape, const TwoKey& inputs) {
  TwoKeySizes sizes(shape, inputs, kChunk);
  sizes.padding = kTileInner;
  return sizes;
}

// Parts of an operand in most products of this precision.
constexpr int parts_of(Precision precision) { return precision == Precision::bf16 ? 1 : 2; }
// And in those whose errors are multiplied by what follows: the interactions and their gradients,
// which the solve and the sums over pairs of tokens work on, and their products with the values.
// They are a fourth of the arithmetic.
constexpr int exact_parts(int parts) { return parts > 1 ? 3 : parts; }

TileMatrix take_tiles(Scratch& scratch, int outer, int inner, int parts);

class TileChunk {
 public:
  using For = ChunkFactors::For;

  // `factors`: those of channel decay, where the caller reads them too; null: of its own.
  TileChunk(const TwoKeySizes& sizes, For purpose, int parts, Scratch& scratch,
            ChunkFactors* factors = nullptr);

  // `same_keys`: the call before was for another value head of the same keys and purpose.
  void build(const ChunkRows& rows, For purpose, bool same_keys);
  // seen, [C, C] with rows of square_row floats, as build() left it in tiles.
  void seen_values(int n, float* to) const;

  TileAhead* ahead = nullptr;  // for the kernels of build()

  // Parts of the products that carry a state over the chunk and read it for Z: more where
  // rows erase so much of each other that nothing damps an error.
  int state_parts;

  // Pairs of tiles that hold the rows of the chunk.
  int pairs;
  // `matrix`, whose sum is over tokens, for a chunk of this length.
  TileMatrix over_tokens(TileMatrix matrix) const {
    matrix.inner = pairs;
    return matrix;
  }
  // `matrix`, whose rows are tokens.
  TileMatrix of_tokens(TileMatrix matrix) const {
    matrix.outer = 2 * pairs;
    return matrix;
  }

  // Left operands: erase and query [C, K], seen [C, C], write [K, C] (the transpose). What the
  // state holds for row i is erase_decay(i) (erase S)_i.
  TileMatrix erase, query, seen, write;
  const float* erase_decay;    // [C]; null: 1
  const float* query_factor;   // [C], likewise for (query S)_i; null: 1
  const float* update_weight;  // [C]: the gain; null: 1
  const float* write_weight;   // [C]: factor of Z before `write`; null: update_weight
  const float* keep;           // [K], padded to whole pairs of tiles; null: 1
  bool keep_writes;            // `write` lacks the factor `keep`
  // [C, C], rows of square_row floats: -A(i, j) b(j); for the way back -b(i) A(i, j)
  float* solve;
  int square_row;

  // For the way back. Under scalar decay the keys are as given, in rows: `erase` too.
  TileMatrix raw_query, raw_write;
  float* read_dots;  // [C, C]: e_i . w_j, and q_i . w_j; under channel decay A, and seen
  float* seen_dots;
  float* between;  // [C, C], prefix and suffix [C]: as ScalarDecay has them
  float* prefix;
  float* suffix;
  float* gain;  // [C]

 private:
  void keys(const ChunkRows& rows, For purpose);
  void scalar(const ChunkRows& rows, For purpose);
  void channel(const ChunkRows& rows, For purpose);
  void keep_channels(const float* from);
  void write_rows(int parts);
  void mild_channel(const ChunkRows& rows, ChunkFactors& f, For purpose);
  void pack_keys(const TileMatrix& to, const float* from, Index row, int n,
                 const float* factor) const;
  TileLower lower_of(const float* dots, int n) const;

  // The sum of the squares of A b up to which the solve is close to the unit matrix. Random keys of
  // 128 numbers reach 16 with gains of one, keys at a cosine of 0.9 more than a thousand.
  static constexpr float kMostErased = 32.0F;

  TwoKeySizes sizes_;
  const TileKernels& tiles_;
  int parts_;
  int write_made_ = 0;  // parts of `write`
  TileMatrix write_pairs_;
  float* factors_;
  float* keep_;
  float* write_weight_;
  std::optional<ChunkFactors> own_channel_;
  ChunkFactors* channel_;
};

}  // namespace rankone::recurrence::cpu
