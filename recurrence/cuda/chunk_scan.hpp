#pragma once

// The serial part of the chunk form: the state from chunk to chunk, and its cotangent backwards.
// Both know only the records of chunk_prep, the keys, and the values.

#include "recurrence/cuda/chunk.hpp"

namespace rankone::recurrence::cuda {

// How the chunks of every sequence are cut into segments that are scanned side by side.
struct Segments {
  int count = 1;
  // State at the start of every segment of a sequence, transposed: [N, HV, count, V, K] float, or
  // null for one segment. The scan reads those of segments 1 and up; the first starts from the
  // call's initial state.
  const float* starts = nullptr;
};

// What becomes of the state at the end of a segment.
struct SegmentMaps {
  // Of segment s: H = state at its end from a zero state (the first segment: from the initial
  // state), [N, HV, count, V, K], and M, by which a state at its start is carried to its end:
  // transposed like a state whose value columns are the key channels, [N, HV, count, K, K].
  float* h = nullptr;
  float* m = nullptr;
};

enum class Engine { mma, wgmma };

// Shared memory of a block of the largest scan of a call.
int scan_shared_bytes(const TwoKeyCall& call, Engine engine);

// o and the final state. d_k at most 128.
void launch_scan(const ChunkCall& chunk, const Segments& segments, Engine engine, void* stream);
// The maps of the segments; no o, no final state.
void launch_segment_maps(const ChunkCall& chunk, const Segments& segments, const SegmentMaps& maps,
                         Engine engine, void* stream);

// `states` and Z by a forward scan, `d_states`, dV and the cotangent of the initial state by a
// backward one, both in one launch.
struct ScanBack {
  const void* d_o = nullptr;       // [R, HV, V]
  const float* d_final = nullptr;  // [N, HV, K, V]; null: zero
  void* z = nullptr;               // [R, HV, V], of delta calls
  void* d_v = nullptr;             // [R, HV, V]
  float* d_initial = nullptr;      // [N, HV, K, V]; may be null
};
void launch_scan_back(const ChunkCall& chunk, const ScanBack& back, Engine engine, void* stream);

}  // namespace rankone::recurrence::cuda
