#pragma once

#include <cmath>

#include "nn/operators.hpp"

namespace rankone::nn::reference {

inline double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

inline double activation(Activation kind, double x) {
  switch (kind) {
    case Activation::silu:
      return x * sigmoid(x);
    case Activation::sigmoid:
      return sigmoid(x);
    case Activation::relu:
      return x > 0 ? x : 0.0;
    case Activation::elu1:
      return x > 0 ? x + 1.0 : std::exp(x);
    case Activation::none:
      break;
  }
  return x;
}

inline double activation_slope(Activation kind, double x) {
  const double s = sigmoid(x);
  switch (kind) {
    case Activation::silu:
      return s * (1.0 + x * (1.0 - s));
    case Activation::sigmoid:
      return s * (1.0 - s);
    case Activation::relu:
      return x > 0 ? 1.0 : 0.0;
    case Activation::elu1:
      return x > 0 ? 1.0 : std::exp(x);
    case Activation::none:
      break;
  }
  return 1.0;
}

}  // namespace rankone::nn::reference
