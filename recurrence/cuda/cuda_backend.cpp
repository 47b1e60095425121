#include "recurrence/cuda/cuda_backend.hpp"

namespace rankone::recurrence {
namespace {

#if defined(RANKONE_CUDA_EMULATION)
constexpr std::string_view kName = "cuda-emulated";
constexpr Device kDevice = Device::cpu;
#else
constexpr std::string_view kName = "cuda";
constexpr Device kDevice = Device::cuda;
#endif

}  // namespace

std::string_view CudaBackend::name() const { return kName; }

bool CudaBackend::accepts(const CallShape& call) const {
  const bool format =
      call.dtype == Dtype::f32 || call.dtype == Dtype::bf16 || call.dtype == Dtype::f16;
  return call.device == kDevice && format && !call.gram;
}

#if !defined(RANKONE_CUDA_EMULATION)
const Backend& cuda_backend() {
  static const CudaBackend backend;
  return backend;
}
#endif

}  // namespace rankone::recurrence
