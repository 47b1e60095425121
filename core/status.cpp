#include "core/status.hpp"

namespace rankone {

std::string_view name(Status status) {
  switch (status) {
    case Status::ok:
      return "ok";
    case Status::invalid_argument:
      return "invalid argument";
    case Status::corrupt:
      return "corrupt file";
    case Status::unsupported:
      return "unsupported";
    case Status::io:
      return "input/output error";
    case Status::out_of_memory:
      return "out of memory";
    case Status::failed:
      return "failed";
  }
  return "unknown";
}

std::size_t checked_multiply(std::size_t a, std::size_t b, Status status) {
  std::size_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) fail(status, "size overflow: {} * {}", a, b);
  return product;
}

std::size_t checked_add(std::size_t a, std::size_t b, Status status) {
  std::size_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) fail(status, "size overflow: {} + {}", a, b);
  return sum;
}

}  // namespace rankone
