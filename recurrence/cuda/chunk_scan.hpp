#pragma once

// The serial part of the chunk form: the state from chunk to chunk, and its cotangent backwards.
// Both know only the records of chunk_prep, the keys, and the values.

#include "core/cuda/tensor_map.hpp"
#include "recurrence/cuda/chunk.hpp"

namespace rankone::recurrence::cuda {

// How the chunks of every sequence are cut into segments that are scanned side by side.
struct Segments {
  int count = 1;
  // Tiles of 64 columns of a block, at most two, in the scan and for the maps (wgmma).
  int scan_tiles = 2, map_tiles = 2;
  // The first segment, whose start is known, is scanned with its outputs beside the maps of the
  // others; three segments or more, calls with outputs.
  bool lead = false;
  // How many of 1024 parts of the chunks the first and the last segment have where they are not as
  // long as the others; 0: they are.
  int first_part = 0, last_part = 0;
  // State at the start of every segment of a sequence, transposed: [N, HV, count, V, K] float, or
  // null for one segment. The scan reads those of segments 1 and up; the first starts from the
  // call's initial state.
  const float* starts = nullptr;
  // The maps (SegmentMaps::m), if the scan is to carry states to the starts of segments itself;
  // then what segment s - 1 adds stands in place s of `starts`. Calls with outputs, wgmma; of
  // lean records in blocks of one tile.
  const void* maps = nullptr;
};

// What becomes of the state at the end of a segment, of all segments but the last.
struct SegmentMaps {
  // Of segment s: H = state at its end from a zero state (the first segment: from the initial
  // state), [N, HV, count, V, K]: place s of it is place s + 1 of Segments::starts.
  float* h = nullptr;
  // Of all segments but the first too: M, by which a state at its start is carried to its end,
  // transposed like a state whose value columns are the key channels. [N, HV, count, tiles of 64
  // rows, 2] tiles [64, key_columns] of bf16: the number rounded, and what that leaves.
  void* m = nullptr;
};
__host__ __device__ constexpr std::int64_t map_tile_bytes(int d_k) {
  return std::int64_t{64} * key_columns(d_k) * 2;
}
__host__ __device__ constexpr std::int64_t map_bytes(int d_k) {
  return value_tiles(d_k) * 2 * map_tile_bytes(d_k);
}

enum class Engine { mma, wgmma };
// Whether launch_scan() and launch_segment_maps() take lean records too.
inline bool takes_lean_records(const TwoKeyCall& call, Engine engine) {
  return engine == Engine::wgmma && call.delta && call.gate != GateKind::channel;
}

// The tensors of a call as the copy engine wants them (wgmma); those that are not needed are empty.
struct ScanTensors {
  rankone::cuda::TensorMap query, erase, write, value;
};
ScanTensors scan_tensors(const TwoKeyCall& call, Engine engine);

// Shared memory of a block of the largest scan of a call.
int scan_shared_bytes(const TwoKeyCall& call, Engine engine);

// o and the final state. d_k at most 128.
void launch_scan(const ChunkCall& chunk, const ScanTensors& tensors, const Segments& segments,
                 Engine engine, void* stream);
// A forward scan of calls with o, one window of the chunks after the other: segments whose starts
// are the ends of those before. Lean records, delta calls of more than 64 channels. Beside a window
// the chunks `from` to `to` of every sequence are prepared by `blocks` blocks more.
struct PrepBeside {
  std::int64_t from = 0, to = 0;
  int blocks = 0;
};
// Window `number`, whose records are there; blocks of two tiles. `ends`: place 1 of
// segments.starts.
void launch_scan_window(const ChunkCall& chunk, const ScanTensors& tensors,
                        const Segments& segments, float* ends, int number, const PrepBeside& beside,
                        void* stream);
// The maps of the segments; no o but that of a leading segment, no final state.
void launch_segment_maps(const ChunkCall& chunk, const ScanTensors& tensors,
                         const Segments& segments, const SegmentMaps& maps, Engine engine,
                         void* stream);

// `states` and Z by a forward scan, `d_states`, dV and the cotangent of the initial state by a
// backward one, both in one launch.
struct ScanBack {
  const void* d_o = nullptr;       // [R, HV, V]
  const float* d_final = nullptr;  // [N, HV, K, V]; null: zero
  void* z = nullptr;               // [R, HV, V], of delta calls
  void* d_v = nullptr;             // [R, HV, V]
  float* d_initial = nullptr;      // [N, HV, K, V]; may be null
  // Cotangent of the state at the end of every segment, transposed, over the mantissa of `scale`:
  // [N, HV, count, V, K]; null for one segment. That of the last segment is `d_final` instead.
  float* ends = nullptr;
};
// scale = mantissa * power, a power of two; 1 <= |mantissa| < 2, or 1 and 0.
struct ScaleParts {
  float mantissa = 1.0F, power = 1.0F;
};
ScaleParts scale_parts(float scale);
void launch_scan_back(const ChunkCall& chunk, const ScanTensors& tensors, const Segments& segments,
                      const ScanBack& back, Engine engine, void* stream);
// The maps of the segments, and in place s - 1 of `ends` what dO of segment s, or of the last one
// and `d_final`, contribute.
void launch_segment_maps_back(const ChunkCall& chunk, const ScanTensors& tensors,
                              const Segments& segments, const SegmentMaps& maps,
                              const ScanBack& back, Engine engine, void* stream);

}  // namespace rankone::recurrence::cuda
