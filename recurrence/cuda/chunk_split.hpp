#pragma once

// The exact split of long sequences: segments are scanned side by side once their starting states
// are known, and those follow from the maps of the segments before them. Nothing is dropped, so it
// holds for weak and no decay and for writes that expand the state.

#include "recurrence/cuda/chunk_scan.hpp"

namespace rankone::recurrence::cuda {

// Into how many segments every sequence is cut: 1 where the blocks of the scan fill the GPU
// already; and how many tiles a block takes. Depends on nothing but the shape of the call and the
// GPU. `chunks`: of the longest sequence. `back`: for the scans in both directions of a backward
// pass, which have no leading segment. `lean`: with lean records. `microseconds`, where given,
// becomes what the kernels of the plan are expected to take.
Segments plan_segments(std::int64_t sequences, std::int64_t value_heads, int d_k, int d_v,
                       std::int64_t chunks, int multiprocessors, bool back, bool lean,
                       double* microseconds = nullptr);

// Whether the scan of a forward pass carries states to the starts of segments itself
// (Segments::maps). `output`: it has one.
inline bool scan_carries(const Segments& segments, Engine engine, bool output, bool lean) {
  return engine == Engine::wgmma && output && (!lean || segments.scan_tiles == 1);
}

// A scan in windows (launch_scan_window): how many, how many blocks prepare beside them, and how
// many chunks of every sequence are prepared before.
struct Windows {
  int count = 1, blocks = 0;
  std::int64_t chunks = 0, first = 0;

  // Chunks of every sequence that are prepared when window `number` begins: its own at least.
  std::int64_t prepared(int number) const;
};

// How a forward pass goes: with lean records, where the call's kernels take them and preparation
// saves more than the scan takes longer. Depends on shapes alone, for planning passes. `chunks`: of
// the longest sequence.
struct ForwardPlan {
  Segments segments;
  bool lean = false;
  Windows windows;  // of a plan of one segment
};
ForwardPlan plan_forward(const TwoKeyCall& call, std::int64_t chunks, bool takes_lean,
                         int multiprocessors);

// starts[s + 1] = M_s starts[s] + H_s from segment to segment, where H_s stands in starts[s + 1]
// before; and, where `ends` are given, ends[s - 1] = M_s^T ends[s] + what stands in ends[s - 1]
// before. Layouts as in Segments, SegmentMaps and ScanBack. Sequences that call.takes() leaves out
// have no numbers there; nothing of them is used.
void launch_segment_boundaries(const ChunkCall& chunk, int segments, const SegmentMaps& maps,
                               float* starts, float* ends, Engine engine, void* stream);

}  // namespace rankone::recurrence::cuda
