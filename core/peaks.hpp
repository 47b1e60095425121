#pragma once

// What the machine can do at most, measured: the yardstick that a benchmark prints beside its
// times.

#include "core/threads.hpp"

namespace rankone {

struct Peaks {
  double gflops = 0;    // float32 multiply-adds in registers, two operations each
  double gb_per_s = 0;  // reading memory that no cache holds
  int threads = 0;      // both with this many
};

// Takes about half a second and, for the moment, 256 MiB.
Peaks measure_peaks(ThreadPool& threads);

}  // namespace rankone
