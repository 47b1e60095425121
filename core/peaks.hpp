#pragma once

// What the machine can do at most, measured: the yardstick that a benchmark prints beside its
// times.

#include <cstdint>

#include "core/threads.hpp"

namespace rankone {

struct Bandwidth {
  double read_gb_per_s = 0;
  double update_gb_per_s = 0;  // in place, bytes read and bytes written
};

struct Peaks {
  double gflops = 0;  // float32 multiply-adds in registers, two operations each
  // Of products of tiles of bf16 in float32, operands in registers and in the first cache; 0
  // without AMX.
  double amx_gflops = 0, amx_l1_gflops = 0;
  Bandwidth l1{}, l2{};           // of 16 and of 256 KiB per thread
  Bandwidth memory{};             // of what no cache holds
  std::int64_t memory_bytes = 0;  // that much
  int threads = 0;                // all with this many
};

// Takes about half a second and, for the moment, 256 MiB to 1 GiB.
Peaks measure_peaks(ThreadPool& threads);

// Of `bytes` (or 4 KiB per thread, if that is more) parted among the threads, over and over: the
// bandwidth of whatever cache or memory holds so much. Takes about a tenth of a second.
Bandwidth measure_bandwidth(ThreadPool& threads, std::int64_t bytes);

}  // namespace rankone
