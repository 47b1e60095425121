#include "core/threads.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <vector>

#include "core/random.hpp"

namespace rankone {
namespace {

TEST(ThreadPool, RunsEveryTaskOnceAtAnySize) {
  for (const int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    for (const int tasks : {0, 1, 2, 1000}) {
      std::vector<std::atomic<int>> counts(static_cast<std::size_t>(tasks));
      pool.run(tasks, [&](std::int64_t task, int worker) {
        EXPECT_LT(worker, pool.size());
        ++counts[static_cast<std::size_t>(task)];
      });
      for (const auto& count : counts) EXPECT_EQ(count, 1);
    }
  }
}

TEST(ThreadPool, RethrowsAndStaysUsable) {
  ThreadPool pool(4);
  EXPECT_THROW(pool.run(100,
                        [](std::int64_t task, int) {
                          if (task == 17) throw std::runtime_error("task 17");
                        }),
               std::runtime_error);
  std::atomic<int> count{0};
  pool.run(10, [&](std::int64_t, int) { ++count; });
  EXPECT_EQ(count, 10);
}

TEST(Random, PhiloxKnownAnswers) {
  // Known answers of the Random123 distribution for philox4x32-10.
  EXPECT_EQ(philox(0, 0, 0), (Philox4{0x6627e8d5U, 0xe169c58dU, 0xbc57ac4cU, 0x9b00dbd8U}));
  EXPECT_EQ(philox(0xffffffffffffffffU, 0xffffffffffffffffU, 0xffffffffffffffffU),
            (Philox4{0x408f276dU, 0x41c83b0eU, 0xa20bc7c6U, 0x6d5451fdU}));
}

TEST(Random, MomentsAndSeek) {
  Random random(7);
  double sum = 0;
  double squares = 0;
  constexpr int kDraws = 100000;
  for (int i = 0; i < kDraws; ++i) {
    const double x = random.normal();
    sum += x;
    squares += x * x;
  }
  EXPECT_NEAR(sum / kDraws, 0, 0.02);
  EXPECT_NEAR(squares / kDraws, 1, 0.02);
  const std::uint64_t position = random.position();
  const double next = random.uniform();
  Random again(7);
  again.seek(position);
  EXPECT_EQ(again.uniform(), next);
  for (int i = 0; i < 1000; ++i) EXPECT_LT(random.below(3), 3U);
}

}  // namespace
}  // namespace rankone
