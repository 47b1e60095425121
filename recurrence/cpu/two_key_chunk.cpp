#include "recurrence/cpu/two_key_chunk.hpp"

#include <algorithm>

namespace rankone::recurrence::cpu {
namespace {

const float* row_of(const Tensor& tensor, Index offset) {
  return tensor.defined() ? tensor.data<float>() + offset : nullptr;
}

}  // namespace

TwoKeySizes::TwoKeySizes(const TwoKeyShape& shape, const TwoKey& inputs, int chunk_rows)
    : d_k(static_cast<int>(shape.d_k)),
      d_v(static_cast<int>(shape.d_v)),
      chunk(chunk_rows),
      decay(!inputs.g.defined()   ? DecayKind::none
            : shape.channel_decay ? DecayKind::channel
                                  : DecayKind::scalar),
      delta(inputs.e.defined()),
      scale(static_cast<float>(inputs.scale)) {}

ChunkRows chunk_rows(const TwoKeyShape& shape, const TwoKey& inputs, Index first, int count,
                     Index head) {
  ChunkRows rows{};
  rows.count = count;
  rows.key_row = rows.q_row = rows.w_row = shape.heads * shape.d_k;
  const Index key = first * rows.key_row + head / shape.group() * shape.d_k;
  rows.q = row_of(inputs.q, key);
  rows.e = row_of(inputs.e, key);
  rows.w = row_of(inputs.w, key);
  rows.value_row = shape.value_heads * shape.d_v;
  rows.v = row_of(inputs.v, first * rows.value_row + head * shape.d_v);
  const Index channels = shape.channel_decay ? shape.d_k : 1;
  rows.g_row = shape.value_heads * channels;
  rows.g = row_of(inputs.g, first * rows.g_row + head * channels);
  rows.b_row = shape.value_heads;
  rows.b = row_of(inputs.b, first * rows.b_row + head);
  return rows;
}

ChunkRows part_of(const ChunkRows& rows, int first, int count) {
  ChunkRows part = rows;
  const auto ahead = [first](const float*& from, Index row) {
    if (from != nullptr) from += first * row;
  };
  part.count = count;
  ahead(part.q, rows.q_row);
  ahead(part.e, rows.key_row);
  ahead(part.w, rows.w_row);
  ahead(part.v, rows.value_row);
  ahead(part.g, rows.g_row);
  ahead(part.b, rows.b_row);
  return part;
}

ChunkFactors::ChunkFactors(const TwoKeySizes& sizes, For most, Scratch& scratch)
    : key_row(leading(sizes.padded_k())), square_row(leading(sizes.chunk)), sizes_(sizes) {
  const int chunk = sizes.chunk;
  const auto keys = [&] { return scratch.rows(chunk, sizes.padded_k()); };
  const auto square = [&] { return scratch.rows(chunk, chunk); };
  erase = keys();
  query = keys();
  write = keys();
  read = square();
  solve = square();
  seen = square();
  keep = scratch.rows(1, sizes.d_k);
  gain = scratch.rows(1, chunk);
  columns_ = scratch.rows(sizes.d_k, chunk);
  factors_ = scratch.rows(1, chunk);
  if (sizes.decay != DecayKind::channel) {
    between = square();
    prefix = scratch.rows(1, chunk);
    suffix = scratch.rows(1, chunk);
    step = from_start = to_end = gates_ = nullptr;
    raw_erase = raw_query = raw_write = block_erase = block_query = nullptr;
    if (most != For::gradient) return;
    for (float** rows : {&raw_erase, &raw_query, &raw_write}) *rows = keys();
    return;
  }
  between = nullptr;
  for (float** rows : {&prefix, &suffix, &step, &from_start, &to_end, &gates_, &raw_erase,
                       &raw_query, &raw_write, &block_erase, &block_query}) {
    *rows = keys();
  }
}

void ChunkFactors::build(const ChunkRows& rows, For purpose) {
  for (int i = 0; i < rows.count; ++i) {
    gain[i] = rows.b == nullptr ? 1.0F : rows.b[i * rows.b_row];
  }
  if (sizes_.decay == DecayKind::channel) {
    build_channel(rows, purpose);
  } else {
    build_scalar(rows, purpose);
  }
  if (!sizes_.delta) return;
  kernels().scale_lower({.from = read,
                         .from_row = square_row,
                         .to = solve,
                         .to_row = square_row,
                         .n = rows.count,
                         .factor = -1.0F,
                         .row_factor = gain});
}

void ChunkFactors::build_scalar(const ChunkRows& rows, For purpose) {
  const Kernels& k = kernels();
  const int n = rows.count;
  const int d_k = sizes_.d_k;
  k.scalar_decay({rows.g, rows.g_row, n, between, square_row, prefix, suffix});
  const auto keys = [&](float* to, const float* from, Index from_row, const float* decay,
                        float sign) {
    for (int i = 0; i < n; ++i) factors_[i] = sign * decay[i];
    k.copy_rows(to, key_row, from, from_row, factors_, n, d_k);
  };
  keys(write, rows.w, rows.w_row, suffix, 1.0F);
  std::fill(keep, keep + d_k, prefix[n - 1]);
  if (!sizes_.delta && purpose == For::state) return;

  k.transpose(columns_, square_row, rows.w, rows.w_row, n, d_k);
  const auto interact = [&](const float* reader, Index reader_row, float* out, float factor,
                            bool diagonal) {
    k.lower_inner({reader, reader_row, 1, columns_, square_row, out, square_row, n, n, d_k});
    k.scale_lower({.from = out,
                   .from_row = square_row,
                   .to = out,
                   .to_row = square_row,
                   .n = n,
                   .diagonal = diagonal,
                   .between = between,
                   .between_row = square_row,
                   .factor = factor});
  };
  if (sizes_.delta) {
    keys(erase, rows.e, rows.key_row, prefix, -1.0F);
    interact(rows.e, rows.key_row, read, 1.0F, false);
  }
  if (purpose == For::state) return;
  keys(query, rows.q, rows.q_row, prefix, sizes_.scale);
  interact(rows.q, rows.q_row, seen, sizes_.scale, true);
  if (purpose != For::gradient) return;
  k.copy_rows(raw_query, key_row, rows.q, rows.q_row, nullptr, n, d_k);
  k.copy_rows(raw_write, key_row, rows.w, rows.w_row, nullptr, n, d_k);
  if (sizes_.delta) k.copy_rows(raw_erase, key_row, rows.e, rows.key_row, nullptr, n, d_k);
}

void ChunkFactors::load_channel(const ChunkRows& rows, For purpose) {
  const Kernels& k = kernels();
  const int n = rows.count;
  const int d_k = sizes_.d_k;
  k.copy_rows(gates_, key_row, rows.g, rows.g_row, nullptr, n, d_k);
  k.channel_decay({gates_, key_row, n, d_k, key_row, step, prefix, suffix, from_start, to_end});
  std::copy_n(from_start + (n - 1) * key_row, d_k, keep);
  k.copy_rows(raw_write, key_row, rows.w, rows.w_row, nullptr, n, d_k);
  k.multiply_rows(Into::overwrite, write, key_row, raw_write, key_row, to_end, key_row, 1.0F, n,
                  d_k);
  const auto reader = [&](float* raw, float* whole, float* block, const float* from, Index from_row,
                          float factor) {
    k.copy_rows(raw, key_row, from, from_row, nullptr, n, d_k);
    k.multiply_rows(Into::overwrite, whole, key_row, raw, key_row, from_start, key_row, factor, n,
                    d_k);
    k.multiply_rows(Into::overwrite, block, key_row, raw, key_row, prefix, key_row, 1.0F, n, d_k);
  };
  if (sizes_.delta) reader(raw_erase, erase, block_erase, rows.e, rows.key_row, -1.0F);
  if (purpose != For::state) {
    reader(raw_query, query, block_query, rows.q, rows.q_row, sizes_.scale);
  }
}

void ChunkFactors::build_channel(const ChunkRows& rows, For purpose) {
  load_channel(rows, purpose);
  const bool outputs = purpose != For::state;
  if (!sizes_.delta && !outputs) return;
  const Kernels& k = kernels();
  const int d_k = sizes_.d_k;
  for (int first = 0; first < rows.count; first += kBlock) {
    const int n = std::min(kBlock, rows.count - first);
    const Index key = first * key_row;
    const Index square = first * square_row;
    // Columns of earlier blocks are decayed up to the start of this one.
    const auto earlier = [&](const float* reader, float* out) {
      k.product({reader + key, key_row, 1, columns_, square_row, out + square, square_row, n, first,
                 d_k});
    };
    if (first > 0 && sizes_.delta) earlier(block_erase, read);
    if (first > 0 && outputs) earlier(block_query, seen);
    k.block_interaction({step + key, sizes_.delta ? raw_erase + key : nullptr,
                         outputs ? raw_query + key : nullptr, raw_write + key, key_row, key_row,
                         key_row, key_row, read + square + first, seen + square + first, square_row,
                         square_row, n, d_k});
    if (first + n == rows.count) break;
    const float* whole_block = prefix + (first + n - 1) * key_row;
    if (first > 0) {
      k.copy_rows(columns_, square_row, columns_, square_row, whole_block, d_k, first);
    }
    k.multiply_rows(Into::overwrite, gates_ + key, key_row, raw_write + key, key_row, suffix + key,
                    key_row, 1.0F, n, d_k);
    k.transpose(columns_ + first, square_row, gates_ + key, key_row, n, d_k);
  }
  const auto finish = [&](float* out, float factor, bool diagonal) {
    k.scale_lower({.from = out,
                   .from_row = square_row,
                   .to = out,
                   .to_row = square_row,
                   .n = rows.count,
                   .diagonal = diagonal,
                   .factor = factor});
  };
  if (sizes_.delta) finish(read, 1.0F, false);
  if (outputs) finish(seen, sizes_.scale, true);
}

}  // namespace rankone::recurrence::cpu
