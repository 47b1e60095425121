// Which gradient kernel a call takes. (A .cu file for the types it shares with them.)

#include "recurrence/cuda/chunk_grad.hpp"

#include "recurrence/cuda/chunk_grad_kernels.hpp"

namespace rankone::recurrence::cuda {
namespace {

// With several value heads to a key head the sums over them take the registers of half the columns.
int pass_columns(const TwoKeyCall& call) {
  return call.d_k <= 64 || call.value_heads > call.heads || call.gate == GateKind::channel ? 64
                                                                                           : 128;
}
int passes(const TwoKeyCall& call, int columns) { return (call.d_k + columns - 1) / columns; }

bool stream_takes(const TwoKeyCall& call) {
  const int tiles = value_tiles(call.d_v);
  // Sizes for which kernels are compiled.
  return call.gate != GateKind::channel && call.value_heads == call.heads &&
         (call.d_k <= 64 ? tiles == 1 : call.d_k <= 128 && tiles % 2 == 0);
}

// The sizes for which the kernel with one anchor a channel is compiled.
bool anchored_takes(const TwoKeyCall& call) {
  return call.gate == GateKind::channel && call.value_heads == call.heads && call.d_k > 64 &&
         call.d_k <= 128 && value_tiles(call.d_v) == 2;
}

// 64 columns: what a device with little shared memory may need.
std::int64_t sums_floats(const TwoKeyCall& call) {
  return passes(call, 64) == 1 ? 0 : call.rows.chunks * call.value_heads * 2 * kChunkRows;
}

}  // namespace

std::int64_t chunk_grad_floats(const ChunkCall& chunk) {
  const TwoKeyCall& call = chunk.call;
  const std::int64_t marks = anchored_takes(call) ? call.rows.chunks * call.heads : 0;
  return sums_floats(call) + marks;
}

void launch_chunk_grad(const ChunkCall& chunk, const TwoKeyBack& back,
                       const ChunkGradDevice& device, void* stream) {
  const TwoKeyCall& call = chunk.call;
  const int shared = device.shared_bytes;
  GradCall grad{chunk, back, 0, static_cast<int>(call.value_heads / call.heads), 2};
  const std::int64_t items = call.rows.chunks * call.heads;
  const bool brain = call.format == Dtype::bf16;
  if (device.engine == Engine::wgmma && stream_takes(call) && shared >= kStreamSharedBytes) {
    const std::int64_t wanted = (items + kStreamWorkers - 1) / kStreamWorkers;
    const int blocks =
        static_cast<int>(wanted < device.multiprocessors ? wanted : device.multiprocessors);
    return (brain ? start_stream_bf16 : start_stream_f16)(grad, blocks, stream);
  }
  if (device.engine == Engine::wgmma && anchored_takes(call) && shared >= AnchoredShared::kBytes) {
    // What that leaves is taken by the kernel below.
    grad.marks = reinterpret_cast<int*>(chunk.gate_sums + sums_floats(call));
    const std::int64_t most = std::int64_t{kAnchoredBlocks} * device.multiprocessors;
    const int blocks = static_cast<int>(items < most ? items : most);
    (brain ? start_anchored_bf16 : start_anchored_f16)(grad, blocks, stream);
  }
  int columns = pass_columns(call);
  if (grad_shared_bytes(call.gate, columns, 2) > shared) columns = 64;
  if (grad_shared_bytes(call.gate, columns, 2) > shared) grad.stages = 1;
  grad.passes = passes(call, columns);
  const std::int64_t blocks = items < device.multiprocessors ? items : device.multiprocessors;
  if (device.engine == Engine::mma) {
    return (brain ? start_grad_mma_bf16 : start_grad_mma_f16)(grad, columns, blocks, stream);
  }
  (brain ? start_grad_wgmma_bf16 : start_grad_wgmma_f16)(grad, columns, blocks, stream);
}

}  // namespace rankone::recurrence::cuda
