#pragma once

// Tensors for tests: float32 values from a generator, their float64 copies, and outputs filled with
// NaN.

#include <cmath>
#include <limits>

#include "core/random.hpp"
#include "core/tensor.hpp"

namespace rankone::test {

template <class Next>
Tensor filled(const Shape& shape, Next&& next) {
  Tensor tensor = Tensor::empty(shape, Dtype::f32);
  for (float& x : tensor.span<float>()) x = static_cast<float>(next());
  return tensor;
}

inline Tensor normal(const Shape& shape, Random& random) {
  return filled(shape, [&] { return random.normal(); });
}

inline Tensor uniform(const Shape& shape, Random& random, double low, double high) {
  return filled(shape, [&] { return random.uniform(low, high); });
}

inline double logsigmoid(double x) { return -std::log1p(std::exp(-x)); }

// log decays of about -0.04 a step, as gated models start.
inline Tensor weak_gates(const Shape& shape, Random& random) {
  return filled(shape, [&] { return logsigmoid(random.normal()) / 16; });
}

// Scales each row of `size` elements to unit length.
inline void normalise_rows(const Tensor& tensor, std::int64_t size) {
  float* row = tensor.data<float>();
  for (std::int64_t r = 0; r < tensor.count() / size; ++r, row += size) {
    double squares = 0;
    for (std::int64_t i = 0; i < size; ++i) squares += static_cast<double>(row[i]) * row[i];
    const double factor = 1.0 / std::sqrt(squares + 1e-30);
    for (std::int64_t i = 0; i < size; ++i) row[i] = static_cast<float>(row[i] * factor);
  }
}

inline Tensor unit_rows(const Shape& shape, Random& random) {
  Tensor tensor = normal(shape, random);
  normalise_rows(tensor, shape[-1]);
  return tensor;
}

// Undefined tensors stay so.
inline Tensor wide(const Tensor& tensor) {
  return tensor.defined() ? tensor.to(Dtype::f64) : Tensor();
}

inline Tensor nan_like(const Tensor& tensor) {
  if (!tensor.defined()) return {};
  Tensor result = Tensor::empty(tensor.shape(), tensor.dtype());
  result.fill(std::numeric_limits<double>::quiet_NaN());
  return result;
}

}  // namespace rankone::test
