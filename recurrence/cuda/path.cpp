#include "recurrence/cuda/path.hpp"

#include <cstdlib>
#include <string>

#include "core/status.hpp"
#if !defined(RANKONE_CUDA_EMULATION)
#include "core/device.hpp"
#endif

namespace rankone::recurrence::cuda {

Path requested_path() {
  static const std::string text = [] {
    const char* value = std::getenv("RANKONE_CUDA_PATH");
    return std::string(value != nullptr ? value : "");
  }();
  if (text.empty()) return Path::best;
  if (text == "mma") return Path::mma;
  if (text == "sm90a") return Path::sm90a;
  fail(Status::invalid_argument, "[cuda] RANKONE_CUDA_PATH is '{}' (mma or sm90a)", text);
}

namespace {

// Elsewhere the kernels on wgmma are empty.
#if defined(RANKONE_SM90A) || defined(RANKONE_CUDA_EMULATION)
constexpr bool kBuiltForSm90a = true;
#else
constexpr bool kBuiltForSm90a = false;
#endif

}  // namespace

bool has_sm90a() {
  if (!kBuiltForSm90a) return false;
#if defined(RANKONE_CUDA_EMULATION)
  return true;
#else
  const Capability capability = current_gpu_capability();
  return capability.major == 9 && capability.minor == 0;
#endif
}

Path chosen_path() {
  const Path path = requested_path();
  if (path == Path::mma) return path;
  if (has_sm90a()) return Path::sm90a;
  if (path == Path::sm90a) {
    fail(Status::unsupported, "[cuda] RANKONE_CUDA_PATH is sm90a, but {}",
         kBuiltForSm90a ? "this GPU is no Hopper"
                        : "this build has no code for it (90a in CMAKE_CUDA_ARCHITECTURES)");
  }
  return Path::mma;
}

}  // namespace rankone::recurrence::cuda
