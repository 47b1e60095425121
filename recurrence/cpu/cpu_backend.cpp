#include "recurrence/cpu/cpu_backend.hpp"

namespace rankone::recurrence {

std::string_view CpuBackend::name() const { return "cpu"; }

bool CpuBackend::accepts(const CallShape& call) const {
  return call.device == Device::cpu && call.dtype == Dtype::f32 && !call.gram;
}

const Backend& cpu_backend() {
  static const CpuBackend backend;
  return backend;
}

}  // namespace rankone::recurrence
