#pragma once

// The exact split of long sequences: segments are scanned side by side once their starting states
// are known, and those follow from the maps of the segments before them. Nothing is dropped, so it
// holds for weak and no decay and for writes that expand the state.

#include "recurrence/cuda/chunk_scan.hpp"

namespace rankone::recurrence::cuda {

// Into how many segments every sequence is cut: 1 where the blocks of the scan fill the GPU
// already. Depends on nothing but the shape of the call and the GPU.
// `chunks`: of the longest sequence.
int segment_count(std::int64_t sequences, std::int64_t value_heads, int d_k, int d_v,
                  std::int64_t chunks, int multiprocessors);

// starts[s + 1] = M_s starts[s] + H_s from segment to segment, starts[1] = H_0, in float32. Layouts
// as in Segments and SegmentMaps.
void launch_segment_starts(const ChunkCall& chunk, int segments, const SegmentMaps& maps,
                           float* starts, void* stream);

}  // namespace rankone::recurrence::cuda
