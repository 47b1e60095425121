#include "core/peaks.hpp"

#include <gtest/gtest.h>

namespace rankone {
namespace {

TEST(Peaks, AreMeasuredForEveryThreadCount) {
  for (const int threads : {1, 2}) {
    ThreadPool pool(threads);
    const Peaks peaks = measure_peaks(pool);
    EXPECT_EQ(peaks.threads, threads);
    EXPECT_GT(peaks.gflops, 0.0);
    EXPECT_GE(peaks.memory_bytes, std::int64_t{256} << 20);
    for (const Bandwidth& bandwidth : {peaks.l1, peaks.l2, peaks.memory}) {
      EXPECT_GT(bandwidth.read_gb_per_s, 0.0);
      EXPECT_GT(bandwidth.update_gb_per_s, 0.0);
    }
  }
}

TEST(Peaks, TakeAnySizeOfWorkingSet) {
  ThreadPool pool(2);
  for (const std::int64_t bytes : {0, 1, 5000, 100'000}) {
    const Bandwidth bandwidth = measure_bandwidth(pool, bytes);
    EXPECT_GT(bandwidth.read_gb_per_s, 0.0) << bytes;
    EXPECT_GT(bandwidth.update_gb_per_s, 0.0) << bytes;
  }
}

}  // namespace
}  // namespace rankone
