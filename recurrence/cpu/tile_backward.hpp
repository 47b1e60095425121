#pragma once

// The way back through one chunk of one value head on a tile unit: what ChunkBackward computes
// (two_key_backward.hpp), with its matrices in the same scratch, from Z as the forward pass left
// it.

#include "recurrence/cpu/tile_values.hpp"
#include "recurrence/cpu/two_key_backward.hpp"

namespace rankone::recurrence::cpu {

class TileBackward {
 public:
  // `sizes` with whole pairs of tiles (tile_sizes()).
  TileBackward(const TwoKeySizes& sizes, int parts, Scratch& scratch);
  TileBackward(const TileBackward&) = delete;  // its parts point at each other
  TileBackward& operator=(const TileBackward&) = delete;

  // The state at the end of the chunk from that at its start, [K, V] with rows of value_row floats,
  // K and V padded to pairs of tiles; and Z, [C, V] with the same rows. `next` null: Z alone.
  void advance(const ChunkRows& rows, const float* state, float* next, float* errors);
  // As ChunkBackward::run().
  void run(const ChunkRows& rows, const float* d_o, const float* state, const float* errors,
           float* d_state);

  ChunkBackward results;
  TileAhead ahead;  // what advance() and run() fetch between their steps

 private:
  void solve_back(const ChunkRows& rows, const float* d_o, const float* errors);
  void interactions(const ChunkRows& rows, const float* errors);
  void through_state(const float* state);
  void scalar_keys(const ChunkRows& rows);
  void scalar_gates(const ChunkRows& rows, const float* state, const float* d_state);
  void state_back(const ChunkRows& rows, const float* d_o, float* d_state);
  void multiply(const TileMatrix& a, const TileMatrix& b, float* out, Index row);
  // scale(i) from(i, :) + the product; a null scale is 1.
  void multiply_onto(const float* from, const float* scale, TileProduct product);

  TwoKeySizes sizes_;
  const TileKernels& tiles_;
  int parts_;
  TileChunk chunk_;
  TileValues values_;
  TileMatrix state_rows_, state_columns_, state_pairs_;     // of S_0 and dS_C, and transposed
  TileMatrix d_output_rows_, residual_rows_, update_rows_;  // dO, b dR and U, [C, V]
  TileMatrix value_pairs_, update_columns_;                 // as right operands
  TileMatrix write_pairs_, query_pairs_, erase_pairs_;      // the keys, as right operands
  TileMatrix key_columns_;                                  // keys transposed, a left operand
  TileMatrix d_seen_rows_, d_read_rows_, square_pairs_, square_columns_;
};

}  // namespace rankone::recurrence::cpu
