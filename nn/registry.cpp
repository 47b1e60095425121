#include <algorithm>
#include <mutex>
#include <vector>

#include "core/status.hpp"
#include "nn/backend.hpp"
#include "nn/cpu/cpu_backend.hpp"
#include "nn/reference/reference_backend.hpp"

namespace rankone::nn {
namespace {

struct Registry {
  std::mutex mutex;
  std::vector<const Backend*> backends;  // the latest last
};

Registry& registry() {
  static Registry instance;
  return instance;
}

}  // namespace

const Backend& reference_backend() {
  static const ReferenceBackend backend;
  return backend;
}

const Backend& cpu_backend() {
  static const CpuBackend backend;
  return backend;
}

std::string_view ReferenceBackend::name() const { return "reference"; }
bool ReferenceBackend::accepts(Dtype /*dtype*/, Device device) const {
  return device == Device::cpu;
}

std::string_view CpuBackend::name() const { return "cpu"; }
bool CpuBackend::accepts(Dtype dtype, Device device) const {
  return dtype == Dtype::f32 && device == Device::cpu;
}

RegisteredBackend::RegisteredBackend(const Backend& backend) : backend_(&backend) {
  const std::lock_guard lock(registry().mutex);
  registry().backends.push_back(backend_);
}

RegisteredBackend::~RegisteredBackend() {
  const std::lock_guard lock(registry().mutex);
  auto& backends = registry().backends;
  backends.erase(std::find(backends.begin(), backends.end(), backend_));
}

const Backend& select_backend(const Context& context, Dtype dtype) {
  const auto fits = [&](const Backend& backend, std::string_view name) {
    return backend.name() == name && backend.accepts(dtype, context.device());
  };
  const std::lock_guard lock(registry().mutex);
  const auto& added = registry().backends;
  for (const std::string& name : context.backends()) {
    const auto found = std::find_if(added.rbegin(), added.rend(),
                                    [&](auto* added_) { return fits(*added_, name); });
    if (found != added.rend()) return **found;
    if (fits(cpu_backend(), name)) return cpu_backend();
    if (fits(reference_backend(), name)) return reference_backend();
  }
  if (context.device() != Device::cpu) {
    fail(Status::unsupported, "[nn] no backend for this device is built in");
  }
  return reference_backend();
}

}  // namespace rankone::nn
