// The factor of a log decay in the kernels that go token by token. It is made of additions and
// fused multiply-adds alone, so what emulated threads compute is what a GPU computes.

#if defined(RANKONE_CUDA_EMULATION)

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "recurrence/cuda/token.hpp"

namespace rankone::test {
namespace {

using recurrence::cuda::token_decay;

struct Units {  // in the last place
  double mean = 0, largest = 0;
};
Units errors_between(float least, float most) {
  constexpr int kCount = 200000;
  Units units;
  for (int i = 0; i < kCount; ++i) {
    const float g = least + (most - least) * (static_cast<float>(i) + 0.5F) / kCount;
    const double expected = std::exp(static_cast<double>(g));
    int exponent = 0;
    std::frexp(expected, &exponent);
    const double error =
        (static_cast<double>(token_decay(g)) - expected) * std::ldexp(1.0, 24 - exponent);
    units.mean += error / kCount;
    units.largest = std::max(units.largest, std::abs(error));
  }
  return units;
}

TEST(TokenDecay, WeakDecaysAreRoundedToNearest) {
  for (const float least : {-0.01F, -0.05F, -0.1F}) {
    const Units units = errors_between(least, 0.0F);
    EXPECT_LT(units.largest, 0.58) << least;
    EXPECT_LT(std::abs(units.mean), 0.005) << least;
  }
}

TEST(TokenDecay, WithinAUnitEverywhere) {
  for (const float least : {-1.0F, -5.0F, -87.0F}) {
    const Units units = errors_between(least, 0.0F);
    EXPECT_LT(units.largest, 1.0) << least;
    EXPECT_LT(std::abs(units.mean), 0.03) << least;
  }
  EXPECT_LT(errors_between(0.0F, 88.0F).largest, 1.0);
}

TEST(TokenDecay, Ends) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(token_decay(0.0F), 1.0F);
  EXPECT_EQ(token_decay(-0.0F), 1.0F);
  EXPECT_EQ(token_decay(-1e30F), 0.0F);
  EXPECT_EQ(token_decay(-kInfinity), 0.0F);
  EXPECT_GT(token_decay(-87.3F), 0.0F);
  EXPECT_EQ(token_decay(-87.4F), 0.0F);
  EXPECT_EQ(token_decay(176.0F), token_decay(88.0F));
  EXPECT_EQ(token_decay(kInfinity), token_decay(88.0F));
  EXPECT_TRUE(std::isnan(token_decay(std::numeric_limits<float>::quiet_NaN())));
}

}  // namespace
}  // namespace rankone::test

#endif
