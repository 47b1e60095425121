#include "recurrence/cpu/tile_values.hpp"

#include <algorithm>

#include "recurrence/cpu/tasks.hpp"

namespace rankone::recurrence::cpu {
namespace {

int column_tiles(int columns) { return round_up(columns, kTileInner) / kTileRows; }

}  // namespace

TileValues::TileValues(const TwoKeySizes& sizes, int width, int parts, Scratch& scratch)
    : row(leading(round_up(width, kTileInner))),
      sizes_(sizes),
      tiles_(*tile_kernels()),
      parts_(exact_parts(parts)) {
  const int keys = round_up(sizes.d_k, kTileInner) / kTileInner;
  errors = scratch.take(static_cast<Index>(kChunk) * row);
  output_ = scratch.take(static_cast<Index>(kChunk) * row);
  square_ = scratch.rows(kChunk, kChunk);
  state_tiles_ = take_tiles(scratch, column_tiles(width), keys, parts_);
  update_tiles_ = take_tiles(scratch, column_tiles(width), kChunk / kTileInner, parts_);
}

void TileValues::solve(const TileChunk& chunk, const ChunkRows& rows, const float* values,
                       int columns, const float* state, Index state_row, bool outputs) {
  const int n = rows.count;
  state_tiles_.outer = update_tiles_.outer = column_tiles(columns);
  state_tiles_.parts = chunk.state_parts;
  if (state != nullptr) {
    tiles_.pack_pairs({state_tiles_, state, state_row, sizes_.d_k, columns, nullptr, chunk.ahead});
  }
  packed_ = false;
  const bool erases = sizes_.delta && state != nullptr;
  if (erases) multiply(chunk, chunk.erase, state_tiles_, errors, row, Into::overwrite);
  if (outputs && state != nullptr) {
    multiply(chunk, chunk.query, state_tiles_, output_, row, Into::overwrite);
  }
  tiles_.residual({values, rows.value_row, erases ? errors : nullptr, row, errors, row, n, columns,
                   chunk.erase_decay});
  if (sizes_.delta) {
    kernels().solve_lower({chunk.solve, chunk.square_row, errors, row, errors, row, n, columns});
  }
}

void TileValues::multiply(const TileChunk& chunk, const TileMatrix& a, const TileMatrix& b,
                          float* c, Index c_row, Into into) const {
  tiles_.product({a, b, c, c_row, into, TileProduct::Shape::full, chunk.ahead});
}

void TileValues::outputs(const TileChunk& chunk, const ChunkRows& rows, int columns, bool live,
                         float* o, bool stream) {
  const int n = rows.count;
  const TileMatrix updates = chunk.over_tokens(update_tiles_).with_parts(parts_);
  // A tile multiplies the zeros of `seen` too, which would bring a NaN to the tokens before it.
  const int whole = tiles_.finite_rows(errors, row, n, columns);
  tiles_.pack_pairs({updates, errors, row, whole, columns, chunk.update_weight, chunk.ahead});
  packed_ = whole == n;
  // Whole tiles of outputs go to their place at once.
  const bool direct = whole == kChunk && columns % kTileInner == 0;
  tiles_.product({.a = chunk.seen,
                  .b = updates,
                  .c = direct ? o : output_,
                  .c_row = direct ? rows.value_row : row,
                  .shape = TileProduct::Shape::lower_left,
                  .ahead = chunk.ahead,
                  .from = live ? output_ : nullptr,
                  .from_row = row,
                  .scale = chunk.query_factor,
                  .stream = stream && direct && whole_lines(o, rows.value_row)});
  if (direct) return;
  if (whole < n) {
    chunk.seen_values(n, square_);
    for (int i = whole; i < n; ++i) {
      for (int j = whole; j <= i; ++j) square_[i * chunk.square_row + j] *= chunk.gain[j];
    }
    const Index at = static_cast<Index>(whole) * row;
    kernels().add_lower({square_ + static_cast<Index>(whole) * (chunk.square_row + 1),
                         chunk.square_row, errors + at, row, output_ + at, row, n - whole,
                         columns});
  }
  for (int i = 0; i < n; ++i) {
    std::copy_n(output_ + i * row, columns, o + i * rows.value_row);
  }
}

void TileValues::update(const TileChunk& chunk, int n, int columns, const float* state, float* next,
                        Index state_row) {
  const TileMatrix updates = chunk.over_tokens(update_tiles_).with_parts(chunk.state_parts);
  if (chunk.write_weight != nullptr) {
    tiles_.pack_pairs({updates, errors, row, n, columns, chunk.write_weight});
  } else if (!packed_) {
    tiles_.pack_pairs({updates, errors, row, n, columns, chunk.update_weight});
  }
  tiles_.product({chunk.write, updates, next, state_row, Into::overwrite, TileProduct::Shape::full,
                  chunk.ahead, state == nullptr && chunk.keep_writes ? next : state, state_row,
                  chunk.keep, chunk.keep_writes});
}

}  // namespace rankone::recurrence::cpu
