#include "recurrence/cpu/cpu_backend.hpp"

#include "core/isa.hpp"
#include "recurrence/cpu/two_key_tiles.hpp"

namespace rankone::recurrence {

std::string_view CpuBackend::name() const { return "cpu"; }

bool CpuBackend::accepts(const CallShape& call) const {
  return call.device == Device::cpu && call.dtype == Dtype::f32 && !call.gram;
}

std::string cpu_kernel(const Context& context, std::int64_t tokens, bool channel_decay) {
  const bool tiles = cpu::tiles_take(context, tokens, channel_decay);
  const char* precision = !tiles                                   ? "f32"
                          : context.precision() == Precision::bf16 ? "bf16"
                                                                   : "bf16x3";
  return std::string(isa_name(tiles)) + "-" + precision;
}

const Backend& cpu_backend() {
  static const CpuBackend backend;
  return backend;
}

}  // namespace rankone::recurrence
