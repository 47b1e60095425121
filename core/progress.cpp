#include "core/progress.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

namespace rankone {

using namespace std::chrono_literals;

Progress::Progress(std::string what, double total, std::string unit, double scale)
    : what_(std::move(what)),
      unit_(std::move(unit)),
      total_(total),
      scale_(scale),
      terminal_(::isatty(STDERR_FILENO) == 1),
      start_(Clock::now()),
      next_(start_ + (terminal_ ? Clock::duration(1s) : Clock::duration(10s))) {}

Progress::~Progress() {
  if (shown_ && terminal_) std::fputs("\r\x1b[K", stderr);
}

void Progress::update(double done) {
  const Clock::time_point now = Clock::now();
  if (now < next_ || total_ <= 0) return;
  next_ = now + (terminal_ ? Clock::duration(200ms) : Clock::duration(10s));
  shown_ = true;
  const double seconds = std::chrono::duration<double>(now - start_).count();
  const double rate = done / seconds;
  const double left = rate > 0 ? std::max(0.0, total_ - done) / rate : 0.0;
  const std::string line =
      fmt::format("{}: {:.0f} % of {:.1f} {}, {:.2f} {}/s, {:.0f} s left", what_,
                  100 * done / total_, total_ / scale_, unit_, rate / scale_, unit_, left);
  std::fprintf(stderr, terminal_ ? "\r%s\x1b[K" : "%s\n", line.c_str());
}

}  // namespace rankone
