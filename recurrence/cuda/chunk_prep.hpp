#pragma once

// The chunk-parallel part of the two-key recurrence for bf16 and f16: writes the record of every
// chunk and value head (chunk.hpp), which is all that the scans need beside values and states.

#include "recurrence/cuda/chunk_scan.hpp"

namespace rankone::recurrence::cuda {

// What launch_chunk_prep() may use of the device.
struct ChunkPrepDevice {
  Engine engine = Engine::mma;
  int multiprocessors = 1;
  // Chunks of every sequence, from its first; negative: all. All but for lean records of delta
  // calls whose sequences are of one length.
  std::int64_t chunks = -1;
};

// Reads q, e, w, g and b; writes the records. d_k is a multiple of 8.
void launch_chunk_prep(const ChunkCall& call, const ChunkPrepDevice& device, void* stream);

// The part of it for channel decay.
void launch_chunk_prep_channel(const ChunkCall& call, const ChunkPrepDevice& device, void* stream);

}  // namespace rankone::recurrence::cuda
