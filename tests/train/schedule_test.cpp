#include "train/schedule.hpp"

#include <gtest/gtest.h>

namespace rankone::train {
namespace {

TrainConfig config_of(std::int64_t steps, std::int64_t warmup) {
  TrainConfig config;
  config.steps = steps;
  config.warmup = warmup;
  config.lr = 2e-3;
  config.lr_min_fraction = 0.1;
  return config;
}

TEST(Schedule, WarmsUpLinearlyToThePeak) {
  const TrainConfig config = config_of(100, 10);
  EXPECT_DOUBLE_EQ(learning_rate(config, 1), 2e-4);
  EXPECT_DOUBLE_EQ(learning_rate(config, 5), 1e-3);
  EXPECT_DOUBLE_EQ(learning_rate(config, 10), 2e-3);
}

TEST(Schedule, FallsAlongHalfACosineToItsMinimum) {
  const TrainConfig config = config_of(110, 10);
  EXPECT_NEAR(learning_rate(config, 60), 2e-4 + 1.8e-3 / 2, 1e-15);  // half way
  EXPECT_NEAR(learning_rate(config, 110), 2e-4, 1e-15);
  for (std::int64_t step = 11; step <= 110; ++step) {
    EXPECT_LT(learning_rate(config, step), learning_rate(config, step - 1));
  }
}

TEST(Schedule, HandlesRunsWithoutWarmUpAndOnesThatEndInIt) {
  EXPECT_NEAR(learning_rate(config_of(1, 0), 1), 2e-4, 1e-15);
  EXPECT_DOUBLE_EQ(learning_rate(config_of(10, 100), 10), 2e-4);
  EXPECT_DOUBLE_EQ(learning_rate(config_of(10, 10), 10), 2e-3);
}

}  // namespace
}  // namespace rankone::train
