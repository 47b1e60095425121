#pragma once

// Progress of long work on standard error: on a terminal one line that is redrawn, elsewhere a
// plain line now and then. Work that ends within a second says nothing.

#include <chrono>
#include <cstdint>
#include <string>

namespace rankone {

class Progress {
 public:
  // "WHAT: 45 % of 12.3 UNIT, 2.4 UNIT/s, 3 s left", amounts divided by `scale` for display.
  Progress(std::string what, double total, std::string unit, double scale = 1.0);
  ~Progress();  // ends the line
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  void update(double done);  // cheap: prints only when it is time to

 private:
  using Clock = std::chrono::steady_clock;
  std::string what_;
  std::string unit_;
  double total_;
  double scale_;
  bool terminal_;
  bool shown_ = false;
  Clock::time_point start_;
  Clock::time_point next_;
};

}  // namespace rankone
