#include "recurrence/cuda/chunk_grad_kernels.hpp"

namespace rankone::recurrence::cuda {

void start_grad_mma_f16(const GradCall& call, int columns, std::int64_t blocks, void* stream) {
  start_grad<f16, MmaEngine<f16>>(call, columns, blocks, stream);
}

}  // namespace rankone::recurrence::cuda
