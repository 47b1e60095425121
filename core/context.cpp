#include "core/context.hpp"

#include "core/status.hpp"

namespace rankone {

std::size_t Context::checked_bytes(const Shape& shape, Dtype dtype) {
  return checked_multiply(static_cast<std::size_t>(shape.count()), size_of(dtype),
                          Status::invalid_argument);
}

}  // namespace rankone
