#pragma once

// The kernels of chunk_narrow.hpp for one format. A .cu file for each names them, so that they
// compile side by side.

#include "recurrence/cuda/chunk_narrow.hpp"
#include "recurrence/cuda/chunk_narrow_forward.hpp"
#include "recurrence/cuda/chunk_scan_kernels.hpp"

namespace rankone::recurrence::cuda {

template <class Format, int DK, int N, bool Scaled, bool Delta, bool Output>
__global__ void __launch_bounds__(kNarrowThreads, 1)
    narrow_kernel(const __grid_constant__ NarrowForward scan) {
  scan_narrow<Format, DK, N, Scaled, Delta, Output>(scan);
}

// Stages that fit Hopper's shared memory, at most four.
inline int narrow_stages(int stage_bytes, int own) {
  constexpr int kMostBytes = 227 * 1024;
  int stages = 2;
  while (stages < 4 && narrow_bytes(stages + 1, stage_bytes, own) <= kMostBytes) ++stages;
  return stages;
}

// visit(DK, Scaled, Delta, N, Output), all known at compile time.
template <class Visit>
void with_narrow_choices(const TwoKeyCall& call, int columns, bool output, Visit&& visit) {
  with_scan_choices(call, [&](auto dk, auto scaled, auto delta) {
    const auto with_output = [&](auto n) {
      output ? visit(dk, scaled, delta, n, std::true_type{})
             : visit(dk, scaled, delta, n, std::false_type{});
    };
    columns == 32 ? with_output(std::integral_constant<int, 32>{})
                  : with_output(std::integral_constant<int, 64>{});
  });
}

template <class Format>
void start_narrow(NarrowForward scan, const NarrowPlan& plan, void* stream) {
  const TwoKeyCall& call = scan.chunk.call;
  const std::int64_t blocks = narrow_blocks(call, plan.columns, scan.width, plan.cluster);
  with_narrow_choices(
      call, plan.columns, call.o != nullptr,
      [&](auto dk, auto scaled, auto delta, auto n, auto output) {
        using Stage = NarrowStage<dk, n, scaled, delta, output>;
        const int bytes = Stage::bytes(call.same_key), own = NarrowOwn<Stage>::kBytes;
        scan.stages = narrow_stages(bytes, own);
        launch_clusters(narrow_kernel<Format, dk, n, scaled, delta, output>, blocks, plan.cluster,
                        kNarrowThreads,
                        static_cast<std::size_t>(narrow_bytes(scan.stages, bytes, own)), stream,
                        scan);
      });
}

// Defined in chunk_narrow_{bf16,f16}.cu.
void start_narrow_bf16(const NarrowForward& scan, const NarrowPlan& plan, void* stream);
void start_narrow_f16(const NarrowForward& scan, const NarrowPlan& plan, void* stream);

}  // namespace rankone::recurrence::cuda
