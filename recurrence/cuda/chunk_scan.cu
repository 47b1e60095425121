// Which kernel a scan takes. (A .cu file for the types it shares with them.)

#include "recurrence/cuda/chunk_scan.hpp"

#include "recurrence/cuda/chunk_scan_kernels.hpp"

namespace rankone::recurrence::cuda {
namespace {

void start(const ScanForward& scan, bool output, Engine engine, void* stream) {
  const bool brain = scan.chunk.call.format == Dtype::bf16;
  if (engine == Engine::mma)
    return (brain ? start_scan_mma_bf16 : start_scan_mma_f16)(scan, output, stream);
  (brain ? start_scan_wgmma_bf16 : start_scan_wgmma_f16)(scan, output, stream);
}

}  // namespace

void launch_scan(const ChunkCall& chunk, const Segments& segments, Engine engine, void* stream) {
  start({chunk, segments, {}, {}, value_tiles(chunk.call.d_v)}, chunk.call.o != nullptr, engine,
        stream);
}

void launch_segment_maps(const ChunkCall& chunk, const Segments& segments, const SegmentMaps& maps,
                         Engine engine, void* stream) {
  ChunkCall states_only = chunk;
  states_only.states = states_only.u = nullptr;
  const int tiles =
      value_tiles(chunk.call.d_v) + (maps.m != nullptr ? value_tiles(chunk.call.d_k) : 0);
  start({states_only, {segments.count, nullptr}, maps, {}, tiles}, false, engine, stream);
}

void launch_scan_back(const ChunkCall& chunk, const ScanBack& back, Engine engine, void* stream) {
  const ScanBackward backward{chunk, back, {}};
  const ScanForward forward{chunk, {}, {}, {}, value_tiles(chunk.call.d_v)};
  const bool brain = chunk.call.format == Dtype::bf16;
  if (engine == Engine::mma) {
    return (brain ? start_scan_back_mma_bf16 : start_scan_back_mma_f16)(backward, forward, stream);
  }
  (brain ? start_scan_back_wgmma_bf16 : start_scan_back_wgmma_f16)(backward, forward, stream);
}

}  // namespace rankone::recurrence::cuda
