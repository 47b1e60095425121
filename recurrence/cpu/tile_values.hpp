#pragma once

// The value side of a chunk on a tile unit: errors, updates and states, on a panel of columns.

#include "recurrence/cpu/tile_chunk.hpp"

namespace rankone::recurrence::cpu {

class TileValues {
 public:
  TileValues(const TwoKeySizes& sizes, int width, int parts, Scratch& scratch);

  // Z of the chunk for columns [0, columns) of `values`. `state` [K, columns] with rows of
  // state_row floats, or null: zero.
  void solve(const TileChunk& chunk, const ChunkRows& rows, const float* values, int columns,
             const float* state, Index state_row, bool outputs);
  // After solve() with `outputs`. o: rows of rows.value_row floats. `live`: solve() had a state.
  // `stream`: past the caches where it can be (kStreamed).
  void outputs(const TileChunk& chunk, const ChunkRows& rows, int columns, bool live, float* o,
               bool stream);
  // next = keep state + write^T (b Z); `next` may be `state`. A null state is zero, and so is what
  // `next` holds then.
  void update(const TileChunk& chunk, int n, int columns, const float* state, float* next,
              Index state_row);

  int parts() const { return parts_; }

  float* errors;  // [C, V]: Z
  int row;        // floats between the rows of `errors`

 private:
  void multiply(const TileChunk& chunk, const TileMatrix& a, const TileMatrix& b, float* c,
                Index c_row, Into into) const;

  TwoKeySizes sizes_;
  const TileKernels& tiles_;
  int parts_;
  TileMatrix state_tiles_, update_tiles_;
  float* output_;        // [C, V]
  float* square_;        // [C, C]
  bool packed_ = false;  // update_tiles_ hold the errors times the gain
};

}  // namespace rankone::recurrence::cpu
