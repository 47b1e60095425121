#pragma once

// Functions of the axes, accurate over the whole range of Real: float, double, or the vectors of
// the cpu kernels, which bring their own exp_of, log1p_of, abs_of, max_of, min_of and select. So
// they are written without branches on values. Kernels of the cuda backend use them with float.

#include "core/host_device.hpp"

#ifndef RANKONE_ISA

#include <cmath>

namespace rankone::recurrence {

RANKONE_HOST_DEVICE inline float exp_of(float x) { return std::exp(x); }
RANKONE_HOST_DEVICE inline double exp_of(double x) { return std::exp(x); }
RANKONE_HOST_DEVICE inline float log_of(float x) { return std::log(x); }
RANKONE_HOST_DEVICE inline double log_of(double x) { return std::log(x); }
RANKONE_HOST_DEVICE inline float log1p_of(float x) { return std::log1p(x); }
RANKONE_HOST_DEVICE inline double log1p_of(double x) { return std::log1p(x); }
RANKONE_HOST_DEVICE inline float abs_of(float x) { return std::abs(x); }
RANKONE_HOST_DEVICE inline double abs_of(double x) { return std::abs(x); }
// NaN in `a` stays NaN.
RANKONE_HOST_DEVICE inline float max_of(float a, float b) { return a < b ? b : a; }
RANKONE_HOST_DEVICE inline double max_of(double a, double b) { return a < b ? b : a; }
RANKONE_HOST_DEVICE inline float min_of(float a, float b) { return b < a ? b : a; }
RANKONE_HOST_DEVICE inline double min_of(double a, double b) { return b < a ? b : a; }
RANKONE_HOST_DEVICE inline float select(bool condition, float yes, float no) {
  return condition ? yes : no;
}
RANKONE_HOST_DEVICE inline double select(bool condition, double yes, double no) {
  return condition ? yes : no;
}

// (1 - e^-y) / y, 1 at y = 0, and its derivative.
template <class Real>
RANKONE_HOST_DEVICE Real exponential_mean(Real y) {
  return y == 0 ? Real(1) : -std::expm1(-y) / y;
}
template <class Real>
RANKONE_HOST_DEVICE Real exponential_mean_derivative(Real y) {
  if (std::abs(y) > Real(0.5)) return (std::exp(-y) * (1 + y) - 1) / (y * y);
  // sum over n >= 1 of n (-1)^n y^(n-1) / (n+1)!: the closed form cancels here.
  Real sum = 0;
  Real term = Real(-0.5);  // (-1)^n y^(n-1) / (n+1)!
  for (int n = 1; n <= 16; ++n) {
    sum += static_cast<Real>(n) * term;
    term *= -y / static_cast<Real>(n + 2);
  }
  return sum;
}

}  // namespace rankone::recurrence

#endif

namespace rankone::recurrence {

template <class Real>
RANKONE_HOST_DEVICE Real sigmoid(Real x) {
  const Real e = exp_of(-abs_of(x));
  const Real upper = 1 / (1 + e);
  return select(x >= 0, upper, e * upper);
}

// log(1 + e^x); its derivative is sigmoid(x).
template <class Real>
RANKONE_HOST_DEVICE Real softplus(Real x) {
  return max_of(x, Real(0)) + log1p_of(exp_of(-abs_of(x)));
}

}  // namespace rankone::recurrence
