#include "recurrence/cuda/chunk_grad_kernels.hpp"

namespace rankone::recurrence::cuda {

void start_grad_wgmma_bf16(const GradCall& call, int columns, std::int64_t blocks, void* stream) {
  start_grad<bf16, WgmmaEngine<bf16>>(call, columns, blocks, stream);
}

void start_stream_bf16(const GradCall& call, int blocks, void* stream) {
  start_stream<bf16>(call, blocks, stream);
}

void start_anchored_bf16(const GradCall& call, int blocks, void* stream) {
  start_anchored<bf16>(call, blocks, stream);
}

}  // namespace rankone::recurrence::cuda
