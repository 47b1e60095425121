#pragma once

// Errors. Everything that input or the environment can cause is thrown as Error; programmer
// mistakes are asserts. No exception crosses the C interface: it turns an Error into its Status and
// message.

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace rankone {

enum class Status {
  ok = 0,
  invalid_argument,  // a call, an option or a configuration that can not be meant
  corrupt,           // a file whose bytes contradict its format
  unsupported,       // valid, but nothing here can do it
  io,                // the operating system refused a read or a write
  out_of_memory,
  failed,  // the work itself failed: a check, a comparison, a non-finite loss
};

std::string_view name(Status status);

class Error : public std::runtime_error {
 public:
  Error(Status status, const std::string& message) : std::runtime_error(message), status_(status) {}
  Status status() const { return status_; }

 private:
  Status status_;
};

// Message form: "[operation] what was wrong, what was got (what would be right)", one line.
template <class... Args>
[[noreturn]] void fail(Status status, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(status, fmt::format(format, std::forward<Args>(args)...));
}

// Fails with invalid_argument unless `condition` holds.
template <class... Args>
void require(bool condition, fmt::format_string<Args...> format, Args&&... args) {
  if (!condition) fail(Status::invalid_argument, format, std::forward<Args>(args)...);
}

// Checked arithmetic for sizes that come from files or callers: fails with `status` on overflow.
std::size_t checked_multiply(std::size_t a, std::size_t b, Status status = Status::corrupt);
std::size_t checked_add(std::size_t a, std::size_t b, Status status = Status::corrupt);

}  // namespace rankone
