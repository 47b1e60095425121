#pragma once

// Tensors, runs and comparisons for the tests of recurrence/.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <string>
#include <vector>

#include "core/context.hpp"
#include "core/random.hpp"
#include "core/status.hpp"
#include "recurrence/recurrence.hpp"

namespace rankone::test {

inline Context make_context(const char* backend = "reference", int threads = 1) {
  ContextOptions options;
  options.backends = {backend, "reference"};
  options.threads = threads;
  return Context(options);
}

inline Tensor uniform(Random& random, const Shape& shape, double low, double high) {
  Tensor tensor = Tensor::empty(shape, Dtype::f64);
  for (double& value : tensor.span<double>()) value = random.uniform(low, high);
  return tensor;
}

// Normal values at least `gap` from zero, for functions that bend sharply there.
inline Tensor normal(Random& random, const Shape& shape, double gap = 0.0) {
  Tensor tensor = Tensor::empty(shape, Dtype::f64);
  for (double& value : tensor.span<double>()) {
    value = random.normal();
    value += value < 0.0 ? -gap : gap;
  }
  return tensor;
}

inline double norm(const double* values, std::int64_t count) {
  double sum = 0.0;
  for (std::int64_t i = 0; i < count; ++i) sum += values[i] * values[i];
  return std::sqrt(sum);
}

// Each row (last axis) divided by its norm.
inline Tensor unit_rows(Tensor tensor) {
  const std::int64_t width = tensor.dim(-1);
  for (std::int64_t row = 0; width > 0 && row < tensor.count() / width; ++row) {
    double* at = tensor.data<double>() + row * width;
    const double length = norm(at, width);
    for (std::int64_t i = 0; i < width; ++i) at[i] /= length;
  }
  return tensor;
}

inline Tensor map(const Tensor& a, const std::function<double(double)>& function) {
  Tensor result = a.to(Dtype::f64);
  for (double& value : result.span<double>()) value = function(value);
  return result;
}

inline Tensor map(const Tensor& a, const Tensor& b,
                  const std::function<double(double, double)>& function) {
  Tensor result = a.to(Dtype::f64);
  const Tensor other = b.to(Dtype::f64);
  EXPECT_EQ(a.shape(), b.shape());
  for (std::int64_t i = 0; i < result.count(); ++i) {
    result.data<double>()[i] = function(result.data<double>()[i], other.data<double>()[i]);
  }
  return result;
}

inline Tensor times(const Tensor& a, const Tensor& b) {
  return map(a, b, [](double x, double y) { return x * y; });
}
inline Tensor times(const Tensor& a, double b) {
  return map(a, [b](double x) { return x * b; });
}
inline Tensor plus(const Tensor& a, const Tensor& b) {
  return map(a, b, [](double x, double y) { return x + y; });
}

inline Tensor filled(const Shape& shape, double value, Dtype dtype = Dtype::f64) {
  Tensor tensor = Tensor::empty(shape, dtype);
  tensor.fill(value);
  return tensor;
}

// [R, H] repeated along a new last axis of `width`.
inline Tensor spread(const Tensor& a, std::int64_t width) {
  Tensor result = Tensor::empty({a.dim(0), a.dim(1), width}, Dtype::f64);
  for (std::int64_t i = 0; i < result.count(); ++i) {
    result.data<double>()[i] = a.data<double>()[i / width];
  }
  return result;
}

inline double largest(const Tensor& tensor) {
  double most = 0.0;
  const Tensor wide = tensor.to(Dtype::f64);
  for (const double value : wide.span<double>()) {
    most = std::max(most, std::abs(value));
    if (std::isnan(value)) return NAN;
  }
  return most;
}

// The largest difference; NaN or a shape that differs is infinite.
inline double difference(const Tensor& a, const Tensor& b) {
  if (!a.defined() || !b.defined() || a.shape() != b.shape()) return INFINITY;
  const double most = largest(map(a, b, [](double x, double y) { return x - y; }));
  return std::isnan(most) ? INFINITY : most;
}

inline bool same_bits(const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() && a.dtype() == b.dtype() && a.contiguous() && b.contiguous() &&
         (a.bytes() == 0 || std::memcmp(a.raw(), b.raw(), a.bytes()) == 0);
}

// The rows of every sequence of a packed tensor, [begin, end).
inline Tensor rows(const Tensor& tensor, std::int64_t begin, std::int64_t end) {
  return tensor.defined() ? tensor.slice(0, begin, end).clone() : Tensor();
}

// ---- The two-key recurrence --------------------------------------------------------------------

struct TwoKeyResult {
  Tensor o, state;
};

// Outputs start as NaN, so that what is not written is seen.
inline TwoKeyResult run_two_key(Context& context, const Sequences& sequences,
                                const recurrence::TwoKey& in) {
  const Dtype wide = in.q.dtype() == Dtype::f64 ? Dtype::f64 : Dtype::f32;
  TwoKeyResult result{
      filled(in.v.shape(), NAN, in.q.dtype()),
      filled({sequences.count(), in.v.dim(-2), in.q.dim(-1), in.v.dim(-1)}, NAN, wide)};
  recurrence::two_key(context, sequences, in, {result.o, result.state});
  return result;
}

// What the equations of recurrence.hpp say for one dense call [B, T, H, D] given by rows; the
// sizes of a small problem.
struct Sizes {
  std::int64_t R = 23, H = 2, HV = 2, K = 6, V = 4;
  Shape keys() const { return {R, H, K}; }
  Shape values() const { return {R, HV, V}; }
  Shape gates() const { return {R, HV}; }
  Shape channel_gates() const { return {R, HV, K}; }
  Shape states(std::int64_t N = 1) const { return {N, HV, K, V}; }
};

// Random delta inputs with unit keys: e = w = k.
inline recurrence::TwoKey random_delta(Random& random, const Sizes& sizes) {
  recurrence::TwoKey in;
  in.q = unit_rows(normal(random, sizes.keys()));
  in.e = in.w = unit_rows(normal(random, sizes.keys()));
  in.v = normal(random, sizes.values());
  in.g = uniform(random, sizes.gates(), -0.5, 0.0);
  in.b = uniform(random, sizes.gates(), 0.0, 1.0);
  in.initial_state = normal(random, sizes.states());
  in.scale = 1.0 / std::sqrt(static_cast<double>(sizes.K));
  return in;
}

}  // namespace rankone::test
