#pragma once

// The forward scan on Hopper with few value columns a block, in clusters (chunk_narrow_parts.hpp):
// a chunk takes half the time that it takes in the other scan, so that sequences need no segments.

#include "recurrence/cuda/chunk_scan.hpp"

namespace rankone::recurrence::cuda {

struct NarrowPlan {
  int columns = 32;  // of a block: 32 or 64
  int cluster = 4;   // blocks: 1, 2, 4 or 8
};

// o and the final state where `chunk.call.o` is set, otherwise `chunk.states` and `z` ([R, HV, V],
// may be null), as launch_scan() and launch_scan_back() write them. d_k at most 128.
void launch_narrow_scan(const ChunkCall& chunk, const NarrowPlan& plan, void* z, void* stream);

// States and Z, and their cotangents: what launch_scan_back() writes for one segment.
void launch_narrow_scan_back(const ChunkCall& chunk, const NarrowPlan& plan, const ScanBack& back,
                             void* stream);

// Whether both directions of a training call should be narrow scans, where launch_scan_back() is
// expected to take `microseconds` with tied keys and without channel decay, and the plan if so.
// Depends on nothing but the shape of the call and the GPU. `chunks`: of the longest sequence.
bool takes_narrow_back(const TwoKeyCall& call, std::int64_t chunks, int multiprocessors,
                       double microseconds, NarrowPlan& plan);

// Whether a block of every kind fits.
int narrow_shared_bytes(const TwoKeyCall& call, int columns, bool output);

}  // namespace rankone::recurrence::cuda
