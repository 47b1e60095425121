#include "core/cuda/upload.hpp"

#include "core/cuda/language.hpp"

namespace rankone::cuda {
namespace {

constexpr int kThreads = 128;

__global__ void write_piece(const __grid_constant__ BoundaryPiece piece, std::int64_t* boundaries,
                            std::int64_t* chunk_boundaries) {
  for (int i = static_cast<int>(threadIdx.x); i < piece.count; i += kThreads) {
    boundaries[piece.first + i] = piece.row[i];
    chunk_boundaries[piece.first + i] = piece.chunk[i];
  }
}

}  // namespace

void upload_piece(const BoundaryPiece& piece, std::int64_t* boundaries,
                  std::int64_t* chunk_boundaries, void* stream) {
  launch(write_piece, 1, kThreads, 0, stream, piece, boundaries, chunk_boundaries);
}

}  // namespace rankone::cuda
