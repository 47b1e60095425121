#include "core/nearest.hpp"

#include <gtest/gtest.h>

#include <array>

namespace rankone {
namespace {

TEST(Nearest, TakesTheSmallestEditDistanceAndTheFirstOfEquals) {
  constexpr std::array<std::string_view, 4> kNames = {"gain", "decay", "solve", "gate"};
  EXPECT_EQ(nearest("gian", kNames), "gain");
  EXPECT_EQ(nearest("deacy_", kNames), "decay");
  EXPECT_EQ(nearest("solver", kNames), "solve");
  EXPECT_EQ(nearest("ga", kNames), "gain");
  EXPECT_EQ(nearest(std::string(100000, 'x'), kNames), "gain");
  EXPECT_EQ(nearest("gain", {}), "");
}

}  // namespace
}  // namespace rankone
