#include "recurrence/cuda/chunk_grad_kernels.hpp"

namespace rankone::recurrence::cuda {

void start_grad_wgmma_f16(const GradCall& call, int columns, std::int64_t blocks, void* stream) {
  start_grad<f16, WgmmaEngine<f16>>(call, columns, blocks, stream);
}

void start_stream_f16(const GradCall& call, int blocks, void* stream) {
  start_stream<f16>(call, blocks, stream);
}

void start_anchored_f16(const GradCall& call, int blocks, void* stream) {
  start_anchored<f16>(call, blocks, stream);
}

}  // namespace rankone::recurrence::cuda
