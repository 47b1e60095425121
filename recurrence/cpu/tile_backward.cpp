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
  tiles_.pack_rows({d_output_rows_, d_o, rows.value_row, n, sizes_.d_v});
  tiles_.rows_to_pairs(value_pairs_, d_output_rows_);
  tiles_.rows_to_pairs(square_pairs_, chunk_.seen);
  tiles_.transpose(square_columns_, square_pairs_);
  multiply_onto(solved, sizes_.decay == DecayKind::scalar ? chunk_.suffix : nullptr,
                {.a = square_columns_,
                 .b = value_pairs_,
                 .c = solved,
                 .c_row = v_row,
                 .shape = TileProduct::Shape::upper_left});
  if (sizes_.delta) {
    k.solve_lower_transposed(
        {chunk_.solve, chunk_.square_row, solved, v_row, solved, v_row, n, sizes_.d_v});
  }
  tiles_.row_dots({results.d_gain, solved, v_row, errors, v_row, n, sizes_.d_v});
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
  if (!channel) lower.tiles = d_read_rows_.with_parts(parts_);
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

void TileBackward::multiply(const TileMatrix& a, const TileMatrix& b, float* out, Index row) {
  tiles_.product({.a = a, .b = b, .c = out, .c_row = row, .ahead = &ahead});
}

void TileBackward::multiply_onto(const float* from, const float* scale, TileProduct product) {
  product.ahead = &ahead;
  product.from = from;
  product.from_row = product.c_row;
  product.scale = scale;
  tiles_.product(product);
}

void TileBackward::scalar_keys(const ChunkRows& rows) {
  using Shape = TileProduct::Shape;
  const int k_row = results.key_row;
  float* weights = results.weights_;
  const bool decays = sizes_.decay == DecayKind::scalar;
  const auto readers = [&](float factor) {
    std::fill_n(weights, kChunk, factor);
    for (int i = 0; i < rows.count && decays; ++i) weights[i] *= chunk_.prefix[i];
    return weights;
  };
  const TileMatrix write_pairs = write_pairs_.with_parts(parts_);
  tiles_.rows_to_pairs(write_pairs, chunk_.raw_write);
  tiles_.rows_to_pairs(query_pairs_, chunk_.raw_query);
  multiply_onto(results.query_back_, readers(sizes_.scale),
                {.a = d_seen_rows_,
                 .b = write_pairs,
                 .c = results.d_query,
                 .c_row = k_row,
                 .shape = Shape::lower_left});
  tiles_.rows_to_pairs(square_pairs_, d_seen_rows_);
  tiles_.transpose(square_columns_, square_pairs_);
  TileProduct d_write{.a = square_columns_,
                      .b = query_pairs_,
                      .c = results.d_write,
                      .c_row = k_row,
                      .shape = Shape::upper_left};
  multiply_onto(results.write_back_, decays ? chunk_.suffix : nullptr, d_write);
  if (!sizes_.delta) return;
  // The state wants them in as many parts as it has.
  tiles_.rows_to_pairs(erase_pairs_.with_parts(std::max(parts_, chunk_.state_parts)), chunk_.erase);
  multiply_onto(results.erase_back_, readers(-1.0F),
                {.a = d_read_rows_,
                 .b = write_pairs,
                 .c = results.d_erase,
                 .c_row = k_row,
                 .shape = Shape::lower_left});
  const TileMatrix read_columns = square_columns_.with_parts(parts_);
  tiles_.rows_to_pairs(square_pairs_.with_parts(parts_), d_read_rows_);
  tiles_.transpose(read_columns, square_pairs_);
  d_write.a = read_columns;
  d_write.b = erase_pairs_;
  multiply_onto(results.d_write, nullptr, d_write);
}

// In the crossing form (DecayGrad).
void TileBackward::scalar_gates(const ChunkRows& rows, const float* state, const float* d_state) {
  const int n = rows.count;
  const int v_row = results.value_row;
  float inside[kChunk];
  tiles_.crossing({results.d_seen_, chunk_.seen_dots, sizes_.delta ? results.d_read_ : nullptr,
                   chunk_.read_dots, chunk_.square_row, n, inside});
  float* of_state = results.whole_;
  tiles_.row_dots({of_state, state, v_row, d_state, v_row, sizes_.d_k, sizes_.d_v});
  float whole = 0.0F;
  for (int d = 0; d < sizes_.d_k; ++d) whole += of_state[d];
  whole *= chunk_.prefix[n - 1];
  const auto dots = [&](float* to, const float* keys, const float* back) {
    tiles_.row_dots({to, keys, rows.key_row, back, results.key_row, n, sizes_.d_k});
  };
  float of_query[kChunk], of_write[kChunk];
  float of_erase[kChunk] = {};
  dots(of_query, rows.q, results.query_back_);
  dots(of_write, rows.w, results.write_back_);
  if (sizes_.delta) dots(of_erase, rows.e, results.erase_back_);
  float readers = 0.0F;
  for (int t = n - 1; t >= 0; --t) {
    readers += chunk_.prefix[t] * (sizes_.scale * of_query[t] - of_erase[t]);
    results.d_gate[t] = whole + readers + inside[t];
  }
  float writers = 0.0F;
  for (int t = 0; t < n; ++t) {
    results.d_gate[t] += writers;
    writers += chunk_.suffix[t] * of_write[t];
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
