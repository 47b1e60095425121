#include "recurrence/cpu/tile_chunk.hpp"

#include <algorithm>

namespace rankone::recurrence::cpu {

TileMatrix take_tiles(Scratch& scratch, int outer, int inner, int parts) {
  TileMatrix matrix{nullptr, outer, inner, parts};
  matrix.data = reinterpret_cast<std::uint16_t*>(scratch.take(matrix.part_size() * parts / 2));
  return matrix;
}

TileChunk::TileChunk(const TwoKeySizes& sizes, For purpose, int parts, Scratch& scratch,
                     ChunkFactors* factors)
    : pairs(kChunk / kTileInner),
      square_row(leading(kChunk)),
      sizes_(sizes),
      tiles_(*tile_kernels()),
      parts_(parts),
      channel_(factors) {
  const int rows = kChunk / kTileRows;
  const int keys = round_up(sizes.d_k, kTileInner) / kTileInner;
  const int most = exact_parts(parts);
  for (TileMatrix* matrix : {&erase, &raw_write, &write_pairs_, &raw_query, &query}) {
    *matrix = take_tiles(scratch, rows, keys, most);
  }
  write = take_tiles(scratch, 2 * keys, pairs, most);
  seen = take_tiles(scratch, rows, pairs, most);
  for (float** square : {&read_dots, &seen_dots, &between, &solve}) {
    *square = scratch.rows(kChunk, kChunk);
  }
  for (float** row : {&gain, &prefix, &suffix, &factors_, &write_weight_}) {
    *row = scratch.rows(1, kChunk);
  }
  keep_ = scratch.take(round_up(sizes.d_k, kTileInner));
  if (sizes.decay == DecayKind::channel && factors == nullptr) {
    own_channel_.emplace(sizes, purpose, scratch);
  }
}

void TileChunk::build(const ChunkRows& rows, For purpose, bool same_keys) {
  const int n = rows.count;
  pairs = (n + kTileInner - 1) / kTileInner;
  for (TileMatrix* matrix : {&erase, &raw_write, &write_pairs_, &raw_query, &query, &seen}) {
    *matrix = of_tokens(*matrix);
  }
  seen = over_tokens(seen);
  write = over_tokens(write);
  state_parts = parts_;
  keep_writes = false;
  for (int i = 0; i < n; ++i) gain[i] = rows.b == nullptr ? 1.0F : rows.b[i * rows.b_row];
  update_weight = rows.b == nullptr ? nullptr : gain;
  if (sizes_.decay == DecayKind::channel) {
    channel(rows, purpose);
  } else {
    if (!same_keys) keys(rows, purpose);
    scalar(rows, purpose);
  }
  if (sizes_.delta) {
    TileLower lower = lower_of(read_dots, n);
    lower.factor = -1.0F;
    (purpose == For::gradient ? lower.row_factor : lower.column_factor) = update_weight;
    lower.to = solve;
    lower.to_row = square_row;
    float squares = 0.0F;
    lower.squares = &squares;
    tiles_.lower(lower);
    if (squares > kMostErased) state_parts = exact_parts(parts_);
  }
  if (purpose != For::gradient) write_rows(state_parts);
  if (purpose == For::state) return;
  TileLower lower = lower_of(seen_dots, n);
  lower.diagonal = true;
  lower.factor = sizes_.decay == DecayKind::channel ? 1.0F : sizes_.scale;
  lower.tiles = seen;
  tiles_.lower(lower);
}

TileLower TileChunk::lower_of(const float* dots, int n) const {
  TileLower lower{.from = dots, .from_row = square_row, .n = n};
  if (sizes_.decay != DecayKind::scalar) return lower;
  lower.between = between;
  lower.between_row = square_row;
  return lower;
}

void TileChunk::seen_values(int n, float* to) const {
  TileLower lower = lower_of(seen_dots, n);
  lower.diagonal = true;
  lower.factor = sizes_.decay == DecayKind::channel ? 1.0F : sizes_.scale;
  lower.to = to;
  lower.to_row = square_row;
  tiles_.lower(lower);
}

void TileChunk::pack_keys(const TileMatrix& to, const float* from, Index row, int n,
                          const float* factor) const {
  tiles_.pack_rows({to, from, row, n, sizes_.d_k, factor, ahead});
}

// What the value heads of one key head share.
void TileChunk::keys(const ChunkRows& rows, For purpose) {
  using Shape = TileProduct::Shape;
  const int n = rows.count;
  const bool one_key = rows.e == rows.w;
  if (one_key) raw_write.data = erase.data;
  pack_keys(raw_write, rows.w, rows.key_row, n, nullptr);
  tiles_.transpose(write_pairs_, raw_write);
  write_made_ = 0;
  if (sizes_.delta) {
    if (!one_key) pack_keys(erase, rows.e, rows.key_row, n, nullptr);
    tiles_.product(
        {erase, write_pairs_, read_dots, square_row, Into::overwrite, Shape::lower_result});
  }
  if (purpose == For::state) return;
  raw_query.parts = purpose == For::gradient ? exact_parts(parts_) : parts_;
  pack_keys(raw_query, rows.q, rows.key_row, n, nullptr);
  tiles_.product(
      {raw_query, write_pairs_, seen_dots, square_row, Into::overwrite, Shape::lower_result});
}

void TileChunk::scalar(const ChunkRows& rows, For purpose) {
  const int n = rows.count;
  erase_decay = write_weight = keep = query_factor = nullptr;
  if (rows.g != nullptr) {
    tiles_.scalar_decay({rows.g, rows.g_row, n, between, square_row, prefix, suffix});
    std::fill_n(keep_, round_up(sizes_.d_k, kTileInner), prefix[n - 1]);
    for (int i = 0; i < n; ++i) write_weight_[i] = gain[i] * suffix[i];
    keep = keep_;
    erase_decay = prefix;
    write_weight = write_weight_;
  }
  if (purpose != For::output) return;
  query = raw_query;
  std::fill_n(factors_, kChunk, sizes_.scale);
  for (int i = 0; i < n && rows.g != nullptr; ++i) factors_[i] *= prefix[i];
  query_factor = factors_;
}

void TileChunk::channel(const ChunkRows& rows, For purpose) {
  const int n = rows.count;
  ChunkFactors& f = channel_ != nullptr ? *channel_ : *own_channel_;
  erase_decay = write_weight = query_factor = nullptr;
  keep = keep_;
  // For the way back the factors are wanted in float32 too.
  const bool mild =
      purpose != For::gradient && tiles_.channel_decay({rows.g, rows.g_row, n, sizes_.d_k,
                                                        f.key_row, f.from_start, f.block_query});
  if (mild) {
    mild_channel(rows, f, purpose);
    return;
  }
  f.build(rows, purpose);
  keep_channels(f.keep);
  read_dots = f.read;
  seen_dots = f.seen;
  pack_keys(raw_write, f.write, f.key_row, n, nullptr);
  if (purpose != For::gradient) {
    tiles_.transpose(write_pairs_, raw_write);
    write_made_ = 0;
  }
  if (sizes_.delta) {
    std::fill_n(factors_, n, -1.0F);  // the sign of the erasure is in the factor
    pack_keys(erase, f.erase, f.key_row, n, factors_);
  }
  if (purpose == For::state) return;
  query.parts = purpose == For::gradient ? exact_parts(parts_) : parts_;
  pack_keys(query, f.query, f.key_row, n, nullptr);
}

// The keys as a left operand, from write_pairs_. Value heads of the same keys may want more parts.
void TileChunk::write_rows(int parts) {
  if (parts <= write_made_) return;
  write.parts = write_made_ = parts;
  tiles_.pairs_to_rows(write, write_pairs_);
}

void TileChunk::keep_channels(const float* from) {
  std::fill(std::copy_n(from, sizes_.d_k, keep_), keep_ + round_up(sizes_.d_k, kTileInner), 0.0F);
}

// The decay between two rows is that from the start to the later one by that from the start to the
// earlier one, so the interactions are products of tiles as they are without decay.
void TileChunk::mild_channel(const ChunkRows& rows, ChunkFactors& f, For purpose) {
  using Shape = TileProduct::Shape;
  const int n = rows.count;
  const float* back = f.block_query;
  read_dots = f.read;
  seen_dots = f.seen;
  keep_channels(f.from_start + (n - 1) * f.key_row);
  const auto pack = [&](const TileMatrix& to, const float* from, const float* decay,
                        const float* factor) {
    tiles_.pack_rows({to, from, rows.key_row, n, sizes_.d_k, factor, ahead, decay, f.key_row});
  };
  // What a token writes decays from it to the end: by the whole and the inverse of what comes
  // before.
  pack(raw_write, rows.w, back, nullptr);
  tiles_.transpose(write_pairs_, raw_write);
  write_made_ = 0;
  keep_writes = true;
  if (sizes_.delta) {
    pack(erase, rows.e, f.from_start, nullptr);
    tiles_.product(
        {erase, write_pairs_, f.read, square_row, Into::overwrite, Shape::lower_result, ahead});
  }
  if (purpose == For::state) return;
  query.parts = parts_;
  std::fill_n(factors_, n, sizes_.scale);
  pack(query, rows.q, f.from_start, factors_);
  tiles_.product(
      {query, write_pairs_, f.seen, square_row, Into::overwrite, Shape::lower_result, ahead});
}

}  // namespace rankone::recurrence::cpu
