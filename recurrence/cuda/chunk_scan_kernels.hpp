#pragma once

// The kernels of chunk_scan.hpp for one format and engine. A .cu file for each names them, so that
// they compile side by side and wgmma only where it exists.

#include "recurrence/cuda/chunk_scan_backward.hpp"
#include "recurrence/cuda/chunk_scan_forward.hpp"

namespace rankone::recurrence::cuda {

// Threads of a block of the forward scan.
template <class Engine, bool More>
inline constexpr int kScanThreads =
    More ? ScanBlock<Engine>::kMakingThreads : ScanBlock<Engine>::kThreads;

template <class Format, int DK, bool Scaled, bool Delta, bool Output, class Engine, bool Lean,
          bool Pairs>
__global__ void __launch_bounds__((kScanThreads<Engine, Lean && Output && Pairs>), 1)
    scan_kernel(const __grid_constant__ ScanForward scan) {
  if constexpr (kRunsHere<Engine>) {
    scan_forward<Format, DK, Scaled, Delta, Output, Engine, Lean, Pairs>(scan, blockIdx.x);
  }
}

// The first blocks scan, with outputs, the others make maps.
template <class Format, int DK, bool Scaled, bool Delta, class Engine, bool Lean>
__global__ void __launch_bounds__(ScanBlock<Engine>::kThreads, 1)
    scan_lead_kernel(const __grid_constant__ ScanForward lead,
                     const __grid_constant__ ScanForward maps, std::int64_t lead_blocks) {
  if constexpr (!kRunsHere<Engine>) {
  } else if (blockIdx.x < lead_blocks) {
    scan_forward<Format, DK, Scaled, Delta, true, Engine, Lean, false>(lead, blockIdx.x);
  } else {
    scan_forward<Format, DK, Scaled, Delta, false, Engine, Lean, false>(maps,
                                                                        blockIdx.x - lead_blocks);
  }
}

// The first blocks go back, the others forward.
template <class Format, int DK, bool Scaled, bool Delta, class Engine>
__global__ void __launch_bounds__(ScanBlock<Engine>::kThreads, 1)
    scan_back_kernel(const __grid_constant__ ScanBackward back,
                     const __grid_constant__ ScanForward forward) {
  if constexpr (!kRunsHere<Engine>) {
  } else if (blockIdx.x < back.blocks) {
    scan_backward<Format, DK, Scaled, Delta, Engine>(back, blockIdx.x);
  } else {
    scan_forward<Format, DK, Scaled, Delta, false, Engine, false, false>(forward,
                                                                         blockIdx.x - back.blocks);
  }
}

// As many stages as fit a block: on Hopper's 227 KB at most four, with ordinary copies two (of the
// 163 KB of older data-centre GPUs).
template <class Engine>
int scan_stages(int stage_bytes) {
  constexpr int kMostBytes = 227 * 1024;
  int stages = 2;
  while (Engine::kBulk && stages < 4 && scan_bytes(stages + 1, stage_bytes) <= kMostBytes) ++stages;
  return stages;
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

// How many tiles a block takes where `wanted` are.
template <class Engine>
int block_tiles(int wanted) {
  return wanted < ScanBlock<Engine>::kGroups ? wanted : ScanBlock<Engine>::kGroups;
}

// Sets how many tiles a block takes; the number of blocks.
template <class Engine>
std::int64_t prepare_scan(ScanForward& scan) {
  const TwoKeyCall& call = scan.chunk.call;
  scan.groups =
      block_tiles<Engine>(scan.range.maps ? scan.segments.map_tiles : scan.segments.scan_tiles);
  return call.rows.sequences * call.value_heads * scan_units(call, scan.range, scan.groups);
}

// Of the kernels that take lean records or of the others.
template <class Format, class Engine, bool Lean>
void start_scan_lead(ScanForward lead, ScanForward maps, void* stream) {
  using Block = ScanBlock<Engine>;
  const TwoKeyCall& call = lead.chunk.call;
  if (Lean) lead.segments.scan_tiles = 1;
  const std::int64_t lead_blocks = prepare_scan<Engine>(lead);
  const std::int64_t blocks = lead_blocks + prepare_scan<Engine>(maps);
  with_scan_choices(call, [&](auto dk, auto scaled, auto delta) {
    if constexpr (!Lean || (delta && !scaled)) {
      const auto bytes_of = [&](ScanForward& scan, auto seen) {
        const int bytes =
            FedStage<dk, scaled, delta, seen, Lean>::bytes(call.same_key, scan.groups);
        scan.stages = scan_stages<Engine>(bytes);
        return scan_bytes(scan.stages, bytes);
      };
      const int bytes =
          std::max(bytes_of(lead, std::true_type{}), bytes_of(maps, std::false_type{}));
      launch(scan_lead_kernel<Format, dk, scaled, delta, Engine, Lean>, blocks, Block::kThreads,
             static_cast<std::size_t>(bytes), stream, lead, maps, lead_blocks);
    }
  });
}

template <class Format, class Engine, bool Lean>
void start_scan(ScanForward scan, bool output, void* stream) {
  const TwoKeyCall& call = scan.chunk.call;
  const std::int64_t blocks = prepare_scan<Engine>(scan);
  with_scan_choices(call, [&](auto dk, auto scaled, auto delta) {
    if constexpr (!Lean || (delta && !scaled)) {
      const auto start = [&](auto seen, auto pairs) {
        const int bytes =
            FedStage<dk, scaled, delta, seen, Lean>::bytes(call.same_key, scan.groups);
        scan.stages = scan_stages<Engine>(bytes);
        launch(scan_kernel<Format, dk, scaled, delta, seen, Engine, Lean, pairs>, blocks,
               kScanThreads<Engine, (Lean && seen && pairs)>,
               static_cast<std::size_t>(scan_bytes(scan.stages, bytes)), stream, scan);
      };
      if (!output) return start(std::false_type{}, std::false_type{});
      if constexpr (Lean) {
        if (scan.groups > 1) return start(std::true_type{}, std::true_type{});
      }
      start(std::true_type{}, std::false_type{});
    }
  });
}

template <class Format, class Engine>
void start_scan_back(ScanBackward back, ScanForward forward, void* stream) {
  using Block = ScanBlock<Engine>;
  const TwoKeyCall& call = back.chunk.call;
  if constexpr (Engine::kBulk) {
    back.tensors = forward.tensors;
    back.tensors.value = row_map(back.back.d_o, call.rows.count, call.value_heads, call.d_v);
  }
  const std::int64_t heads = call.rows.sequences * call.value_heads;
  const Segments& segments = forward.segments;
  back.groups = block_tiles<Engine>(back.maps ? segments.map_tiles : segments.scan_tiles);
  forward.groups = back.groups;
  back.blocks = heads * scan_units(call, {back.maps ? 1 : 0, segments.count, false}, back.groups);
  const std::int64_t blocks = back.blocks + heads * scan_units(call, forward.range, forward.groups);
  with_scan_choices(call, [&](auto dk, auto scaled, auto delta) {
    const int bytes = ScanStage<dk, scaled, delta, true>::bytes(call.same_key, back.groups);
    back.stages = scan_stages<Engine>(bytes);
    forward.stages = back.stages;
    launch(scan_back_kernel<Format, dk, scaled, delta, Engine>, blocks, Block::kThreads,
           static_cast<std::size_t>(scan_bytes(back.stages, bytes)), stream, back, forward);
  });
}

// For every format and engine, defined in chunk_scan_{mma,wgmma,lean}_{bf16,f16}.cu; "lean" is
// wgmma with lean records.
#define RANKONE_SCAN(name)                                                    \
  void start_scan_##name(const ScanForward& scan, bool output, void* stream); \
  void start_scan_lead_##name(const ScanForward& lead, const ScanForward& maps, void* stream);
#define RANKONE_SCAN_BACK(name) \
  void start_scan_back_##name(const ScanBackward& back, const ScanForward& forward, void* stream);
RANKONE_SCAN(mma_bf16)
RANKONE_SCAN(mma_f16)
RANKONE_SCAN(wgmma_bf16)
RANKONE_SCAN(wgmma_f16)
RANKONE_SCAN(lean_bf16)
RANKONE_SCAN(lean_f16)
void start_scan_beside_bf16(const ScanForward& scan, const PrepBeside& beside, void* stream);
void start_scan_beside_f16(const ScanForward& scan, const PrepBeside& beside, void* stream);
RANKONE_SCAN_BACK(mma_bf16)
RANKONE_SCAN_BACK(mma_f16)
RANKONE_SCAN_BACK(wgmma_bf16)
RANKONE_SCAN_BACK(wgmma_f16)
#undef RANKONE_SCAN
#undef RANKONE_SCAN_BACK

}  // namespace rankone::recurrence::cuda
