#include "core/context.hpp"

#include "core/device.hpp"
#include "core/isa.hpp"
#include "core/status.hpp"

namespace rankone {

Context::Context(const ContextOptions& options)
    : Context(options, std::make_shared<ThreadPool>(options.threads)) {}

std::optional<Precision> parse_precision(std::string_view text) {
  if (text == "auto") return Precision::automatic;
  if (text == "f32") return Precision::f32;
  if (text == "bf16x3") return Precision::bf16x3;
  if (text == "bf16") return Precision::bf16;
  return std::nullopt;
}

Context::Context(ContextOptions options, std::shared_ptr<ThreadPool> pool)
    : options_(std::move(options)), threads_(std::move(pool)) {
  best_isa();  // a wrong RANKONE_ISA fails here and not in the midst of work
  if (options_.device != Device::cuda) return;
  require_gpu(options_.device_index);
  arena_.set_source(gpu_memory());
}

std::size_t Context::checked_bytes(const Shape& shape, Dtype dtype) {
  return checked_multiply(static_cast<std::size_t>(shape.count()), size_of(dtype),
                          Status::invalid_argument);
}

}  // namespace rankone
