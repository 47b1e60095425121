#pragma once

// The kernels of chunk_scan.hpp for one format and engine. A .cu file for each names them, so that
// they compile side by side and wgmma only where it exists.

#include "recurrence/cuda/chunk_scan_backward.hpp"
#include "recurrence/cuda/chunk_scan_forward.hpp"

namespace rankone::recurrence::cuda {

// Three stages fit a Hopper block up to K = 128 with all three keys, two the 163 KB of older
// data-centre GPUs.
template <class Engine>
inline constexpr int kScanStages = Engine::kBulk ? 3 : 2;

template <class Format, int DK, bool Scaled, bool Delta, bool Output, class Engine>
__global__ void __launch_bounds__(kScanThreads<Engine>, 1)
    scan_kernel(const __grid_constant__ ScanForward scan) {
  scan_forward<Format, DK, Scaled, Delta, Output, kScanStages<Engine>, Engine>(scan, blockIdx.x);
}

// The first half of the blocks goes back, the others forward.
template <class Format, int DK, bool Scaled, bool Delta, class Engine>
__global__ void __launch_bounds__(kScanThreads<Engine>, 1)
    scan_back_kernel(const __grid_constant__ ScanBackward back,
                     const __grid_constant__ ScanForward forward) {
  const std::int64_t half = gridDim.x / 2;
  if (blockIdx.x < half) {
    scan_backward<Format, DK, Scaled, Delta, kScanStages<Engine>, Engine>(back, blockIdx.x);
  } else {
    scan_forward<Format, DK, Scaled, Delta, false, kScanStages<Engine>, Engine>(forward,
                                                                                blockIdx.x - half);
  }
}

// Calls visit with the compile-time choices of a call: DK, Scaled, Delta.
template <class Visit>
void with_scan_choices(const TwoKeyCall& call, Visit&& visit) {
  using std::bool_constant;
  const auto with_dk = [&](auto scaled, auto delta) {
    if (key_columns(call.d_k) == 64) {
      visit(std::integral_constant<int, 64>{}, scaled, delta);
    } else {
      visit(std::integral_constant<int, 128>{}, scaled, delta);
    }
  };
  const bool scaled = call.gate == GateKind::channel;
  if (scaled && call.delta) with_dk(bool_constant<true>{}, bool_constant<true>{});
  if (scaled && !call.delta) with_dk(bool_constant<true>{}, bool_constant<false>{});
  if (!scaled && call.delta) with_dk(bool_constant<false>{}, bool_constant<true>{});
  if (!scaled && !call.delta) with_dk(bool_constant<false>{}, bool_constant<false>{});
}

// The rows of a call for the copy engine; `value` is v or dO.
inline ScanTensors scan_tensors(const ChunkCall& chunk, const void* value) {
  const TwoKeyCall& call = chunk.call;
  const std::int64_t rows = call.rows.count;
  ScanTensors tensors = {};
  if (call.gate != GateKind::channel) {
    tensors.query = row_map(call.q, rows, call.heads, call.d_k);
    tensors.write = row_map(call.w, rows, call.heads, call.d_k);
    if (call.delta && !call.same_key) tensors.erase = row_map(call.e, rows, call.heads, call.d_k);
  }
  tensors.value = row_map(value, rows, call.value_heads, call.d_v);
  return tensors;
}

template <class Format, class Engine>
void start_scan(ScanForward scan, bool output, void* stream) {
  const TwoKeyCall& call = scan.chunk.call;
  if constexpr (Engine::kBulk) scan.tensors = scan_tensors(scan.chunk, call.v);
  const std::int64_t blocks = call.rows.sequences * call.value_heads *
                              scan_units(call, scan.segments.count, scan.maps.h != nullptr);
  with_scan_choices(call, [&](auto dk, auto scaled, auto delta) {
    const auto start = [&](auto seen) {
      const ScanStage<dk, scaled> stage(delta, call.same_key, seen);
      launch(scan_kernel<Format, dk, scaled, delta, seen, Engine>, blocks, kScanThreads<Engine>,
             static_cast<std::size_t>(kScanStages<Engine> * (stage.bytes + 8)), stream, scan);
    };
    output ? start(std::true_type{}) : start(std::false_type{});
  });
}

template <class Format, class Engine>
void start_scan_back(ScanBackward back, ScanForward forward, void* stream) {
  const TwoKeyCall& call = back.chunk.call;
  if constexpr (Engine::kBulk) {
    back.tensors = scan_tensors(back.chunk, back.back.d_o);
    forward.tensors = scan_tensors(forward.chunk, call.v);
  }
  const std::int64_t blocks = 2 * call.rows.sequences * call.value_heads * value_tiles(call.d_v);
  with_scan_choices(call, [&](auto dk, auto scaled, auto delta) {
    const ScanStage<dk, scaled> stage(delta, call.same_key, true);
    launch(scan_back_kernel<Format, dk, scaled, delta, Engine>, blocks, kScanThreads<Engine>,
           static_cast<std::size_t>(kScanStages<Engine> * (stage.bytes + 8)), stream, back,
           forward);
  });
}

// One pair for every format and engine, defined in chunk_scan_{mma,wgmma}_{bf16,f16}.cu.
#define RANKONE_SCAN(name)                                                    \
  void start_scan_##name(const ScanForward& scan, bool output, void* stream); \
  void start_scan_back_##name(const ScanBackward& back, const ScanForward& forward, void* stream);
RANKONE_SCAN(mma_bf16)
RANKONE_SCAN(mma_f16)
RANKONE_SCAN(wgmma_bf16)
RANKONE_SCAN(wgmma_f16)
#undef RANKONE_SCAN

}  // namespace rankone::recurrence::cuda
