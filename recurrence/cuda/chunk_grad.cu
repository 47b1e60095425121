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

}  // namespace

std::int64_t chunk_grad_floats(const ChunkCall& chunk) {
  const TwoKeyCall& call = chunk.call;
  // 64 columns: what a device with little shared memory may need.
  if (passes(call, 64) == 1) return 0;
  return call.rows.chunks * call.value_heads * 2 * kChunkRows;
}

void launch_chunk_grad(const ChunkCall& chunk, const TwoKeyBack& back,
                       const ChunkGradDevice& device, void* stream) {
  const TwoKeyCall& call = chunk.call;
  const int shared = device.shared_bytes;
  GradCall grad{chunk, back, 0, static_cast<int>(call.value_heads / call.heads), 2};
  int columns = pass_columns(call);
  if (grad_shared_bytes(call.gate, columns, 2) > shared) columns = 64;
  if (grad_shared_bytes(call.gate, columns, 2) > shared) grad.stages = 1;
  grad.passes = passes(call, columns);
  const std::int64_t items = call.rows.chunks * call.heads;
  const std::int64_t blocks = items < device.multiprocessors ? items : device.multiprocessors;
  const bool brain = call.format == Dtype::bf16;
  if (device.engine == Engine::mma) {
    return (brain ? start_grad_mma_bf16 : start_grad_mma_f16)(grad, columns, blocks, stream);
  }
  (brain ? start_grad_wgmma_bf16 : start_grad_wgmma_f16)(grad, columns, blocks, stream);
}

}  // namespace rankone::recurrence::cuda
