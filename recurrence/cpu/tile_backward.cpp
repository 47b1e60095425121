#include "recurrence/cpu/tile_backward.hpp"

#include <algorithm>

namespace rankone::recurrence::cpu {
namespace {

constexpr int kRowTiles = kChunk / kTileRows;
constexpr int kPairs = kChunk / kTileInner;

}  // namespace

TileBackward::TileBackward(const TwoKeySizes& sizes, int parts, Scratch& scratch)
    : results(sizes, scratch),
      sizes_(sizes),
      tiles_(*tile_kernels()),
      parts_(parts),
      chunk_(sizes, TileChunk::For::gradient, parts, scratch, &results.factors_),
      values_(sizes, sizes.d_v, parts, scratch) {
  chunk_.ahead = &ahead;
  const int keys = sizes.padded_k() / kTileInner;
  const int values = sizes.padded_v() / kTileInner;
  const auto take = [&](int outer, int inner) {
    return take_tiles(scratch, outer, inner, exact_parts(parts));
  };
  state_rows_ = take(2 * keys, values);
  state_columns_ = take(2 * keys, values);
  state_pairs_ = take(2 * values, keys);
  for (TileMatrix* rows : {&d_output_rows_, &residual_rows_, &update_rows_, &update_columns_}) {
    *rows = take(kRowTiles, values);
  }
  value_pairs_ = take(2 * values, kPairs);
  for (TileMatrix* pairs : {&write_pairs_, &query_pairs_, &erase_pairs_, &key_columns_}) {
    *pairs = take(2 * keys, kPairs);
  }
  for (TileMatrix* square : {&d_seen_rows_, &d_read_rows_, &square_pairs_, &square_columns_}) {
    *square = take(kRowTiles, kPairs);
  }
}

void TileBackward::advance(const ChunkRows& rows, const float* state, float* next, float* errors) {
  chunk_.build(rows, TileChunk::For::state, false);
  values_.errors = errors;
  values_.row = results.value_row;
  values_.solve(chunk_, rows, rows.v, sizes_.d_v, state, results.value_row, false);
  if (next == nullptr) return;
  values_.update(chunk_, rows.count, sizes_.d_v, state, next, results.value_row);
}

void TileBackward::run(const ChunkRows& rows, const float* d_o, const float* state,
                       const float* errors, float* d_state) {
  const int n = rows.count;
  chunk_.build(rows, TileChunk::For::gradient, false);
  for (TileMatrix* matrix : {&d_output_rows_, &residual_rows_, &update_rows_, &update_columns_,
                             &d_seen_rows_, &d_read_rows_, &square_pairs_, &square_columns_}) {
    *matrix = chunk_.of_tokens(*matrix);
  }
  for (TileMatrix* matrix :
       {&value_pairs_, &write_pairs_, &query_pairs_, &erase_pairs_, &key_columns_, &d_seen_rows_,
        &d_read_rows_, &square_pairs_, &square_columns_}) {
    *matrix = chunk_.over_tokens(*matrix);
  }
  tiles_.pack_rows({state_rows_, d_state, results.value_row, sizes_.d_k, sizes_.d_v});
  solve_back(rows, d_o, errors);
  interactions(rows, errors);
  through_state(state);
  if (sizes_.decay == DecayKind::channel) {
    results.channel_keys_and_gates(n, state, d_state);
  } else {
    scalar_keys(rows);
    if (sizes_.decay == DecayKind::scalar) scalar_gates(rows, state, d_state);
  }
  state_back(rows, d_o, d_state);
}

// From dS_C: dU = write dS_C + seen^T dO, and from it what is left behind the solve; the gradients
// of value and gain.
void TileBackward::solve_back(const ChunkRows& rows, const float* d_o, const float* errors) {
  const Kernels& k = kernels();
  const int n = rows.count;
  const int v_row = results.value_row;
  float* solved = results.solved_;
  const TileMatrix state_pairs = state_pairs_.with_parts(chunk_.state_parts);
  tiles_.rows_to_pairs(state_pairs, state_rows_);
  multiply(chunk_.raw_write, state_pairs, solved, v_row);
  if (sizes_.decay == DecayKind::scalar) {
    k.copy_rows(solved, v_row, solved, v_row, chunk_.suffix, n, sizes_.d_v);
  }
  tiles_.pack_rows({d_output_rows_, d_o, rows.value_row, n, sizes_.d_v});
  tiles_.rows_to_pairs(value_pairs_, d_output_rows_);
  tiles_.rows_to_pairs(square_pairs_, chunk_.seen);
  tiles_.transpose(square_columns_, square_pairs_);
  multiply(square_columns_, value_pairs_, solved, v_row, Into::add, TileProduct::Shape::upper_left);
  if (sizes_.delta) {
    k.solve_lower_transposed(
        {chunk_.solve, chunk_.square_row, solved, v_row, solved, v_row, n, sizes_.d_v});
  }
  for (int i = 0; i < n; ++i) {
    results.d_gain[i] = k.dot(solved + i * v_row, errors + i * v_row, sizes_.d_v);
  }
  k.copy_rows(results.d_value, v_row, solved, v_row, chunk_.gain, n, sizes_.d_v);
}

// The gradients of seen and read.
void TileBackward::interactions(const ChunkRows& rows, const float* errors) {
  using Shape = TileProduct::Shape;
  const int n = rows.count;
  const int v_row = results.value_row;
  const int square = chunk_.square_row;
  const bool channel = sizes_.decay == DecayKind::channel;
  tiles_.pack_rows({update_rows_, errors, v_row, n, sizes_.d_v, chunk_.update_weight});
  tiles_.transpose(update_columns_, update_rows_);
  TileLower lower{};
  lower.n = n;
  lower.from_row = lower.to_row = lower.between_row = square;
  lower.between = sizes_.decay == DecayKind::scalar ? chunk_.between : nullptr;
  tiles_.product({d_output_rows_, update_columns_, results.d_seen_, square, Into::overwrite,
                  Shape::lower_result});
  lower.from = lower.to = results.d_seen_;
  lower.diagonal = true;
  lower.factor = sizes_.scale;
  if (!channel) lower.tiles = d_seen_rows_;
  tiles_.lower(lower);
  if (!sizes_.delta) return;
  tiles_.pack_rows({residual_rows_, results.d_value, v_row, n, sizes_.d_v});
  tiles_.product({residual_rows_, update_columns_, results.d_read_, square, Into::overwrite,
                  Shape::lower_result});
  lower.from = lower.to = results.d_read_;
  lower.diagonal = false;
  lower.factor = -1.0F;
  if (!channel) lower.tiles = d_read_rows_;
  tiles_.lower(lower);
}

// The gradients of the factors query (per unit of scale), erase and write, through the states.
void TileBackward::through_state(const float* state) {
  const int k_row = results.key_row;
  tiles_.transpose(state_columns_, state_rows_);  // dS_C^T
  multiply(update_rows_, state_columns_, results.write_back_, k_row);
  const TileMatrix columns = state_columns_.with_parts(parts_);
  tiles_.pack_rows(
      {state_rows_.with_parts(parts_), state, results.value_row, sizes_.d_k, sizes_.d_v});
  tiles_.transpose(columns, state_rows_);
  multiply(d_output_rows_, columns, results.query_back_, k_row);
  if (sizes_.delta) multiply(residual_rows_, columns, results.erase_back_, k_row);
}

void TileBackward::multiply(const TileMatrix& a, const TileMatrix& b, float* out, Index row,
                            Into into, TileProduct::Shape shape) {
  tiles_.product({a, b, out, row, into, shape, &ahead});
}

void TileBackward::scalar_keys(const ChunkRows& rows) {
  using Shape = TileProduct::Shape;
  const int n = rows.count;
  const int k_row = results.key_row;
  float* weights = results.weights_;
  const auto start = [&](float* to, const float* back, const float* decay, float factor) {
    for (int i = 0; i < n; ++i) weights[i] = decay == nullptr ? factor : factor * decay[i];
    kernels().copy_rows(to, k_row, back, k_row, weights, n, sizes_.padded_k());
  };
  const bool decays = sizes_.decay == DecayKind::scalar;
  const float* prefix = decays ? chunk_.prefix : nullptr;
  const TileMatrix write_pairs = write_pairs_.with_parts(parts_);
  tiles_.rows_to_pairs(write_pairs, chunk_.raw_write);
  tiles_.rows_to_pairs(query_pairs_, chunk_.raw_query);
  start(results.d_query, results.query_back_, prefix, sizes_.scale);
  start(results.d_write, results.write_back_, decays ? chunk_.suffix : nullptr, 1.0F);
  multiply(d_seen_rows_, write_pairs, results.d_query, k_row, Into::add, Shape::lower_left);
  tiles_.rows_to_pairs(square_pairs_, d_seen_rows_);
  tiles_.transpose(square_columns_, square_pairs_);
  multiply(square_columns_, query_pairs_, results.d_write, k_row, Into::add, Shape::upper_left);
  if (!sizes_.delta) return;
  tiles_.rows_to_pairs(erase_pairs_, chunk_.erase);
  start(results.d_erase, results.erase_back_, prefix, -1.0F);
  multiply(d_read_rows_, write_pairs, results.d_erase, k_row, Into::add, Shape::lower_left);
  tiles_.rows_to_pairs(square_pairs_, d_read_rows_);
  tiles_.transpose(square_columns_, square_pairs_);
  multiply(square_columns_, erase_pairs_, results.d_write, k_row, Into::add, Shape::upper_left);
}

// In the crossing form (DecayGrad).
void TileBackward::scalar_gates(const ChunkRows& rows, const float* state, const float* d_state) {
  const Kernels& k = kernels();
  const int n = rows.count;
  const int square = chunk_.square_row;
  const int k_row = results.key_row;
  float* crossing = results.crossing_;
  k.multiply_rows(Into::overwrite, crossing, square, results.d_seen_, square, chunk_.seen_dots,
                  square, 1.0F, n, n);
  if (sizes_.delta) {
    k.multiply_rows(Into::add, crossing, square, results.d_read_, square, chunk_.read_dots, square,
                    1.0F, n, n);
  }
  float whole = 0.0F;
  for (int d = 0; d < sizes_.d_k; ++d) {
    const Index at = static_cast<Index>(d) * results.value_row;
    whole += k.dot(state + at, d_state + at, sizes_.d_v);
  }
  whole *= chunk_.prefix[n - 1];
  float readers = 0.0F;
  float below[kChunk] = {};  // crossing(i, j) summed over i >= t, for every j
  for (int t = n - 1; t >= 0; --t) {
    const float prefix = chunk_.prefix[t];
    readers += sizes_.scale * prefix *
               k.dot(rows.q + t * rows.key_row, results.query_back_ + t * k_row, sizes_.d_k);
    if (sizes_.delta) {
      readers -=
          prefix * k.dot(rows.e + t * rows.key_row, results.erase_back_ + t * k_row, sizes_.d_k);
    }
    float inside = 0.0F;
    for (int j = 0; j < t; ++j) below[j] += crossing[t * square + j];
    for (int j = 0; j < t; ++j) inside += below[j];
    results.d_gate[t] = whole + readers + inside;
  }
  float writers = 0.0F;
  for (int t = 0; t < n; ++t) {
    results.d_gate[t] += writers;
    writers += chunk_.suffix[t] *
               k.dot(rows.w + t * rows.key_row, results.write_back_ + t * k_row, sizes_.d_k);
  }
}

// dS_0 = keep dS_C + query^T dO - erase^T dR
void TileBackward::state_back(const ChunkRows& rows, const float* d_o, float* d_state) {
  const int n = rows.count;
  const int v_row = results.value_row;
  const bool channel = sizes_.decay == DecayKind::channel;
  float* weights = results.weights_;
  const float* keep = chunk_.keep;  // with the first product
  const TileMatrix key_columns = key_columns_.with_parts(chunk_.state_parts);
  const TileMatrix value_pairs = value_pairs_.with_parts(chunk_.state_parts);
  const auto add = [&](const TileMatrix& keys, const float* values, Index row, float factor) {
    tiles_.transpose(key_columns, keys);
    for (int i = 0; i < n; ++i) {
      weights[i] = sizes_.decay == DecayKind::scalar ? factor * chunk_.prefix[i] : factor;
    }
    tiles_.pack_pairs({value_pairs, values, row, n, sizes_.d_v, weights});
    tiles_.product({key_columns, value_pairs, d_state, v_row, Into::overwrite,
                    TileProduct::Shape::full, &ahead, d_state, v_row, keep});
    keep = nullptr;
  };
  if (channel) tiles_.rows_to_pairs(query_pairs_, chunk_.query);
  add(query_pairs_, d_o, rows.value_row, channel ? 1.0F : sizes_.scale);
  if (!sizes_.delta) return;
  if (channel) tiles_.rows_to_pairs(erase_pairs_, chunk_.erase);
  add(erase_pairs_, results.d_value, v_row, -1.0F);
}

}  // namespace rankone::recurrence::cpu
