#pragma once

// The kernels of chunk_narrow.hpp for one format. A .cu file for each names them, so that they
// compile side by side.

#include <algorithm>

#include "recurrence/cuda/chunk_narrow.hpp"
#include "recurrence/cuda/chunk_narrow_backward.hpp"
#include "recurrence/cuda/chunk_narrow_forward.hpp"
#include "recurrence/cuda/chunk_scan_kernels.hpp"

namespace rankone::recurrence::cuda {

// The first blocks go back, the others forward.
template <class Format, int DK, int N, bool Scaled, bool Delta>
__global__ void __launch_bounds__(NarrowBack<DK, N, Scaled, Delta>::kThreads, 1)
    narrow_back_kernel(const __grid_constant__ NarrowBackward back,
                       const __grid_constant__ NarrowForward forward) {
  if constexpr (!kHopper) {
  } else if (blockIdx.x < back.blocks) {
    scan_narrow_back<Format, DK, N, Scaled, Delta>(back, blockIdx.x);
  } else {
    scan_narrow<Format, DK, N, Scaled, Delta>(forward, blockIdx.x - back.blocks);
  }
}

// Stages that fit Hopper's shared memory, at most four.
inline int narrow_stages(int stage_bytes, int own) {
  constexpr int kMostBytes = 227 * 1024;
  int stages = 2;
  while (stages < 4 && narrow_bytes(stages + 1, stage_bytes, own) <= kMostBytes) ++stages;
  return stages;
}

// Those of the way back: as many early ones, and one more where it fits. (Two more are not faster.)
template <class Back>
void narrow_back_stages(NarrowBackward& scan, bool same_key) {
  constexpr int kMostBytes = 227 * 1024;
  const auto fits = [&](int stages, int early) {
    return Back::bytes(stages, early, same_key) <= kMostBytes;
  };
  scan.stages = 2;
  while (scan.stages < 4 && fits(scan.stages + 1, scan.stages + 1)) ++scan.stages;
  scan.early_stages = scan.stages + (fits(scan.stages, scan.stages + 1) ? 1 : 0);
}

template <class Format>
void start_narrow_back(NarrowBackward back, NarrowForward forward, int cluster, void* stream) {
  const TwoKeyCall& call = back.chunk.call;
  const std::int64_t blocks = narrow_blocks(call, back.width, cluster);
  back.blocks = static_cast<std::uint32_t>(blocks);
  with_scan_choices(call, [&](auto dk, auto scaled, auto delta) {
    using Back = NarrowBack<dk, kNarrowColumns, scaled, delta>;
    using Forth = NarrowForth<dk, kNarrowColumns, scaled, delta>;
    const int stage = Forth::Stage::bytes(call.same_key);
    narrow_back_stages<Back>(back, call.same_key);
    forward.stages = narrow_stages(stage, Forth::kOwn);
    const int bytes = std::max(Back::bytes(back.stages, back.early_stages, call.same_key),
                               narrow_bytes(forward.stages, stage, Forth::kOwn));
    launch_clusters(narrow_back_kernel<Format, dk, kNarrowColumns, scaled, delta>, 2 * blocks,
                    cluster, Back::kThreads, static_cast<std::size_t>(bytes), stream, back,
                    forward);
  });
}

// Defined in chunk_narrow_back_{bf16,f16}.cu.
void start_narrow_back_bf16(const NarrowBackward& back, const NarrowForward& forward, int cluster,
                            void* stream);
void start_narrow_back_f16(const NarrowBackward& back, const NarrowForward& forward, int cluster,
                           void* stream);

}  // namespace rankone::recurrence::cuda
