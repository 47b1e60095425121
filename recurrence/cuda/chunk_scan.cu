// Which kernel a scan takes. (A .cu file for the types it shares with them.)

#include "recurrence/cuda/chunk_scan.hpp"

#include <algorithm>
#include <cmath>

#include "recurrence/cuda/chunk_scan_kernels.hpp"

namespace rankone::recurrence::cuda {
namespace {

void start(const ScanForward& scan, bool output, Engine engine, void* stream) {
  const bool brain = scan.chunk.call.format == Dtype::bf16;
  if (engine == Engine::mma)
    return (brain ? start_scan_mma_bf16 : start_scan_mma_f16)(scan, output, stream);
  (brain ? start_scan_wgmma_bf16 : start_scan_wgmma_f16)(scan, output, stream);
}

template <class Engine>
int shared_bytes(const TwoKeyCall& call) {
  int bytes = 0;
  with_scan_choices(call, [&](auto dk, auto scaled, auto delta) {
    bytes = kScanStages<Engine> * (ScanStage<dk, scaled>(delta, call.same_key, true).bytes + 8);
  });
  return bytes;
}

}  // namespace

int scan_shared_bytes(const TwoKeyCall& call, Engine engine) {
  return engine == Engine::wgmma ? shared_bytes<WgmmaEngine<bf16>>(call)
                                 : shared_bytes<MmaEngine<bf16>>(call);
}

void launch_scan(const ChunkCall& chunk, const Segments& segments, Engine engine, void* stream) {
  start({chunk, segments, {}, nullptr, {}}, chunk.call.o != nullptr, engine, stream);
}

void launch_segment_maps(const ChunkCall& chunk, const Segments& segments, const SegmentMaps& maps,
                         Engine engine, void* stream) {
  ChunkCall states_only = chunk;
  states_only.states = nullptr;
  start({states_only, {segments.count, nullptr}, maps, nullptr, {}}, false, engine, stream);
}

void launch_scan_back(const ChunkCall& chunk, const ScanBack& back, Engine engine, void* stream) {
  ScanBackward backward{chunk, back, {}};
  int exponent = 0;
  const float fraction = std::frexp(chunk.call.scale, &exponent);
  if (fraction != 0.0F) {
    backward.mantissa = 2.0F * fraction;
    backward.power = std::ldexp(1.0F, exponent - 1);
  } else {
    backward.power = 0.0F;
  }
  const ScanForward forward{chunk, {}, {}, back.z, {}};
  const bool brain = chunk.call.format == Dtype::bf16;
  if (engine == Engine::mma) {
    return (brain ? start_scan_back_mma_bf16 : start_scan_back_mma_f16)(backward, forward, stream);
  }
  (brain ? start_scan_back_wgmma_bf16 : start_scan_back_wgmma_f16)(backward, forward, stream);
}

}  // namespace rankone::recurrence::cuda
