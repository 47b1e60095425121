#pragma once

// The kernels of chunk_grad.hpp for one format and engine. A .cu file for each names them, so that
// they compile side by side and wgmma only where it exists.

#include "recurrence/cuda/chunk_grad_scalar.hpp"

namespace rankone::recurrence::cuda {

template <class Format, class Engine, int Columns, bool Totals>
__global__ void __launch_bounds__(kGradThreads, 1)
    grad_scalar_kernel(const __grid_constant__ GradCall call) {
  GradScalar<Format, Engine, Columns, Totals>(call).run();
}

template <class Format, class Engine>
void start_grad(const GradCall& call, int columns, std::int64_t blocks, void* stream) {
  if (columns == 64) {
    launch(grad_scalar_kernel<Format, Engine, 64, true>, blocks, kGradThreads,
           grad_shared_bytes(columns, call.stages), stream, call);
  } else {
    launch(grad_scalar_kernel<Format, Engine, 128, false>, blocks, kGradThreads,
           grad_shared_bytes(columns, call.stages), stream, call);
  }
}

// Defined in chunk_grad_{mma,wgmma}_{bf16,f16}.cu.
#define RANKONE_GRAD(name) \
  void start_grad_##name(const GradCall& call, int columns, std::int64_t blocks, void* stream);
RANKONE_GRAD(mma_bf16)
RANKONE_GRAD(mma_f16)
RANKONE_GRAD(wgmma_bf16)
RANKONE_GRAD(wgmma_f16)
#undef RANKONE_GRAD

}  // namespace rankone::recurrence::cuda
