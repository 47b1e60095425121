#include "recurrence/reference/reference_backend.hpp"

namespace rankone::recurrence {

std::string_view ReferenceBackend::name() const { return "reference"; }

bool ReferenceBackend::accepts(const CallShape& call) const { return call.device == Device::cpu; }

const Backend& reference_backend() {
  static const ReferenceBackend backend;
  return backend;
}

}  // namespace rankone::recurrence
