#pragma once

// The exact split of long sequences: segments are scanned side by side once their starting states
// are known, and those follow from the maps of the segments before them. Nothing is dropped, so it
// holds for weak and no decay and for writes that expand the state.

#include "recurrence/cuda/chunk_scan.hpp"

namespace rankone::recurrence::cuda {

// Into how many segments every sequence is cut: 1 where the blocks of the scan fill the GPU
// already; and how many tiles a block takes. Depends on nothing but the shape of the call and the
// GPU. `chunks`: of the longest sequence. `back`: for the scans in both directions of a backward
// pass, which have no leading segment. `microseconds`, where given, becomes what the kernels of the
// plan are expected to take.
Segments plan_segments(std::int64_t sequences, std::int64_t value_heads, int d_k, int d_v,
                       std::int64_t chunks, int multiprocessors, bool back,
                       double* microseconds = nullptr);

// starts[s + 1] = M_s starts[s] + H_s from segment to segment, where H_s stands in starts[s + 1]
// before; and, where `ends` are given, ends[s - 1] = M_s^T ends[s] + what stands in ends[s - 1]
// before. Layouts as in Segments, SegmentMaps and ScanBack. Sequences that call.takes() leaves out
// have no numbers there; nothing of them is used.
void launch_segment_boundaries(const ChunkCall& chunk, int segments, const SegmentMaps& maps,
                               float* starts, float* ends, Engine engine, void* stream);

}  // namespace rankone::recurrence::cuda
