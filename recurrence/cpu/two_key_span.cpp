#include "recurrence/cpu/two_key_span.hpp"

#include <algorithm>

namespace rankone::recurrence::cpu {

SpanFactors::SpanFactors(const TwoKeySizes& sizes, Scratch& scratch)
    : sizes_(sizes), key_row_(leading(sizes.d_k)) {
  readers_ = scratch.rows(2 * kSpan, sizes.d_k);
  write_ = scratch.rows(kSpan, sizes.d_k);
  keep_ = scratch.rows(kSpan / kBlock, sizes.d_k);
  solve_ = scratch.take(kSpan * kBlock);
  seen_ = scratch.take(kSpan * kBlock);
  for (float** column : {&gain_, &read_factor_, &seen_factor_, &write_factor_, &prefix_}) {
    *column = scratch.take(kSpan);
  }
  between_ = scratch.take(kBlock * kBlock);
  raw_query_ = raw_erase_ = raw_write_ = step_ = nullptr;
  if (sizes.decay != DecayKind::channel) return;
  for (float** rows : {&raw_query_, &raw_erase_, &raw_write_, &step_}) {
    *rows = scratch.rows(kBlock, sizes.d_k);
  }
}

SpanFactors::Block SpanFactors::at(int first) const {
  const Index row = static_cast<Index>(first) * key_row_;
  return {readers_ + 2 * row, write_ + row, keep_ + row / kBlock};
}

void SpanFactors::build(const ChunkRows& rows, bool outputs) {
  rows_ = rows.count;
  outputs_ = outputs;
  one_key_ = sizes_.decay != DecayKind::channel && rows.e == rows.w;
  for (int i = 0; i < rows.count; ++i) {
    gain_[i] = rows.b == nullptr ? 1.0F : rows.b[i * rows.b_row];
  }
  for (int first = 0; first < rows.count; first += kBlock) {
    const ChunkRows part = part_of(rows, first, std::min(kBlock, rows.count - first));
    if (sizes_.decay == DecayKind::channel) {
      build_channel(part, at(first), first);
    } else {
      build_scalar(part, at(first), first);
    }
  }
}

// A scalar decay multiplies rows of what the keys read and write, so the keys stay as they are.
void SpanFactors::build_scalar(const ChunkRows& rows, const Block& block, int first) {
  const Kernels& k = kernels();
  const int n = rows.count;
  const auto copy = [&](float* to, const float* from, Index from_row) {
    k.copy_rows(to, key_row_, from, from_row, nullptr, n, sizes_.d_k);
  };
  float* query = block.readers + (sizes_.delta ? n * key_row_ : 0);
  if (sizes_.delta && !rows.e_copied) copy(block.readers, rows.e, rows.key_row);
  if (outputs_) copy(query, rows.q, rows.q_row);
  const float* write = one_key_ ? block.readers : block.write;
  if (!one_key_ && rows.w != block.write) copy(block.write, rows.w, rows.w_row);

  k.scalar_decay({rows.g, rows.g_row, n, between_, kBlock, prefix_, write_factor_ + first});
  std::fill_n(block.keep, sizes_.d_k, prefix_[n - 1]);
  for (int i = 0; i < n; ++i) {
    read_factor_[first + i] = -prefix_[i];
    seen_factor_[first + i] = sizes_.scale * prefix_[i];
  }
  if (sizes_.delta) {
    k.block_dots({block.readers, write, key_row_, solve_ + first * kBlock, n, sizes_.d_k});
  }
  if (outputs_) k.block_dots({query, write, key_row_, seen_ + first * kBlock, n, sizes_.d_k});
  finish(rows, between_, first);
}

void SpanFactors::build_channel(const ChunkRows& rows, const Block& block, int first) {
  const Kernels& k = kernels();
  const int n = rows.count;
  float* query = block.readers + (sizes_.delta ? n * key_row_ : 0);
  k.block_keys({.q = outputs_ ? rows.q : nullptr,
                .q_row = rows.q_row,
                .e = rows.e,
                .key_row = rows.key_row,
                .w = rows.w,
                .w_row = rows.w_row,
                .g = rows.g,
                .g_row = rows.g_row,
                .raw_query = raw_query_,
                .raw_erase = raw_erase_,
                .raw_write = raw_write_,
                .query = query,
                .erase = block.readers,
                .write = block.write,
                .step = step_,
                .keep = block.keep,
                .row = key_row_,
                .n = n,
                .channels = sizes_.d_k});
  std::fill_n(read_factor_ + first, n, -1.0F);
  std::fill_n(seen_factor_ + first, n, sizes_.scale);
  if (!sizes_.delta && !outputs_) return;
  k.block_interaction({step_, sizes_.delta ? raw_erase_ : nullptr, outputs_ ? raw_query_ : nullptr,
                       raw_write_, key_row_, key_row_, key_row_, key_row_, solve_ + first * kBlock,
                       seen_ + first * kBlock, kBlock, kBlock, n, sizes_.d_k});
  finish(rows, nullptr, first);
}

// Gain, scale and, if scalar, the decay enter the interactions.
void SpanFactors::finish(const ChunkRows& rows, const float* between, int first) {
  const auto scale = [&](float* square, float factor, const float* row_factor) {
    kernels().scale_lower({.from = square + first * kBlock,
                           .from_row = kBlock,
                           .to = square + first * kBlock,
                           .to_row = kBlock,
                           .n = rows.count,
                           .diagonal = true,
                           .between = between,
                           .between_row = kBlock,
                           .factor = factor,
                           .row_factor = row_factor});
  };
  if (sizes_.delta) scale(solve_, -1.0F, gain_ + first);
  if (outputs_) scale(seen_, sizes_.scale, nullptr);
}

PanelBlock SpanFactors::block(int first) const {
  const Block factors = at(first);
  PanelBlock block{};
  block.readers = factors.readers;
  block.write = one_key_ ? factors.readers : factors.write;
  block.key_row = key_row_;
  block.erases = sizes_.delta;
  block.outputs = outputs_;
  block.solve = solve_ + first * kBlock;
  block.seen = seen_ + first * kBlock;
  block.gain = gain_ + first;
  block.read_factor = read_factor_ + first;
  block.seen_factor = seen_factor_ + first;
  block.write_factor = sizes_.decay == DecayKind::scalar ? write_factor_ + first : nullptr;
  block.keep = factors.keep;
  block.n = std::min(kBlock, rows_ - first);
  block.channels = sizes_.d_k;
  return block;
}

}  // namespace rankone::recurrence::cpu
