#include "eval/statistics.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "core/random.hpp"

namespace rankone::eval {
namespace {

TEST(Statistics, EqualUnitsGiveTheTextbookStandardError) {
  const std::vector<double> values{1.0, 2.0, 4.0, 7.0};  // mean 3.5, variance 7
  std::vector<Unit> units;
  for (const double value : values) units.push_back({value * 10, 10});
  const Mean mean = mean_of(units);
  EXPECT_DOUBLE_EQ(mean.value, 3.5);
  EXPECT_DOUBLE_EQ(mean.standard_error, std::sqrt(7.0 / 4));
}

TEST(Statistics, UnitsWeighAsMuchAsTheirSize) {
  const Mean mean = mean_of(std::vector<Unit>{{10, 10}, {6, 2}, {0, 0}});
  EXPECT_DOUBLE_EQ(mean.value, 16.0 / 12);
  // Residuals 10 - 10 * 4/3 and 6 - 2 * 4/3.
  const double residual = 10.0 / 3;
  EXPECT_DOUBLE_EQ(mean.standard_error, std::sqrt(2 * residual * residual * 2) / 12);
}

TEST(Statistics, OneUnitHasNoStandardError) {
  const Mean one = mean_of(std::vector<Unit>{{3, 2}});
  EXPECT_DOUBLE_EQ(one.value, 1.5);
  EXPECT_TRUE(std::isnan(one.standard_error));
  EXPECT_TRUE(std::isnan(mean_of({}).value));
}

// Over many samples the standard error must be the deviation of the estimate.
TEST(Statistics, TheStandardErrorIsTheSpreadOfTheEstimate) {
  Random random(1);
  double sum = 0, squares = 0, reported = 0;
  constexpr int kSamples = 4000;
  for (int sample = 0; sample < kSamples; ++sample) {
    std::vector<Unit> units;
    for (int i = 0; i < 40; ++i) {
      const double size = 50 + 100 * random.uniform();
      const double level = 3 + 0.5 * random.normal();  // one level a document
      units.push_back({level * size, size});
    }
    const Mean mean = mean_of(units);
    sum += mean.value;
    squares += mean.value * mean.value;
    reported += mean.standard_error;
  }
  const double deviation = std::sqrt(squares / kSamples - sum * sum / kSamples / kSamples);
  EXPECT_NEAR(reported / kSamples / deviation, 1.0, 0.05);
}

}  // namespace
}  // namespace rankone::eval
