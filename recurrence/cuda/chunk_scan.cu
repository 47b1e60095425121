// Which kernel a scan takes. (A .cu file for the types it shares with them.)

#include "recurrence/cuda/chunk_scan.hpp"

#include <algorithm>
#include <cmath>

#include "recurrence/cuda/chunk_scan_kernels.hpp"

namespace rankone::recurrence::cuda {
namespace {

void start(const ScanForward& scan, bool output, Engine engine, void* stream) {
  const bool brain = scan.chunk.call.format == Dtype::bf16;
  if (scan.chunk.layout.lean) {
    return (brain ? start_scan_lean_bf16 : start_scan_lean_f16)(scan, output, stream);
  }
  if (engine == Engine::mma)
    return (brain ? start_scan_mma_bf16 : start_scan_mma_f16)(scan, output, stream);
  (brain ? start_scan_wgmma_bf16 : start_scan_wgmma_f16)(scan, output, stream);
}

ScanForward forward_scan(const ChunkCall& chunk, const ScanTensors& tensors,
                         const Segments& segments) {
  ScanForward scan;
  scan.range.to = segments.count;
  scan.range.first_part = segments.first_part;
  scan.range.last_part = segments.last_part;
  scan.chunk = chunk;
  scan.tensors = tensors;
  scan.segments = segments;
  return scan;
}

ScanForward maps_scan(const ChunkCall& chunk, const ScanTensors& tensors, const Segments& segments,
                      const SegmentMaps& maps) {
  ScanForward scan = forward_scan(chunk, tensors, segments);
  scan.chunk.states = nullptr;
  scan.segments.starts = nullptr;  // from zero
  scan.segments.maps = nullptr;
  scan.range.to = segments.count - 1;
  scan.range.maps = true;
  scan.maps = maps;
  return scan;
}

// Of both directions, maps where `forward` has them.
void start_back(const ScanForward& forward, const ScanBack& back, Engine engine, void* stream) {
  const ChunkCall& chunk = forward.chunk;
  ScanBackward backward;
  backward.chunk = chunk;
  backward.back = back;
  backward.segments = forward.segments.count;
  backward.maps = forward.maps.h != nullptr;
  const ScaleParts scale = scale_parts(chunk.call.scale);
  backward.mantissa = scale.mantissa;
  backward.power = scale.power;
  const bool brain = chunk.call.format == Dtype::bf16;
  if (engine == Engine::mma) {
    return (brain ? start_scan_back_mma_bf16 : start_scan_back_mma_f16)(backward, forward, stream);
  }
  (brain ? start_scan_back_wgmma_bf16 : start_scan_back_wgmma_f16)(backward, forward, stream);
}

template <class Engine>
int shared_bytes(const TwoKeyCall& call) {
  int bytes = 0;
  with_scan_choices(call, [&](auto dk, auto scaled, auto delta) {
    constexpr int kGroups = ScanBlock<Engine>::kGroups;
    const int back = ScanStage<dk, scaled, delta, true>::bytes(call.same_key, kGroups);
    constexpr bool kLean = Engine::kBulk && !scaled;
    const int lean = FedStage<dk, scaled, delta, true, kLean>::bytes(call.same_key, kGroups);
    const int stage = std::max(back, lean);
    bytes = scan_bytes(scan_stages<Engine>(stage), stage);
  });
  return bytes;
}

}  // namespace

ScaleParts scale_parts(float scale) {
  int exponent = 0;
  const float fraction = std::frexp(scale, &exponent);
  if (fraction == 0.0F) return {1.0F, 0.0F};
  return {2.0F * fraction, std::ldexp(1.0F, exponent - 1)};
}

int scan_shared_bytes(const TwoKeyCall& call, Engine engine) {
  return engine == Engine::wgmma ? shared_bytes<WgmmaEngine<bf16>>(call)
                                 : shared_bytes<MmaEngine<bf16>>(call);
}

ScanTensors scan_tensors(const TwoKeyCall& call, Engine engine) {
  ScanTensors tensors = {};
  if (engine == Engine::mma) return tensors;
  const std::int64_t rows = call.rows.count;
  if (call.gate != GateKind::channel) {
    tensors.query = row_map(call.q, rows, call.heads, call.d_k);
    tensors.write = row_map(call.w, rows, call.heads, call.d_k);
    if (call.delta && !call.same_key) tensors.erase = row_map(call.e, rows, call.heads, call.d_k);
  }
  tensors.value = row_map(call.v, rows, call.value_heads, call.d_v);
  return tensors;
}

void launch_scan(const ChunkCall& chunk, const ScanTensors& tensors, const Segments& segments,
                 Engine engine, void* stream) {
  ScanForward scan = forward_scan(chunk, tensors, segments);
  if (segments.lead) scan.range.from = 1;
  start(scan, chunk.call.o != nullptr, engine, stream);
}

void launch_scan_window(const ChunkCall& chunk, const ScanTensors& tensors,
                        const Segments& segments, float* ends, int number, const PrepBeside& beside,
                        void* stream) {
  ScanForward scan = forward_scan(chunk, tensors, segments);
  scan.range.from = number;
  scan.range.to = number + 1;
  if (number + 1 < segments.count) scan.maps.h = ends;
  if (beside.from == beside.to) return start(scan, true, Engine::wgmma, stream);
  (chunk.call.format == Dtype::bf16 ? start_scan_beside_bf16 : start_scan_beside_f16)(scan, beside,
                                                                                      stream);
}

void launch_segment_maps(const ChunkCall& chunk, const ScanTensors& tensors,
                         const Segments& segments, const SegmentMaps& maps, Engine engine,
                         void* stream) {
  ScanForward scan = maps_scan(chunk, tensors, segments, maps);
  if (!segments.lead) return start(scan, false, engine, stream);
  ScanForward lead = forward_scan(chunk, tensors, segments);
  lead.range.to = scan.range.from = 1;
  lead.maps = maps;
  const bool brain = chunk.call.format == Dtype::bf16;
  if (chunk.layout.lean) {
    return (brain ? start_scan_lead_lean_bf16 : start_scan_lead_lean_f16)(lead, scan, stream);
  }
  if (engine == Engine::mma) {
    return (brain ? start_scan_lead_mma_bf16 : start_scan_lead_mma_f16)(lead, scan, stream);
  }
  (brain ? start_scan_lead_wgmma_bf16 : start_scan_lead_wgmma_f16)(lead, scan, stream);
}

void launch_scan_back(const ChunkCall& chunk, const ScanTensors& tensors, const Segments& segments,
                      const ScanBack& back, Engine engine, void* stream) {
  ScanForward scan = forward_scan(chunk, tensors, segments);
  scan.z = back.z;
  start_back(scan, back, engine, stream);
}

void launch_segment_maps_back(const ChunkCall& chunk, const ScanTensors& tensors,
                              const Segments& segments, const SegmentMaps& maps,
                              const ScanBack& back, Engine engine, void* stream) {
  ScanForward scan = maps_scan(chunk, tensors, segments, maps);
  scan.chunk.d_states = nullptr;
  start_back(scan, back, engine, stream);
}

}  // namespace rankone::recurrence::cuda
