#pragma once

// The gradients of a chunked call of a 16-bit format, all chunks at once: docs/kernels.md. The
// scans of the backward pass have written `states`, `d_states`, `z` and `d_value` before.

#include "recurrence/cuda/chunk_scan.hpp"

namespace rankone::recurrence::cuda {

// What launch_chunk_grad() may use of the device.
struct ChunkGradDevice {
  Engine engine = Engine::mma;
  int multiprocessors = 1;
  int shared_bytes = 99 * 1024;  // that a block may have
};

// Floats of ChunkCall::gate_sums: where the key columns of a head may be worked off in several
// passes, else 0.
std::int64_t chunk_grad_floats(const ChunkCall& chunk);

// Writes d_q, d_e, d_w, d_g and d_b, those that are not null; of `back` it reads only d_o. d_k is a
// multiple of 8 up to 256, d_v one up to 1024.
void launch_chunk_grad(const ChunkCall& chunk, const TwoKeyBack& back,
                       const ChunkGradDevice& device, void* stream);

}  // namespace rankone::recurrence::cuda
