#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "nn/operators.hpp"
#include "operator_case.hpp"

namespace rankone::nn::test {
namespace {

Tensor scalar(double value, Dtype dtype) {
  const Tensor result = Tensor::empty({1}, dtype);
  if (dtype == Dtype::i32) {
    *result.data<std::int32_t>() = static_cast<std::int32_t>(value);
  } else {
    result.fill(value);
  }
  return result;
}

Context context_of(bool reference, int threads = 2) {
  return reference ? reference_context() : cpu_context(threads);
}

TEST(Optimizer, SumsAreExactEnoughAndAdded) {
  Random random(1);
  for (const std::int64_t count : {0L, 1L, 77L, 100003L}) {
    const Tensor x = normals(random, {count});
    long double sum = 0;
    long double squares = 0;
    for (const double value : x.span<double>()) {
      sum += value;
      squares += static_cast<long double>(value) * value;
    }
    for (const bool reference : {true, false}) {
      Context context = context_of(reference);
      const Tensor values = x.to(reference ? Dtype::f64 : Dtype::f32);
      const Tensor total = scalar(10, Dtype::f64);
      add_sum(context, values, 0.5, total);
      EXPECT_NEAR(*total.data<double>(), static_cast<double>(10 + sum / 2), 1e-9);
      const Tensor square = scalar(10, Dtype::f64);
      add_sum_of_squares(context, values, square);
      // One rounding a term in the reference, which adds one after the other; blocks are better.
      const double tolerance = reference ? static_cast<double>(count + 1) * 0x1p-53 : 1e-14;
      const auto right = static_cast<double>(10 + squares);
      EXPECT_NEAR(*square.data<double>(), right, tolerance * right);
    }
  }
}

TEST(Optimizer, SumsHaveTheSameBitsForAnyThreadCount) {
  Random random(2);
  const Tensor x = normals(random, {70001}).to(Dtype::f32);
  double first = 0;
  for (const int threads : {1, 2, 5}) {
    Context context = cpu_context(threads);
    const Tensor total = scalar(0, Dtype::f64);
    add_sum_of_squares(context, x, total);
    add_sum(context, x, 3.0, total);
    if (threads == 1) first = *total.data<double>();
    EXPECT_EQ(*total.data<double>(), first);
  }
}

TEST(Optimizer, OneNonFiniteElementShows) {
  for (const bool reference : {true, false}) {
    Context context = context_of(reference);
    for (const double bad : {std::nan(""), static_cast<double>(INFINITY)}) {
      const Tensor x = Tensor::zeros({40001}, reference ? Dtype::f64 : Dtype::f32);
      x.slice(0, 39999, 40000).fill(bad);
      const Tensor sum = scalar(0, Dtype::f64);
      add_sum_of_squares(context, x, sum);
      EXPECT_FALSE(std::isfinite(*sum.data<double>()));
      const Tensor factor = scalar(7, Dtype::f32);
      const Tensor ok = scalar(7, Dtype::i32);
      clip_factor(context, sum, 1.0, factor, ok);
      EXPECT_EQ(*factor.data<float>(), 0.0F);
      EXPECT_EQ(*ok.data<std::int32_t>(), 0);
    }
  }
}

TEST(Optimizer, ClipFactor) {
  struct {
    double sum, limit;
    float factor;
  } const cases[] = {{16, 1, 0.25F}, {16, 4, 1}, {16, 5, 1}, {0, 1, 1}, {1e300, 1e150, 1}};
  for (const auto& test : cases) {
    for (const bool reference : {true, false}) {
      Context context = context_of(reference);
      const Tensor factor = scalar(7, Dtype::f32);
      const Tensor ok = scalar(7, Dtype::i32);
      clip_factor(context, scalar(test.sum, Dtype::f64), test.limit, factor, ok);
      EXPECT_EQ(*factor.data<float>(), test.factor) << test.sum;
      EXPECT_EQ(*ok.data<std::int32_t>(), 1);
    }
  }
}

struct Trained {
  Tensor parameter, m, v;
};

// `steps` steps on gradients of a fixed seed.
Trained train(Context& context, Dtype dtype, std::int64_t count, std::int64_t steps, double clip,
              std::int32_t ok) {
  Random random(3);
  Trained result = {normals(random, {count}).to(dtype), Tensor::zeros({count}, dtype),
                    Tensor::zeros({count}, dtype)};
  for (std::int64_t t = 1; t <= steps; ++t) {
    const Tensor grad = normals(random, {count}, std::pow(10.0, static_cast<double>(t % 3) - 2));
    adamw(context, {.parameter = result.parameter,
                    .grad = grad.to(dtype),
                    .m = result.m,
                    .v = result.v,
                    .factor = scalar(clip, Dtype::f32),
                    .ok = scalar(ok, Dtype::i32),
                    .lr = 1e-2,
                    .weight_decay = 0.1,
                    .step = t});
  }
  return result;
}

TEST(Optimizer, FirstStepMovesByTheRate) {
  // m / (1 - b1) = g and v / (1 - b2) = g^2, so the step is lr times the sign of g.
  for (const bool reference : {true, false}) {
    Context context = context_of(reference);
    const Dtype dtype = reference ? Dtype::f64 : Dtype::f32;
    const Tensor parameter = scalar(1, dtype);
    const Tensor m = scalar(0, dtype);
    const Tensor v = scalar(0, dtype);
    adamw(context, {.parameter = parameter,
                    .grad = scalar(-4, dtype),
                    .m = m,
                    .v = v,
                    .factor = scalar(0.5, Dtype::f32),
                    .ok = scalar(1, Dtype::i32),
                    .lr = 0.125,
                    .weight_decay = 0.5});
    const double tolerance = reference ? 1e-8 : 1e-7;
    EXPECT_NEAR(parameter.to(Dtype::f64).data<double>()[0], 1 + 0.125 - 0.125 * 0.5, tolerance);
    EXPECT_NEAR(m.to(Dtype::f64).data<double>()[0], 0.1 * -2, tolerance);
    EXPECT_NEAR(v.to(Dtype::f64).data<double>()[0], 0.05 * 4, tolerance);
  }
}

TEST(Optimizer, CpuMatchesReference) {
  Context reference = reference_context();
  Context cpu = cpu_context();
  const Trained right = train(reference, Dtype::f64, 40001, 7, 0.5, 1);
  const Trained got = train(cpu, Dtype::f32, 40001, 7, 0.5, 1);
  EXPECT_LE(difference(got.parameter, right.parameter).rms, 4 * 0x1p-24);
  EXPECT_LE(difference(got.m, right.m).rms, 4 * 0x1p-24);
  EXPECT_LE(difference(got.v, right.v).rms, 4 * 0x1p-24);
}

TEST(Optimizer, StepHasTheSameBitsForAnyThreadCount) {
  Context one = cpu_context(1);
  const Trained first = train(one, Dtype::f32, 70001, 3, 1, 1);
  for (const int threads : {2, 5}) {
    Context context = cpu_context(threads);
    const Trained other = train(context, Dtype::f32, 70001, 3, 1, 1);
    EXPECT_TRUE(same_bits(first.parameter, other.parameter));
    EXPECT_TRUE(same_bits(first.m, other.m));
    EXPECT_TRUE(same_bits(first.v, other.v));
  }
}

TEST(Optimizer, NothingMovesWhereOkIsZero) {
  for (const bool reference : {true, false}) {
    Context context = context_of(reference);
    const Dtype dtype = reference ? Dtype::f64 : Dtype::f32;
    const Trained still = train(context, dtype, 1000, 3, 1, 0);
    const Trained start = train(context, dtype, 1000, 0, 1, 1);
    EXPECT_TRUE(same_bits(still.parameter, start.parameter));
    EXPECT_TRUE(same_bits(still.m, start.m));
    EXPECT_TRUE(same_bits(still.v, start.v));
  }
}

}  // namespace
}  // namespace rankone::nn::test
