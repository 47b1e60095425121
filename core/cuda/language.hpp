#pragma once

// The language of the kernels: CUDA C++, used through a small common part, so that the same source
// also runs on a CPU (RANKONE_CUDA_EMULATION: core/cuda_emulation), where tests without a GPU and
// sanitizers reach it. A kernel
//
//   - is a __global__ function template or function, started with launch() from a .cu file;
//   - takes its shared memory from shared_memory();
//   - uses the built-in variables and functions below and the instructions of instructions.hpp.

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "core/dtype.hpp"

#if defined(RANKONE_CUDA_EMULATION)

#include "core/cuda_emulation/language.hpp"

#elif !defined(__CUDACC__)

// The host side of the kernels, without nvcc: for the structs that calls are made of.
#include <cuda_runtime_api.h>

#else

#include <cuda_runtime.h>

#include <map>
#include <utility>

#include "core/cuda/check.hpp"

namespace rankone::cuda {

// Dynamic shared memory of the block, aligned to 1,024 bytes (what the swizzle of RowTile needs).
__device__ __forceinline__ unsigned char* shared_memory() {
  extern __shared__ __align__(1024) unsigned char rankone_shared[];
  return rankone_shared;
}

// The calling threads of a barrier: `count` of the block, a multiple of 32; id 1..15.
__device__ __forceinline__ void barrier_sync(int id, int count) {
  asm volatile("barrier.sync %0, %1;" ::"r"(id), "r"(count) : "memory");
}
__device__ __forceinline__ void barrier_arrive(int id, int count) {
  asm volatile("barrier.arrive %0, %1;" ::"r"(id), "r"(count) : "memory");
}

__device__ __forceinline__ float bits_to_float(std::uint32_t bits) { return __uint_as_float(bits); }
__device__ __forceinline__ std::uint32_t float_to_bits(float value) {
  return __float_as_uint(value);
}

// Lets `kernel` have `bytes` of dynamic shared memory on the current device. Asks the runtime only
// where this thread has not got as much before: a call of it costs as much as a launch.
inline void allow_shared(const void* kernel, std::size_t bytes) {
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  thread_local std::map<std::pair<const void*, int>, std::size_t> allowed;
  std::size_t& most = allowed[{kernel, device}];
  if (bytes <= most) return;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(bytes)),
        "cudaFuncSetAttribute");
  most = bytes;
}

// Starts `kernel` on `blocks` blocks of `threads` threads with `shared_bytes` of dynamic shared
// memory, `cluster` neighbouring blocks at once on neighbouring multiprocessors (Hopper; 1, 2, 4 or
// 8, `blocks` a multiple). Fails with the CUDA error's own words. Nothing is started for blocks =
// 0.
template <class... Parameters, class... Arguments>
void launch_clusters(void (*kernel)(Parameters...), std::int64_t blocks, int cluster, int threads,
                     std::size_t shared_bytes, void* stream, const Arguments&... arguments) {
  if (blocks == 0) return;
  if (shared_bytes > 48 * 1024) {
    allow_shared(reinterpret_cast<const void*>(kernel), shared_bytes);
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared_bytes;
  config.stream = static_cast<cudaStream_t>(stream);
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = static_cast<unsigned>(cluster);
  attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  config.attrs = &attribute;
  config.numAttrs = cluster > 1 ? 1 : 0;
  check(cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...), "cudaLaunchKernelEx");
}
template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), std::int64_t blocks, int threads,
            std::size_t shared_bytes, void* stream, const Arguments&... arguments) {
  launch_clusters(kernel, blocks, 1, threads, shared_bytes, stream, arguments...);
}

}  // namespace rankone::cuda

#endif
