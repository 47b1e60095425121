#include "core/cuda/device_rows.hpp"

#include <algorithm>
#include <limits>

#include "core/cuda/upload.hpp"
#include "core/status.hpp"

namespace rankone::cuda {

Rows device_rows(Context& context, const Sequences& sequences, int chunk) {
  const auto chunks_of = [&](std::int64_t rows) { return (rows + chunk - 1) / chunk; };
  Rows rows;
  rows.sequences = sequences.count();
  rows.count = sequences.rows();
  rows.chunk = chunk;
  if (sequences.even()) {
    rows.time = sequences.count() > 0 ? sequences.length(0) : 0;
    rows.chunks = sequences.count() * chunks_of(rows.time);
  } else {
    for (std::int64_t i = 0; i < sequences.count(); ++i) {
      rows.chunks += chunks_of(sequences.length(i));
    }
  }
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
      if (first + i + 1 < count) chunks += chunks_of(sequences.length(first + i));
    }
    upload_piece(piece, boundaries, chunk_boundaries, context.stream());
  }
  rows.boundaries = boundaries;
  rows.chunk_boundaries = chunk_boundaries;
  return rows;
}

}  // namespace rankone::cuda
