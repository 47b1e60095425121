#pragma once

// Boundaries as parameters of a kernel, which may take 4 KiB of them.

#include <cstdint>

namespace rankone::cuda {

struct BoundaryPiece {
  static constexpr int kMost = 330;
  std::int64_t first = 0;  // number of the first boundary of this piece
  int count = 0;
  std::uint32_t chunk[kMost];  // number of the first chunk behind each boundary
  std::int64_t row[kMost];
};

// boundaries[first + i] = row[i], chunk_boundaries[first + i] = chunk[i].
void upload_piece(const BoundaryPiece& piece, std::int64_t* boundaries,
                  std::int64_t* chunk_boundaries, void* stream);

}  // namespace rankone::cuda
