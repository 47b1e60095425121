#include "recurrence/cpu/two_key_backward.hpp"

#include <algorithm>

namespace rankone::recurrence::cpu {

ChunkBackward::ChunkBackward(const TwoKeySizes& sizes, Scratch& scratch)
    : value_row(leading(sizes.padded_v())),
      key_row(leading(sizes.padded_k())),
      sizes_(sizes),
      factors_(sizes, ChunkFactors::For::gradient, scratch),
      span_(sizes, scratch) {
  const int chunk = sizes.chunk;
  for (float** rows : {&d_value, &residual_, &updates_, &d_output_, &solved_}) {
    *rows = scratch.rows(chunk, sizes.padded_v());
  }
  for (float** rows : {&d_query, &d_erase, &d_write, &d_gate, &query_back_, &erase_back_,
                       &write_back_, &anchor_, &anchored_}) {
    *rows = scratch.rows(chunk, sizes.padded_k());
  }
  for (float** square : {&d_seen_, &d_read_, &crossing_}) *square = scratch.rows(chunk, chunk);
  columns_ = scratch.rows(sizes.padded_v(), std::max(chunk, sizes.padded_k()));
  d_gain = scratch.rows(1, chunk);
  weights_ = scratch.rows(1, chunk);
  whole_ = scratch.rows(1, sizes.d_k);
  work_ = scratch.take(3 * kBlock * kPanel);
}

// The residual and U, from the state at the start of the chunk.
void ChunkBackward::solve_forward(const ChunkRows& rows, const float* state) {
  const Kernels& k = kernels();
  const ChunkFactors& f = factors_;
  const int n = rows.count;
  k.copy_rows(residual_, value_row, rows.v, rows.value_row, nullptr, n, sizes_.d_v);
  if (sizes_.delta) {
    k.product({f.erase, f.key_row, 1, state, value_row, residual_, value_row, n, sizes_.d_v,
               sizes_.d_k, Into::add});
  }
  k.copy_rows(updates_, value_row, residual_, value_row, f.gain, n, sizes_.d_v);
  if (sizes_.delta) {
    k.solve_lower({f.solve, f.square_row, updates_, value_row, updates_, value_row, n, sizes_.d_v});
  }
}

void ChunkBackward::advance(const ChunkRows& rows, const float* state, float* next) {
  const Kernels& k = kernels();
  k.copy_rows(residual_, value_row, rows.v, rows.value_row, nullptr, rows.count, sizes_.d_v);
  for (int first = 0; first < rows.count; first += kSpan) {
    span_.build(part_of(rows, first, std::min(kSpan, rows.count - first)), false);
    for (int column = 0; column < sizes_.d_v; column += kPanel) {
      for (int row = first; row < std::min(first + kSpan, rows.count); row += kBlock) {
        PanelBlock block = span_.block(row - first);
        block.v = residual_ + row * value_row + column;
        block.value_row = value_row;
        block.state = (row == 0 ? state : next) + column;
        block.next = next + column;
        block.state_row = block.next_row = value_row;
        block.work = work_;
        block.columns = round_up(std::min(kPanel, sizes_.d_v - column), kLine);
        k.panel_block(block);
      }
    }
  }
}

void ChunkBackward::run(const ChunkRows& rows, const float* d_o, const float* state,
                        float* d_state) {
  const int n = rows.count;
  factors_.build(rows, ChunkFactors::For::gradient);
  solve_forward(rows, state);
  kernels().copy_rows(d_output_, value_row, d_o, rows.value_row, nullptr, n, sizes_.d_v);
  solve_back(n, d_state);
  interactions(n);
  through_state(n, state, d_state);
  if (sizes_.decay == DecayKind::channel) {
    channel_keys_and_gates(n, state, d_state);
  } else {
    scalar_keys(n);
    if (sizes_.decay == DecayKind::scalar) gates(n, state, d_state);
  }
  state_back(n, d_state);
}

void ChunkBackward::channel_keys_and_gates(int n, const float* state, const float* d_state) {
  const Kernels& k = kernels();
  const ChunkFactors& f = factors_;
  channel_keys(n);
  gates(n, state, d_state);
  // The gates read the strict sums; what belongs to no decay joins after them.
  k.multiply_rows(Into::add, d_query, key_row, query_back_, key_row, f.from_start, key_row,
                  sizes_.scale, n, sizes_.d_k);
  if (sizes_.delta) {
    k.multiply_rows(Into::add, d_erase, key_row, erase_back_, key_row, f.from_start, key_row, -1.0F,
                    n, sizes_.d_k);
  }
  k.multiply_rows(Into::add, d_write, key_row, write_back_, key_row, f.to_end, key_row, 1.0F, n,
                  sizes_.d_k);
  for (int i = 0; i < n; ++i) weights_[i] = d_seen_[i * f.square_row + i];
  k.add_rows(d_query, key_row, f.raw_write, key_row, weights_, n, sizes_.d_k);
  k.add_rows(d_write, key_row, f.raw_query, key_row, weights_, n, sizes_.d_k);
}

// dU = write dS_C + seen^T dO; dR = T^T dU; dV = b dR.
void ChunkBackward::solve_back(int n, const float* d_state) {
  const Kernels& k = kernels();
  const ChunkFactors& f = factors_;
  k.product(
      {f.write, f.key_row, 1, d_state, value_row, solved_, value_row, n, sizes_.d_v, sizes_.d_k});
  k.add_lower_transposed(
      {f.seen, f.square_row, d_output_, value_row, solved_, value_row, n, sizes_.d_v});
  if (sizes_.delta) {
    k.solve_lower_transposed(
        {f.solve, f.square_row, solved_, value_row, solved_, value_row, n, sizes_.d_v});
  }
  k.copy_rows(d_value, value_row, solved_, value_row, f.gain, n, sizes_.d_v);
}

// The gradients of seen and read, and of the gain, which needs dR U^T before the gain enters.
void ChunkBackward::interactions(int n) {
  const Kernels& k = kernels();
  const ChunkFactors& f = factors_;
  const int square = f.square_row;
  const float scale = sizes_.decay == DecayKind::channel ? sizes_.scale : 1.0F;
  k.transpose(columns_, square, updates_, value_row, n, sizes_.d_v);
  k.lower_inner({d_output_, value_row, 1, columns_, square, d_seen_, square, n, n, sizes_.d_v});
  k.scale_lower({.from = d_seen_,
                 .from_row = square,
                 .to = d_seen_,
                 .to_row = square,
                 .n = n,
                 .diagonal = true,
                 .factor = scale});
  for (int i = 0; i < n; ++i) {
    d_gain[i] = k.dot(solved_ + i * value_row, residual_ + i * value_row, sizes_.d_v);
  }
  if (!sizes_.delta) return;
  k.lower_inner({solved_, value_row, 1, columns_, square, d_read_, square, n, n, sizes_.d_v});
  for (int i = 0; i < n; ++i) {
    d_gain[i] -= k.dot(d_read_ + i * square, f.read + i * square, i);
  }
  k.scale_lower({.from = d_read_,
                 .from_row = square,
                 .to = d_read_,
                 .to_row = square,
                 .n = n,
                 .factor = -1.0F,
                 .row_factor = f.gain});
}

// The gradients of the factors query (per unit of scale), erase and write, through the states.
void ChunkBackward::through_state(int n, const float* state, const float* d_state) {
  const Kernels& k = kernels();
  const auto rows_times_columns = [&](const float* rows, float* out) {
    k.product({rows, value_row, 1, columns_, key_row, out, key_row, n, sizes_.d_k, sizes_.d_v});
  };
  k.transpose(columns_, key_row, state, value_row, sizes_.d_k, sizes_.d_v);
  rows_times_columns(d_output_, query_back_);
  if (sizes_.delta) rows_times_columns(d_value, erase_back_);
  k.transpose(columns_, key_row, d_state, value_row, sizes_.d_k, sizes_.d_v);
  rows_times_columns(updates_, write_back_);
}

// Scalar decay: the factor of a pair is one number, so the sums over pairs are plain products.
void ChunkBackward::scalar_keys(int n) {
  const Kernels& k = kernels();
  const ChunkFactors& f = factors_;
  const int square = f.square_row;
  // What crosses the decays between j and i: the product of value and gradient of both triangles;
  // the scale is in seen.
  for (int i = 0; i < n; ++i) {
    float* crossing = crossing_ + i * square;
    const float* d_seen = d_seen_ + i * square;
    for (int j = 0; j < i; ++j) crossing[j] = d_seen[j] * f.seen[i * square + j];
    if (!sizes_.delta) continue;
    for (int j = 0; j < i; ++j) crossing[j] += d_read_[i * square + j] * f.read[i * square + j];
  }
  const auto decayed = [&](float* gradient, float factor, bool diagonal) {
    k.scale_lower({.from = gradient,
                   .from_row = square,
                   .to = gradient,
                   .to_row = square,
                   .n = n,
                   .diagonal = diagonal,
                   .between = f.between,
                   .between_row = square,
                   .factor = factor});
  };
  const auto start = [&](float* to, const float* back, const float* decay, float factor) {
    for (int i = 0; i < n; ++i) weights_[i] = factor * decay[i];
    k.copy_rows(to, key_row, back, key_row, weights_, n, sizes_.d_k);
  };
  decayed(d_seen_, sizes_.scale, true);
  start(d_query, query_back_, f.prefix, sizes_.scale);
  start(d_write, write_back_, f.suffix, 1.0F);
  k.add_lower({d_seen_, square, f.raw_write, key_row, d_query, key_row, n, sizes_.d_k});
  k.add_lower_transposed({d_seen_, square, f.raw_query, key_row, d_write, key_row, n, sizes_.d_k});
  if (!sizes_.delta) return;
  decayed(d_read_, 1.0F, false);
  start(d_erase, erase_back_, f.prefix, -1.0F);
  k.add_lower({d_read_, square, f.raw_write, key_row, d_erase, key_row, n, sizes_.d_k});
  k.add_lower_transposed({d_read_, square, f.raw_erase, key_row, d_write, key_row, n, sizes_.d_k});
}

// Per-channel decay: sums over pairs j < i, anchored like the interactions. Leaves in d_query,
// d_erase and d_write the strict sums, and in d_gate q dq + e de - w dw of them.
void ChunkBackward::channel_keys(int n) {
  const Kernels& k = kernels();
  const ChunkFactors& f = factors_;
  const Index size = static_cast<Index>(n) * key_row;
  std::fill_n(d_query, size, 0.0F);
  std::fill_n(d_erase, size, 0.0F);
  std::fill_n(d_write, size, 0.0F);
  channel_blocks(n);
  k.multiply_rows(Into::overwrite, anchored_, key_row, f.raw_query, key_row, d_query, key_row, 1.0F,
                  n, sizes_.d_k);
  if (sizes_.delta) {
    k.multiply_rows(Into::add, anchored_, key_row, f.raw_erase, key_row, d_erase, key_row, 1.0F, n,
                    sizes_.d_k);
  }
  k.multiply_rows(Into::add, anchored_, key_row, f.raw_write, key_row, d_write, key_row, -1.0F, n,
                  sizes_.d_k);
}

void ChunkBackward::channel_blocks(int n) {
  const Kernels& k = kernels();
  const ChunkFactors& f = factors_;
  const int square = f.square_row;
  const int d_k = sizes_.d_k;
  for (int first = 0; first < n; first += kBlock) {
    const int count = std::min(kBlock, n - first);
    const Index at = static_cast<Index>(first) * key_row;
    const Index pairs = static_cast<Index>(first) * square;
    if (first > 0) {
      k.multiply_rows(Into::overwrite, anchored_, key_row, f.raw_write, key_row, anchor_, key_row,
                      1.0F, first, d_k);
      const auto readers = [&](const float* gradient, float* out) {
        k.product({gradient + pairs, square, 1, anchored_, key_row, out + at, key_row, count, d_k,
                   first});
        k.multiply_rows(Into::overwrite, out + at, key_row, out + at, key_row, f.prefix + at,
                        key_row, 1.0F, count, d_k);
      };
      readers(d_seen_, d_query);
      if (sizes_.delta) readers(d_read_, d_erase);
      const auto writers = [&](const float* gradient, const float* reader, Into into) {
        k.product({gradient + pairs, 1, square, reader + at, key_row, anchored_, key_row, first,
                   d_k, count, into});
      };
      writers(d_seen_, f.block_query, Into::overwrite);
      if (sizes_.delta) writers(d_read_, f.block_erase, Into::add);
      k.multiply_rows(Into::add, d_write, key_row, anchored_, key_row, anchor_, key_row, 1.0F,
                      first, d_k);
      const float* whole_block = f.prefix + at + (count - 1) * static_cast<Index>(key_row);
      k.multiply_rows(Into::overwrite, anchor_, key_row, anchor_, key_row, whole_block, 0, 1.0F,
                      first, d_k);
    }
    k.block_interaction_grad({f.step + at, sizes_.delta ? f.raw_erase + at : nullptr,
                              f.raw_query + at, f.raw_write + at, key_row, key_row, key_row,
                              key_row, d_read_ + pairs + first, d_seen_ + pairs + first, square,
                              d_erase + at, d_query + at, d_write + at, key_row, count, d_k});
    k.copy_rows(anchor_ + at, key_row, f.suffix + at, key_row, nullptr, count, d_k);
  }
}

void ChunkBackward::gates(int n, const float* state, const float* d_state) {
  const Kernels& k = kernels();
  const ChunkFactors& f = factors_;
  const bool channel = sizes_.decay == DecayKind::channel;
  float total = 0.0F;
  for (int d = 0; d < sizes_.d_k; ++d) {
    const Index row = static_cast<Index>(d) * value_row;
    whole_[d] = f.keep[d] * k.dot(state + row, d_state + row, sizes_.d_v);
    total += whole_[d];
  }
  if (channel) {
    std::fill(whole_ + sizes_.d_k, whole_ + round_up(sizes_.d_k, kLine), 0.0F);
  } else {
    whole_[0] = total;
  }
  const DecayGrad grad{.query = f.query,
                       .query_back = query_back_,
                       .erase = sizes_.delta ? f.erase : nullptr,
                       .erase_back = erase_back_,
                       .write = f.write,
                       .write_back = write_back_,
                       .row = key_row,
                       .whole = whole_,
                       .inner = channel ? anchored_ : crossing_,
                       .inner_row = channel ? key_row : f.square_row,
                       .out = d_gate,
                       .out_row = channel ? key_row : 1,
                       .n = n,
                       .channels = sizes_.d_k};
  if (channel) {
    k.channel_decay_grad(grad);
  } else {
    k.scalar_decay_grad(grad);
  }
}

// dS_0 = keep dS_C + query^T dO + erase^T dV, the sign of the erasure being in the factor.
void ChunkBackward::state_back(int n, float* d_state) {
  const Kernels& k = kernels();
  const ChunkFactors& f = factors_;
  k.product({f.query, 1, f.key_row, d_output_, value_row, d_state, value_row, sizes_.d_k,
             sizes_.d_v, n, Into::add, f.keep});
  if (!sizes_.delta) return;
  k.product({f.erase, 1, f.key_row, d_value, value_row, d_state, value_row, sizes_.d_k, sizes_.d_v,
             n, Into::add});
}

}  // namespace rankone::recurrence::cpu
