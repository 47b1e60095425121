// The gain that docs/add-a-recurrence.md adds is a gain: its derivatives are right, and its bounded
// form is the recurrence of its paper.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>

#include "core/random.hpp"
#include "recurrence/recurrence.hpp"
#include "support/paths.hpp"
#include "worked_example.hpp"

namespace rankone::recurrence {
namespace {

TEST(WorkedExample, HasAtMost40Lines) {
  std::ifstream document(test::source_dir() / "docs/add-a-recurrence.md");
  int lines = 0;
  bool inside = false;
  for (std::string line; std::getline(document, line);) {
    if (line.rfind("```", 0) == 0) {
      inside = !inside;
    } else if (inside || line.rfind("    ", 0) == 0) {
      ++lines;
    }
  }
  EXPECT_GT(lines, 10);
  EXPECT_LE(lines, 40);
}

TEST(WorkedExample, DerivativesAreThoseOfFiniteDifferences) {
  constexpr double kStep = 1e-6;
  const auto value = [](double x, double N) {
    return CappedGain::value(GainInputs<double>{x, N, 1e-3, 0}).b;
  };
  for (const double x : {-2.0, 0.3, 4.0}) {
    for (const double N : {0.0001, 0.5, 1.5, 30.0}) {
      const auto gain = CappedGain::value(GainInputs<double>{x, N, 1e-3, 0});
      EXPECT_NEAR(gain.d_x, (value(x + kStep, N) - value(x - kStep, N)) / (2 * kStep), 1e-8);
      EXPECT_NEAR(gain.d_N, (value(x, N + kStep) - value(x, N - kStep)) / (2 * kStep), 1e-8);
    }
  }
}

TEST(WorkedExample, BoundedFormIsThePapersRecurrence) {
  constexpr std::int64_t kT = 40, kK = 6, kV = 4;
  constexpr double kEps = 1e-6;
  Random random(3);
  const auto normal = [&](const Shape& shape) {
    Tensor tensor = Tensor::empty(shape, Dtype::f64);
    for (double& x : tensor.span<double>()) x = random.normal();
    return tensor;
  };
  const Tensor q = normal({kT, 1, kK}), k = normal({kT, 1, kK}), v = normal({kT, 1, kV});
  const Tensor raw_b = Tensor::empty({kT, 1}, Dtype::f64), b = raw_b.clone();
  const Tensor key = k.clone(), value = v.clone();
  for (std::int64_t t = 0; t < kT; ++t) {
    // Keys shorter and longer than one.
    const double length = t % 2 == 0 ? 0.3 : 1.0;
    double N = 0;
    for (std::int64_t d = 0; d < kK; ++d) {
      k.data<double>()[t * kK + d] *= length;
      N += std::pow(k.data<double>()[t * kK + d], 2);
    }
    const double x = random.normal(), n = std::sqrt(N + kEps);
    raw_b.data<double>()[t] = sigmoid(x) / std::max(1.0, N);
    b.data<double>()[t] = CappedGain::value(GainInputs<double>{x, N, kEps, 0}).b;
    for (std::int64_t d = 0; d < kK; ++d) {
      key.data<double>()[t * kK + d] = k.data<double>()[t * kK + d] / n;
    }
    for (std::int64_t j = 0; j < kV; ++j) {
      value.data<double>()[t * kV + j] = v.data<double>()[t * kV + j] / n;
    }
  }
  Context context;
  const Sequences sequences = Sequences::dense(1, kT);
  const Tensor o = v.clone(), raw_o = v.clone();
  TwoKey paper;
  paper.q = q;
  paper.e = paper.w = k;
  paper.v = v;
  paper.b = raw_b;
  TwoKey bounded = paper;
  bounded.e = bounded.w = key;
  bounded.v = value;
  bounded.b = b;
  two_key(context, sequences, paper, {raw_o, {}});
  two_key(context, sequences, bounded, {o, {}});
  for (std::int64_t i = 0; i < o.count(); ++i) {
    EXPECT_NEAR(o.data<double>()[i], raw_o.data<double>()[i], 1e-12);
  }
}

}  // namespace
}  // namespace rankone::recurrence
