#pragma once

// Scalar functions of the axes, accurate over the whole range of Real.

#include <cmath>

namespace rankone::recurrence {

template <class Real>
Real sigmoid(Real x) {
  if (x >= 0) return 1 / (1 + std::exp(-x));
  const Real e = std::exp(x);
  return e / (1 + e);
}

// log(1 + e^x); its derivative is sigmoid(x).
template <class Real>
Real softplus(Real x) {
  return x > 0 ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x));
}

// (1 - e^-y) / y, 1 at y = 0, and its derivative.
template <class Real>
Real exponential_mean(Real y) {
  return y == 0 ? Real(1) : -std::expm1(-y) / y;
}
template <class Real>
Real exponential_mean_derivative(Real y) {
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
