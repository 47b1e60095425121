#pragma once

// Errors of the CUDA runtime become rankone errors. Kept apart from core/status.hpp, whose
// formatting library is no business of nvcc's.

#include <cuda_runtime_api.h>

namespace rankone::cuda {

[[noreturn]] void fail_cuda(cudaError_t error, const char* what);

// Fails with what was called and the words of CUDA; clears the error, so that it is reported once.
inline void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) fail_cuda(error, what);
}

}  // namespace rankone::cuda
