// Which narrow kernel a scan takes. (A .cu file for the types it shares with them.)

#include "recurrence/cuda/chunk_narrow.hpp"

#include "recurrence/cuda/chunk_narrow_kernels.hpp"

namespace rankone::recurrence::cuda {

void launch_narrow_scan(const ChunkCall& chunk, const NarrowPlan& plan, void* z, void* stream) {
  const TwoKeyCall& call = chunk.call;
  NarrowForward scan;
  scan.chunk = chunk;
  scan.tensors = scan_tensors(call, Engine::wgmma);
  scan.tensors.value =
      rankone::cuda::row_map(call.v, call.rows.count, call.value_heads, call.d_v, plan.columns);
  scan.z = z;
  scan.width = chunk.states != nullptr ? value_tiles(call.d_v) * kValueTile : call.d_v;
  (call.format == Dtype::bf16 ? start_narrow_bf16 : start_narrow_f16)(scan, plan, stream);
}

int narrow_shared_bytes(const TwoKeyCall& call, int columns, bool output) {
  int bytes = 0;
  with_narrow_choices(call, columns, output,
                      [&](auto dk, auto scaled, auto delta, auto n, auto seen) {
                        using Stage = NarrowStage<dk, n, scaled, delta, seen>;
                        const int stage = Stage::bytes(call.same_key);
                        const int own = NarrowOwn<Stage>::kBytes;
                        bytes = narrow_bytes(narrow_stages(stage, own), stage, own);
                      });
  return bytes;
}

}  // namespace rankone::recurrence::cuda
