// Which narrow kernel a scan takes. (A .cu file for the types it shares with them.)

#include "recurrence/cuda/chunk_narrow.hpp"

#include "recurrence/cuda/chunk_narrow_kernels.hpp"

namespace rankone::recurrence::cuda {

namespace {

NarrowForward narrow_forward(const ChunkCall& chunk, void* z) {
  const TwoKeyCall& call = chunk.call;
  NarrowForward scan;
  scan.chunk = chunk;
  scan.tensors = scan_tensors(call, Engine::wgmma);
  scan.tensors.value =
      rankone::cuda::row_map(call.v, call.rows.count, call.value_heads, call.d_v, kNarrowColumns);
  scan.z = z;
  scan.width = value_tiles(call.d_v) * kValueTile;
  return scan;
}

}  // namespace

void launch_narrow_scan_back(const ChunkCall& chunk, int cluster, const ScanBack& back,
                             void* stream) {
  const TwoKeyCall& call = chunk.call;
  const NarrowForward forward = narrow_forward(chunk, back.z);
  NarrowBackward scan;
  scan.chunk = chunk;
  scan.back = back;
  scan.tensors = forward.tensors;
  scan.tensors.value =
      rankone::cuda::row_map(back.d_o, call.rows.count, call.value_heads, call.d_v, kNarrowColumns);
  scan.width = forward.width;
  const ScaleParts scale = scale_parts(call.scale);
  scan.mantissa = scale.mantissa;
  scan.power = scale.power;
  (call.format == Dtype::bf16 ? start_narrow_back_bf16 : start_narrow_back_f16)(scan, forward,
                                                                                cluster, stream);
}

bool takes_narrow_back(const TwoKeyCall& call, std::int64_t chunks, int multiprocessors,
                       double microseconds, int& cluster) {
  // Microseconds on an H200: a chunk of a block while blocks go both ways, and a kernel besides.
  const double chunk = call.d_k <= 64 ? 1.14 : 1.35;
  constexpr double kStart = 8.0;
  constexpr double kMore = 1.3;  // what the other scans take more than they are expected to
  cluster = call.d_v > kNarrowColumns ? 2 : 1;
  const std::int64_t blocks = narrow_blocks(call, value_tiles(call.d_v) * kValueTile, cluster);
  const std::int64_t at_once = multiprocessors / cluster * cluster;
  const auto waves = static_cast<double>((2 * blocks + at_once - 1) / at_once);
  return kStart + waves * static_cast<double>(chunks) * chunk < microseconds * kMore;
}

}  // namespace rankone::recurrence::cuda
