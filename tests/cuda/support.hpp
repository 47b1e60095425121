#pragma once

// The backend under test: the GPU in a build with CUDA, else the same code on emulated threads.

#include <gtest/gtest.h>

#include "core/context.hpp"
#include "core/device.hpp"
#include "recurrence/backend.hpp"
#include "recurrence/cuda/cuda_backend.hpp"
#include "recurrence/cuda/host_calls.hpp"
#if defined(RANKONE_CUDA_EMULATION)
#include "core/cuda/language.hpp"
#endif

namespace rankone::test {

#if defined(RANKONE_CUDA_EMULATION)
inline constexpr bool kEmulated = true;
#else
inline constexpr bool kEmulated = false;
#endif

inline const char* backend_name() { return kEmulated ? "cuda-emulated" : "cuda"; }

// For tensors of the device under test.
inline ContextOptions device_options() {
  return {
      .device = kEmulated ? Device::cpu : Device::cuda, .threads = 1, .backends = {backend_name()}};
}

inline const recurrence::Backend& cuda_backend() {
  static const recurrence::CudaBackend backend;
  static const recurrence::RegisteredBackend registration(backend);
  return backend;
}

inline Context cuda_context() {
  cuda_backend();
  return Context(device_options());
}

// For tensors in host memory, watched (recurrence/cuda/host_calls.hpp).
inline const recurrence::HostCalls& host_calls() {
  static const recurrence::HostCalls calls("host-calls", cuda_backend(), device_options());
  static const recurrence::RegisteredBackend registration(calls);
  return calls;
}
inline Context host_context() {
  return Context({.threads = 1, .backends = {std::string(host_calls().name())}});
}

// How the emulation takes the turns of the threads of a block; nothing on a GPU.
inline void set_thread_order(std::uint64_t seed) {
#if defined(RANKONE_CUDA_EMULATION)
  cuda::emulation::set_order(seed);
#else
  static_cast<void>(seed);
#endif
}

// First line of every test that needs the backend.
#define RANKONE_NEEDS_CUDA()                                \
  if (const std::string problem = ::rankone::gpu_problem(); \
      !::rankone::test::kEmulated && !problem.empty()) {    \
    GTEST_SKIP() << problem;                                \
  }                                                         \
  static_assert(true)

}  // namespace rankone::test
