#pragma once

// The scans of a training call on Hopper with few value columns a block, in clusters that share the
// tiles of a chunk (chunk_narrow_parts.hpp).

#include "recurrence/cuda/chunk_scan.hpp"

namespace rankone::recurrence::cuda {

// States and Z, and their cotangents: what launch_scan_back() writes for one segment, by clusters
// of 1, 2, 4 or 8 blocks. d_k at most 128.
void launch_narrow_scan_back(const ChunkCall& chunk, int cluster, const ScanBack& back,
                             void* stream);

// Whether both directions of a training call should be narrow scans, where launch_scan_back() is
// expected to take `microseconds` with tied keys and without channel decay, and in what clusters.
// Depends on nothing but the shape of the call and the GPU. `chunks`: of the longest sequence.
bool takes_narrow_back(const TwoKeyCall& call, std::int64_t chunks, int multiprocessors,
                       double microseconds, int& cluster);

}  // namespace rankone::recurrence::cuda
