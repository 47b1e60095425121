#include "core/cuda/device_rows.hpp"

#include <algorithm>
#include <limits>

#include "core/cuda/upload.hpp"
#include "core/status.hpp"

namespace rankone::cuda {

namespace {

std::int64_t chunks_in(std::int64_t rows, int chunk) { return (rows + chunk - 1) / chunk; }

}  // namespace

std::int64_t count_chunks(const Sequences& sequences, int chunk) {
  if (sequences.even()) {
    return sequences.count() == 0 ? 0 : sequences.count() * chunks_in(sequences.length(0), chunk);
  }
  std::int64_t chunks = 0;
  for (std::int64_t i = 0; i < sequences.count(); ++i) {
    chunks += chunks_in(sequences.length(i), chunk);
  }
  return chunks;
}

Rows device_rows(Context& context, const Sequences& sequences, int chunk) {
  Rows rows;
  rows.sequences = sequences.count();
  rows.count = sequences.rows();
  rows.chunk = chunk;
  rows.chunks = count_chunks(sequences, chunk);
  if (sequences.even() && sequences.count() > 0) rows.time = sequences.length(0);
  require(rows.chunks <= std::numeric_limits<std::int32_t>::max(),
          "[cuda] a call of {} rows has {} chunks (at most 2^31 - 1)", sequences.rows(),
          rows.chunks);
  if (sequences.even()) return rows;

  const std::int64_t count = sequences.count() + 1;
  auto* boundaries = static_cast<std::int64_t*>(context.empty({2 * count}, Dtype::i64).raw());
  if (context.planning()) return rows;
  std::int64_t* chunk_boundaries = boundaries + count;
  BoundaryPiece piece{};
  std::int64_t chunks = 0;
  for (std::int64_t first = 0; first < count; first += piece.count) {
    piece.first = first;
    piece.count = static_cast<int>(std::min<std::int64_t>(count - first, BoundaryPiece::kMost));
    for (int i = 0; i < piece.count; ++i) {
      piece.row[i] = sequences.boundaries()[static_cast<std::size_t>(first + i)];
      piece.chunk[i] = static_cast<std::uint32_t>(chunks);
      if (first + i + 1 < count) chunks += chunks_in(sequences.length(first + i), chunk);
    }
    upload_piece(piece, boundaries, chunk_boundaries, context.stream());
  }
  rows.boundaries = boundaries;
  rows.chunk_boundaries = chunk_boundaries;
  return rows;
}

}  // namespace rankone::cuda
