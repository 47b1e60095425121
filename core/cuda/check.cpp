#include "core/cuda/check.hpp"

#include "core/status.hpp"

namespace rankone::cuda {

void fail_cuda(cudaError_t error, const char* what) {
  static_cast<void>(cudaGetLastError());
  fail(error == cudaErrorMemoryAllocation ? Status::out_of_memory : Status::failed, "[cuda] {}: {}",
       what, cudaGetErrorString(error));
}

}  // namespace rankone::cuda
