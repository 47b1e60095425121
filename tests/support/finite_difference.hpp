#pragma once

// Checks a vjp against differences of its function, in float64: along random directions, and
// element by element where the input is small. The five-point rule has an error of h^4, so that
// with h = 1e-3 both its truncation and its rounding are near 1e-12 for functions of scale one.

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "support/recurrence_support.hpp"

namespace rankone::test {

struct GradientCase {
  struct Input {
    std::string name;
    Tensor tensor;           // f64, changed in place and restored
    bool symmetric = false;  // [..., K, K] that must stay symmetric: directions only
  };
  std::string name;
  std::vector<Input> inputs;
  std::function<std::vector<Tensor>()> forward;
  // Cotangents in the order of the outputs; gradients in the order of the inputs.
  std::function<std::vector<Tensor>(const std::vector<Tensor>&)> vjp;
  double step = 1e-3;
  double tolerance = 2e-8;  // of the largest gradient element, at least of one
};

namespace detail {

inline double loss(const GradientCase& test, const std::vector<Tensor>& cotangents) {
  const std::vector<Tensor> outputs = test.forward();
  double sum = 0.0;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const auto o = outputs[i].span<double>(), c = cotangents[i].span<double>();
    for (std::size_t j = 0; j < o.size(); ++j) sum += o[j] * c[j];
  }
  return sum;
}

inline double slope(const GradientCase& test, const std::vector<Tensor>& cotangents,
                    const Tensor& input, const Tensor& direction) {
  const Tensor kept = input.clone();
  const auto at = [&](double distance) {
    for (std::int64_t i = 0; i < input.count(); ++i) {
      input.data<double>()[i] = kept.data<double>()[i] + distance * direction.data<double>()[i];
    }
    return loss(test, cotangents);
  };
  const double h = test.step;
  const double result = (at(-2 * h) - 8 * at(-h) + 8 * at(h) - at(2 * h)) / (12 * h);
  input.copy_from(kept);
  return result;
}

inline Tensor direction_for(Random& random, const GradientCase::Input& input) {
  Tensor direction = uniform(random, input.tensor.shape(), -1.0, 1.0);
  if (!input.symmetric) return direction;
  const std::int64_t K = direction.dim(-1);
  for (std::int64_t m = 0; m < direction.count() / (K * K); ++m) {
    double* at = direction.data<double>() + m * K * K;
    for (std::int64_t i = 0; i < K; ++i) {
      for (std::int64_t j = 0; j < i; ++j) at[i * K + j] = at[j * K + i];
    }
  }
  return direction;
}

inline double dot(const Tensor& a, const Tensor& b) {
  double sum = 0.0;
  for (std::int64_t i = 0; i < a.count(); ++i) sum += a.data<double>()[i] * b.data<double>()[i];
  return sum;
}

}  // namespace detail

inline void check_gradients(const GradientCase& test, Random& random) {
  SCOPED_TRACE(test.name);
  std::vector<Tensor> cotangents;
  for (const Tensor& output : test.forward()) cotangents.push_back(normal(random, output.shape()));
  const std::vector<Tensor> gradients = test.vjp(cotangents);
  ASSERT_EQ(gradients.size(), test.inputs.size());
  for (std::size_t i = 0; i < test.inputs.size(); ++i) {
    const GradientCase::Input& input = test.inputs[i];
    if (input.tensor.count() == 0) continue;
    const double size = largest(gradients[i]);
    ASSERT_TRUE(std::isfinite(size)) << input.name;
    const double allowed = test.tolerance * std::max(size, 1.0);
    for (int repeat = 0; repeat < 2; ++repeat) {
      const Tensor direction = detail::direction_for(random, input);
      const double expected = detail::slope(test, cotangents, input.tensor, direction);
      const double scale = std::sqrt(static_cast<double>(input.tensor.count()));
      EXPECT_NEAR(detail::dot(gradients[i], direction), expected, allowed * scale) << input.name;
    }
    if (input.symmetric || input.tensor.count() > 48) continue;
    for (std::int64_t j = 0; j < input.tensor.count(); ++j) {
      Tensor direction = Tensor::zeros(input.tensor.shape(), Dtype::f64);
      direction.data<double>()[j] = 1.0;
      const double expected = detail::slope(test, cotangents, input.tensor, direction);
      EXPECT_NEAR(gradients[i].data<double>()[j], expected, allowed) << input.name << " " << j;
    }
  }
}

}  // namespace rankone::test
