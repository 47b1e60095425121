#include "recurrence/cuda/two_key_chunk.hpp"

#include <limits>

#include "core/cuda/device_rows.hpp"
#include "recurrence/cuda/chunk_grad.hpp"
#include "recurrence/cuda/chunk_narrow.hpp"
#include "recurrence/cuda/chunk_prep.hpp"
#include "recurrence/cuda/chunk_split.hpp"
#include "recurrence/cuda/path.hpp"
#include "recurrence/cuda/workspace.hpp"
#if !defined(RANKONE_CUDA_EMULATION)
#include "core/device.hpp"
#endif

namespace rankone::recurrence::cuda {
namespace {

#if defined(RANKONE_CUDA_EMULATION)
int multiprocessors() { return 132; }
int shared_bytes() { return 227 * 1024; }
#else
int multiprocessors() { return current_gpu_multiprocessors(); }
int shared_bytes() { return current_gpu_shared_bytes(); }
#endif

Engine engine() { return chosen_path() == Path::sm90a ? Engine::wgmma : Engine::mma; }

std::size_t bytes_of(std::int64_t count, std::size_t size) {
  return static_cast<std::size_t>(count) * size;
}

// The records are `saved`, or scratch where that is null.
ChunkCall with_records(Context& context, const TwoKeyCall& call, void* saved, bool lean = false) {
  ChunkCall chunk;
  chunk.call = call;
  chunk.layout = RecordLayout(call.d_k, call.gate, call.delta, lean);
  if (saved == nullptr) {
    saved =
        workspace(context, bytes_of(call.rows.chunks * call.value_heads * chunk.layout.bytes, 1));
  }
  chunk.records = static_cast<unsigned char*>(saved);
  return chunk;
}

// What a split into segments needs.
struct Split {
  float* starts = nullptr;
  SegmentMaps maps;
};
std::int64_t boundary_floats(const Sequences& sequences, const TwoKeyCall& call, int segments) {
  return sequences.count() * call.value_heads * segments * call.d_k * call.d_v;
}
Split split_scratch(Context& context, const Sequences& sequences, const TwoKeyCall& call,
                    Segments& segments, bool maps = true) {
  Split split;
  if (segments.count == 1) return split;
  split.starts = static_cast<float*>(workspace(
      context, bytes_of(boundary_floats(sequences, call, segments.count), sizeof(float))));
  split.maps.h = split.starts + static_cast<std::int64_t>(call.d_k) * call.d_v;
  if (maps) {
    split.maps.m =
        workspace(context, bytes_of(sequences.count() * call.value_heads * segments.count,
                                    static_cast<std::size_t>(map_bytes(call.d_k))));
  }
  segments.starts = split.starts;
  return split;
}

}  // namespace

bool chunk_path_takes(const TwoKeyCall& call) {
  constexpr int kMostKeyDim = 128;
  if (call.format != Dtype::bf16 && call.format != Dtype::f16) return false;
  if (call.d_k % 8 != 0 || call.d_k > kMostKeyDim || call.d_v % 8 != 0) return false;
  if (call.rows.count > std::numeric_limits<std::int32_t>::max()) return false;
  return scan_shared_bytes(call, engine()) <= shared_bytes();
}

std::int64_t chunk_saved_bytes(const Sequences& sequences, const TwoKeyCall& call) {
  constexpr std::int64_t kMost = 700;
  const std::int64_t bytes = rankone::cuda::count_chunks(sequences, kChunkRows) *
                             RecordLayout(call.d_k, call.gate, call.delta).bytes;
  return bytes <= kMost * sequences.rows() ? bytes * call.value_heads : 0;
}

void chunk_forward(Context& context, const Sequences& sequences, const TwoKeyCall& call, bool saves,
                   void* saved) {
  const Engine chosen = engine();
  const std::int64_t chunks = (sequences.longest() + kChunkRows - 1) / kChunkRows;
  const ForwardPlan plan =
      plan_forward(call, chunks, takes_lean_records(call, chosen), multiprocessors());
  // What the vjp wants of records is all of them; the segments and so the bits are the same.
  const bool lean = plan.lean && !saves;
  const Windows windows = lean ? plan.windows : Windows{};
  Segments segments = plan.windows.count > 1 ? Segments{} : plan.segments;
  if (call.o == nullptr) {
    segments.lead = false;
    segments.first_part = segments.last_part = 0;
  }
  const ChunkCall chunk = with_records(context, call, saved, lean);
  if (windows.count > 1) segments = {windows.count, 2};
  const Split split = split_scratch(context, sequences, call, segments, windows.count == 1);
  if (context.planning()) return;
  const ScanTensors tensors = scan_tensors(call, chosen);
  if (windows.count > 1) {
    launch_chunk_prep(chunk, {chosen, multiprocessors(), windows.prepared(0)}, context.stream());
    for (int i = 0; i < windows.count; ++i) {
      const PrepBeside beside{windows.prepared(i), windows.prepared(i + 1), windows.blocks};
      launch_scan_window(chunk, tensors, segments, split.maps.h, i, beside, context.stream());
    }
    return;
  }
  launch_chunk_prep(chunk, {chosen, multiprocessors()}, context.stream());
  if (segments.count > 1) {
    launch_segment_maps(chunk, tensors, segments, split.maps, chosen, context.stream());
    if (scan_carries(segments, chosen, call.o != nullptr, plan.lean)) {
      segments.maps = split.maps.m;
    } else {
      launch_segment_boundaries(chunk, segments.count, split.maps, split.starts, nullptr, chosen,
                                context.stream());
    }
  }
  launch_scan(chunk, tensors, segments, chosen, context.stream());
}

void chunk_backward(Context& context, const Sequences& sequences, const TwoKeyCall& call,
                    const TwoKeyBack& back, const void* saved) {
  ChunkCall chunk = with_records(context, call, const_cast<void*>(saved));  // only read if given
  const std::int64_t values = sequences.rows() * call.value_heads * call.d_v;
  const std::int64_t states = chunk.state_tile(call.rows.chunks, 0, 0);
  constexpr std::size_t kElement = 2;  // bytes
  chunk.states = workspace(context, bytes_of(states, kElement));
  chunk.d_states = workspace(context, bytes_of(states, kElement));
  void* const z = call.delta ? workspace(context, bytes_of(values, kElement)) : nullptr;
  chunk.z = call.delta ? z : call.v;
  void* const d_value =
      back.d_v != nullptr ? back.d_v : workspace(context, bytes_of(values, kElement));
  chunk.d_value = d_value;
  chunk.gate_sums =
      static_cast<float*>(workspace(context, bytes_of(chunk_grad_floats(chunk), sizeof(float))));
  const std::int64_t chunks = (sequences.longest() + kChunkRows - 1) / kChunkRows;
  const Engine chosen = engine();
  double microseconds = 0.0;
  Segments segments = plan_segments(sequences.count(), call.value_heads, call.d_k, call.d_v, chunks,
                                    multiprocessors(), true, false, &microseconds);
  int cluster = 1;
  const bool takes_narrow =
      chosen == Engine::wgmma &&
      takes_narrow_back(call, chunks, multiprocessors(), microseconds, cluster);
  if (takes_narrow) segments = Segments{};
  const Split split = split_scratch(context, sequences, call, segments);
  ScanBack scan{back.d_o, back.d_final, z, d_value, back.d_initial, nullptr};
  if (segments.count > 1) {
    scan.ends = static_cast<float*>(workspace(
        context, bytes_of(boundary_floats(sequences, call, segments.count), sizeof(float))));
  }
  if (context.planning()) return;
  if (saved == nullptr) {
    launch_chunk_prep(chunk, {chosen, multiprocessors()}, context.stream());
  }
  if (takes_narrow) {
    launch_narrow_scan_back(chunk, cluster, scan, context.stream());
  } else {
    const ScanTensors tensors = scan_tensors(call, chosen);
    if (segments.count > 1) {
      launch_segment_maps_back(chunk, tensors, segments, split.maps, scan, chosen,
                               context.stream());
      launch_segment_boundaries(chunk, segments.count, split.maps, split.starts, scan.ends, chosen,
                                context.stream());
    }
    launch_scan_back(chunk, tensors, segments, scan, chosen, context.stream());
  }
  launch_chunk_grad(chunk, back, {chosen, multiprocessors(), shared_bytes()}, context.stream());
}

}  // namespace rankone::recurrence::cuda
