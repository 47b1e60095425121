// The scalar functions of the axes: accuracy in float32, derivatives, behaviour at the ends.

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "core/random.hpp"
#include "recurrence/axes/decay.hpp"
#include "recurrence/axes/gain.hpp"
#include "recurrence/axes/preconditioner.hpp"
#include "recurrence/presets.hpp"

namespace rankone::recurrence {
namespace {

constexpr double kFloatEpsilon = 1.1920929e-7;

template <class Function>
double slope(Function&& f, double x, double h) {
  return (f(x - 2 * h) - 8 * f(x - h) + 8 * f(x + h) - f(x + 2 * h)) / (12 * h);
}

TEST(Scalars, SigmoidAndSoftplusAtTheEnds) {
  EXPECT_EQ(sigmoid(0.0f), 0.5f);
  EXPECT_EQ(sigmoid(-1000.0f), 0.0f);
  EXPECT_EQ(sigmoid(1000.0f), 1.0f);
  EXPECT_EQ(softplus(-1000.0), 0.0);
  EXPECT_EQ(softplus(1000.0), 1000.0);
  for (double x = -30.0; x <= 30.0; x += 0.37) {
    EXPECT_NEAR(slope([](double y) { return softplus(y); }, x, 1e-3), sigmoid(x), 1e-11);
    EXPECT_NEAR(static_cast<double>(softplus(static_cast<float>(x))),
                softplus(static_cast<double>(static_cast<float>(x))),
                2 * kFloatEpsilon * softplus(x));
  }
}

// Both branches of the derivative, and the values on both sides of the join.
TEST(Scalars, ExponentialMean) {
  EXPECT_EQ(exponential_mean(0.0), 1.0);
  EXPECT_NEAR(exponential_mean_derivative(0.0), -0.5, 1e-16);
  for (double y = -0.9; y < 20.0; y += 0.0173) {
    EXPECT_NEAR(exponential_mean_derivative(y),
                slope([](double x) { return exponential_mean(x); }, y, 1e-3), 2e-12)
        << y;
    const auto narrow = static_cast<float>(y);
    const double wide = exponential_mean_derivative(static_cast<double>(narrow));
    EXPECT_NEAR(static_cast<double>(exponential_mean_derivative(narrow)), wide,
                8 * kFloatEpsilon * std::abs(wide) + 2e-7)
        << y;
  }
  const double below = exponential_mean_derivative(0.5),
               above = exponential_mean_derivative(0.5 + 1e-9);
  EXPECT_NEAR(below, above, 1e-9);
}

template <class Policy>
void check_gain(const std::string& name) {
  Random random(1);
  for (int i = 0; i < 2000; ++i) {
    // Squared norms over eight decades and zero.
    const double N = i % 50 == 0 ? 0.0 : std::pow(10.0, random.uniform(-6.0, 2.0));
    const GainInputs<double> in{random.uniform(-6.0, 6.0), N, 1e-6, random.uniform(-2.0, 2.0)};
    const GainInputs<float> narrow{static_cast<float>(in.x), static_cast<float>(in.N),
                                   static_cast<float>(in.eps), static_cast<float>(in.theta)};
    const GainInputs<double> same{narrow.x, narrow.N, narrow.eps, narrow.theta};
    const GainValue<double> wide = Policy::value(same);
    const GainValue<float> got = Policy::value(narrow);
    EXPECT_NEAR(static_cast<double>(got.b), wide.b, 8 * kFloatEpsilon * std::abs(wide.b)) << name;
    // exp(-beta N) has the condition beta N; below the normal numbers float32 has few bits.
    EXPECT_NEAR(static_cast<double>(got.d_x), wide.d_x,
                16 * kFloatEpsilon * (1.0 + same.N) * std::abs(wide.d_x) + 1e-38)
        << name;
    ASSERT_TRUE(std::isfinite(got.d_N) && std::isfinite(got.d_theta)) << name;

    const auto with = [&](double x, double n, double theta) {
      return Policy::value(GainInputs<double>{x, n, 1e-6, theta}).b;
    };
    EXPECT_NEAR(slope([&](double x) { return with(x, in.N, in.theta); }, in.x, 1e-3),
                Policy::value(in).d_x, 1e-9 * (1.0 + in.N))
        << name;
    if (in.N < 1e-3) continue;
    const double h = 1e-3 * in.N;
    EXPECT_NEAR(slope([&](double n) { return with(in.x, n, in.theta); }, in.N, h),
                Policy::value(in).d_N, 1e-8)
        << name << " N " << in.N;
    EXPECT_NEAR(slope([&](double theta) { return with(in.x, in.N, theta); }, in.theta, 1e-3),
                Policy::value(in).d_theta, 1e-8)
        << name;
  }
}

TEST(Gains, AreAccurateAndDifferentiatedRight) {
  for (const std::string_view name : choice_names<GainKind>()) {
    with_gain(parse_choice<GainKind>(name, "gain"),
              [&](auto policy) { check_gain<decltype(policy)>(std::string(name)); });
  }
}

// The step of a bounded gain never exceeds the projection: b e.w <= 1 in units of the scaled keys.
TEST(Gains, KeyNormGainsAreContractions) {
  Random random(2);
  for (int i = 0; i < 2000; ++i) {
    const GainInputs<double> in{random.uniform(-8.0, 8.0),
                                std::pow(10.0, random.uniform(-8.0, 6.0)), 1e-6,
                                0.6};  // softplus(0.6) > 1
    const double scaled = in.N / (in.N + in.eps);
    for (const double b :
         {KaczmarzGain::value(in).b, NlmsGain::value(in).b, LonghornGain::value(in).b,
          EflaGain::value(in).b, LearnedScalarGain::value(in).b}) {
      EXPECT_GE(b, 0.0);
      EXPECT_LE(b * scaled, 1.0 + 1e-12);
    }
  }
}

TEST(Gains, KeyNormsAreTheseFive) {
  for (const GainKind kind : {GainKind::kaczmarz, GainKind::nlms, GainKind::longhorn,
                              GainKind::efla, GainKind::learned_scalar}) {
    EXPECT_TRUE(is_key_norm(kind));
  }
  for (const GainKind kind :
       {GainKind::one, GainKind::sigmoid, GainKind::sigmoid2, GainKind::dt, GainKind::vector}) {
    EXPECT_FALSE(is_key_norm(kind));
  }
}

TEST(TimeFactors, StartAtTheFirstToken) {
  EXPECT_EQ(time_factor<double>(TimeFactor::none, 9), 1.0);
  EXPECT_EQ(time_factor<double>(TimeFactor::inv_t, 4), 0.25);
  EXPECT_EQ(time_factor<double>(TimeFactor::inv_sqrt_t, 4), 0.5);
  EXPECT_NEAR(time_factor<double>(TimeFactor::inv_log_t, 1), 1.0 / std::log(2.0), 1e-15);
  EXPECT_EQ(time_factor<float>(TimeFactor::inv_t, std::int64_t{1} << 40), std::exp2(-40.0f));
}

// The squash of the preconditioner: values of the developers' notes at c = -0.2, bounds, slope.
TEST(Preconditioners, Squash) {
  const double log_x = std::log(1.5);
  const auto factor = [&](double A, double center) { return atk_factor(A, center, log_x, 1e-6); };
  EXPECT_NEAR(factor(0.0, -0.2).factor, 1.4590, 5e-5);
  EXPECT_NEAR(factor(1e-4, -0.2).factor, 1.4404, 5e-5);
  EXPECT_NEAR(factor(0.05, -0.2).factor, 1.348, 5e-4);
  EXPECT_NEAR(factor(0.8187, -0.2).factor, 1.0, 5e-5);
  EXPECT_NEAR(factor(128.0, -0.2).factor, 0.713, 5e-4);
  EXPECT_NEAR(factor(0.0, -0.2).d_state, -2769.0, 1.0);
  double previous = 2.0;
  for (double A = 1e-7; A < 1e7; A *= 1.7) {
    const PreconditionFactor<double> at = factor(A, -0.2);
    EXPECT_GT(at.factor, 1.0 / 1.5);
    EXPECT_LT(at.factor, previous);  // monotone
    previous = at.factor;
    if (std::abs(std::log(A) + 0.2) < 0.01) continue;  // the kink of |r|
    EXPECT_NEAR(slope([&](double a) { return factor(a, -0.2).factor; }, A, 1e-3 * A), at.d_state,
                1e-7 * std::abs(at.d_state) + 1e-12);
    EXPECT_NEAR(slope([&](double c) { return factor(A, c).factor; }, -0.2, 1e-4), at.d_parameter,
                1e-6);
  }
}

TEST(Preconditioners, SquashOfOneIsExactlyOne) {
  for (const double A : {0.0, 1e-3, 1.0, 1e3}) {
    const PreconditionFactor<double> at = atk_factor(A, -0.2, std::log(1.0), 1e-6);
    EXPECT_EQ(at.factor, 1.0);
    EXPECT_EQ(at.d_state, 0.0);
    EXPECT_EQ(at.d_parameter, 0.0);
  }
}

TEST(Preconditioners, QueryKindDivides) {
  const PreconditionFactor<double> at = atq_factor(1.5, 0.5);
  EXPECT_EQ(at.factor, 0.5);
  EXPECT_EQ(at.d_state, -0.25);
  EXPECT_EQ(at.d_parameter, -0.25);
}

}  // namespace
}  // namespace rankone::recurrence
