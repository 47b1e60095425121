#pragma once

// What a chunk of the two-key recurrence needs beside values and state, for one value head:
//
//     X = b (V + erase S_0)           erase(i) = -e_i exp(G_i)
//     U_i = X_i + sum_{j<i} solve(i, j) U_j
//     O = query S_0 + seen U          query(i) = scale q_i exp(G_i)
//     S_C = keep S_0 + write^T U      write(j) = w_j exp(G_C - G_j)
//
// with G the running sum of g in the chunk (docs/notation.md, the chunk form). Whatever the decay,
// the rest of the computation sees only these factors. No exponent above the sum of an interval of
// gates is ever formed, so with g <= 0 nothing overflows at any strength of decay.

#include "recurrence/cpu/scratch.hpp"
#include "recurrence/shapes.hpp"

namespace rankone::recurrence::cpu {

inline constexpr int kChunk = 64;

enum class DecayKind { none, scalar, channel };

// The sizes of a call that a worker needs.
struct TwoKeySizes {
  int d_k, d_v, chunk;
  DecayKind decay;
  bool delta;
  float scale;
  int padding = kLine;  // columns in scratch come in multiples of it

  TwoKeySizes(const TwoKeyShape& shape, const TwoKey& inputs, int chunk_rows);
  int padded_k() const { return round_up(d_k, padding); }
  int padded_v() const { return round_up(d_v, padding); }
};

// The rows of one chunk and one value head; rows of e are key_row floats apart, and so on.
struct ChunkRows {
  int count;
  const float* q;
  Index q_row;
  const float* e;  // null: additive
  Index key_row;
  const float* w;
  Index w_row;
  const float* v;
  Index value_row;
  const float* g;  // null: none
  Index g_row;
  const float* b;  // null: one
  Index b_row;
  bool e_copied;  // to SpanFactors::erase_keys()
};
// Rows [first, first + count) of value head `head`.
ChunkRows chunk_rows(const TwoKeyShape& shape, const TwoKey& inputs, Index first, int count,
                     Index head);
// Rows [first, first + count) of these.
ChunkRows part_of(const ChunkRows& rows, int first, int count);

class ChunkFactors {
 public:
  // What is needed: only the state at the end of the chunk, or its outputs too, or also what the
  // way back reads. The constructor takes the most that build() will be asked for.
  enum class For { state, output, gradient };

  ChunkFactors(const TwoKeySizes& sizes, For most, Scratch& scratch);
  void build(const ChunkRows& rows, For purpose);

  // [C, K], rows of key_row floats
  float* erase;
  float* query;
  float* write;
  int key_row;
  // [C, C], rows of square_row floats; read(i, j) is e_i . w_j with its decay, before the gain
  float* read;
  float* solve;
  float* seen;
  int square_row;
  float* keep;  // [K]
  float* gain;  // [C]

  // Decay factors, as ScalarDecay and ChannelDecay have them.
  float* between;
  float* prefix;
  float* suffix;
  float* step;
  float* from_start;
  float* to_end;
  // Rows of the keys (scalar decay: only for the way back), and under per-channel decay the same
  // decayed from the start of their sub-block.
  float* raw_erase;
  float* raw_query;
  float* raw_write;
  float* block_erase;
  float* block_query;

 private:
  void build_scalar(const ChunkRows& rows, For purpose);
  void build_channel(const ChunkRows& rows, For purpose);
  void load_channel(const ChunkRows& rows, For purpose);

  TwoKeySizes sizes_;
  float* columns_;  // [K, C]: write keys as columns
  float* factors_;  // [C]
  float* gates_;    // [C, K]
};

}  // namespace rankone::recurrence::cpu
