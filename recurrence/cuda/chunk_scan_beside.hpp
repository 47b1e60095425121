#pragma once

// The forward scan of a window of the chunks beside the preparation of what comes after it, for
// calls whose scan leaves multiprocessors idle: lean records, blocks of two tiles, 128 channels.

#include "recurrence/cuda/chunk_prep_bulk.hpp"
#include "recurrence/cuda/chunk_scan_kernels.hpp"

namespace rankone::recurrence::cuda {

inline constexpr int kTeams = 3;  // of a block that prepares: for which it has threads

template <class Format, int DK, bool Separate>
__device__ __forceinline__ void prepare_beside(const ChunkCall& c, const KeyMaps& maps,
                                               PrepTurns turns, std::uint32_t block,
                                               std::uint32_t blocks) {
  using S = PrepShape<DK, true, Separate, true>;
  // Teams, then the warps that feed them.
  const int warp = warp_number(), team = warp < 4 * kTeams ? warp / 4 : warp - 4 * kTeams;
  auto& shared =
      *reinterpret_cast<typename S::Shared*>(shared_memory() + team % kTeams * S::kSharedBytes);
  if (warp >= 4 * kTeams && warp < 5 * kTeams && threadIdx.x % 32 == 0) shared.begin();
  __syncthreads();
  if (team >= kTeams) return;
  turns.first += block * kTeams + static_cast<std::uint32_t>(team);
  turns.step = blocks * kTeams;
  if (warp >= 4 * kTeams) {
    feed_team<Format, DK, true, Separate, true>(c, maps, turns, shared);
  } else {
    work_team<Format, DK, true, Separate, true>(c, turns, shared, 1 + team);
  }
}

// The first blocks scan.
template <class Format, int DK, class Engine>
__global__ void __launch_bounds__(ScanBlock<Engine>::kMakingThreads, 1)
    scan_beside_kernel(const __grid_constant__ ScanForward scan, const PrepTurns turns,
                       std::uint32_t scan_blocks) {
  if constexpr (kRunsHere<Engine>) {
    if (blockIdx.x < scan_blocks) {
      return scan_forward<Format, DK, false, true, true, Engine, true, true>(scan, blockIdx.x);
    }
    const KeyMaps maps{&scan.tensors.query, &scan.tensors.write, &scan.tensors.erase};
    const std::uint32_t block = blockIdx.x - scan_blocks, blocks = gridDim.x - scan_blocks;
    if (scan.chunk.call.same_key) {
      prepare_beside<Format, DK, false>(scan.chunk, maps, turns, block, blocks);
    } else {
      prepare_beside<Format, DK, true>(scan.chunk, maps, turns, block, blocks);
    }
  }
}

template <class Format, class Engine>
void start_scan_beside(ScanForward scan, const PrepBeside& beside, void* stream) {
  constexpr int kColumns = 128;
  using Block = ScanBlock<Engine>;
  const bool same_key = scan.chunk.call.same_key;
  const std::int64_t scan_blocks = prepare_scan<Engine>(scan);
  const int stage = FedStage<kColumns, false, true, true, true>::bytes(same_key, scan.groups);
  scan.stages = scan_stages<Engine>(stage);
  const int teams = kTeams * (same_key ? PrepShape<kColumns, true, false, true>::kSharedBytes
                                       : PrepShape<kColumns, true, true, true>::kSharedBytes);
  launch(scan_beside_kernel<Format, kColumns, Engine>, scan_blocks + beside.blocks,
         Block::kMakingThreads,
         static_cast<std::size_t>(std::max(scan_bytes(scan.stages, stage), teams)), stream, scan,
         prep_turns(scan.chunk.call, beside.from, beside.to),
         static_cast<std::uint32_t>(scan_blocks));
}

}  // namespace rankone::recurrence::cuda
