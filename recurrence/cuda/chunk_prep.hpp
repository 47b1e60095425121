#pragma once

// The chunk-parallel part of the two-key recurrence for bf16 and f16: writes the record of every
// chunk and value head (chunk.hpp), which is all that the scans need beside values and states.

#include "recurrence/cuda/chunk.hpp"

namespace rankone::recurrence::cuda {

// Reads q, e, w, g and b; writes all records. d_k is a multiple of 8.
void launch_chunk_prep(const ChunkCall& call, void* stream);

// The part of it for channel decay.
void launch_chunk_prep_channel(const ChunkCall& call, void* stream);

}  // namespace rankone::recurrence::cuda
