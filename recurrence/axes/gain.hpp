#pragma once

// The gain axis for one token and head: the gain b, with its derivatives. To add a gain: a value of
// GainKind (choices.hpp), a struct here and a line in with_gain().
//
// A key-norm gain is returned in the bounded form: with N = e . w and n^2 = N + eps the keys and
// the value are divided by n and the gain is multiplied by n^2, so `b` below is (gain of the paper)
// times (N + eps), written so that nothing is divided by N. Every backend computes with these
// structs.

#include <cmath>
#include <cstdint>

#include "recurrence/axes/scalar.hpp"
#include "recurrence/choices.hpp"

namespace rankone::recurrence {

template <class Real>
struct GainInputs {
  Real x;  // logit
  Real N;  // e . w; 0 where the gain is no key-norm one
  Real eps;
  Real theta;  // learned_scalar
};

template <class Real>
struct GainValue {
  Real b;
  Real d_x, d_N, d_theta;  // derivatives of b
};

// b = 1
struct OneGain {
  static constexpr bool key_norm = false;
  template <class Real>
  RANKONE_HOST_DEVICE static GainValue<Real> value(const GainInputs<Real>&) {
    return {1, 0, 0, 0};
  }
};

// b = Scale sigmoid(x); twice the sigmoid allows negative eigenvalues.
template <int Scale>
struct SigmoidGain {
  static constexpr bool key_norm = false;
  template <class Real>
  RANKONE_HOST_DEVICE static GainValue<Real> value(const GainInputs<Real>& in) {
    const Real beta = Scale * sigmoid(in.x);
    return {beta, beta * sigmoid(-in.x), 0, 0};
  }
};

// b = x, the time step of the decay (Mamba-2).
struct TimeStepGain {
  static constexpr bool key_norm = false;
  template <class Real>
  RANKONE_HOST_DEVICE static GainValue<Real> value(const GainInputs<Real>& in) {
    return {in.x, 1, 0, 0};
  }
};

// beta / (N + eps): b = beta.                     Source: KLA (arXiv 2605.08587).
struct KaczmarzGain {
  static constexpr bool key_norm = true;
  template <class Real>
  RANKONE_HOST_DEVICE static GainValue<Real> value(const GainInputs<Real>& in) {
    const Real beta = sigmoid(in.x);
    return {beta, beta * sigmoid(-in.x), 0, 0};
  }
};

// 1 / (N + eps): b = 1.                           Source: test-time regression (arXiv 2501.12352).
struct NlmsGain {
  static constexpr bool key_norm = true;
  template <class Real>
  RANKONE_HOST_DEVICE static GainValue<Real> value(const GainInputs<Real>&) {
    return {1, 0, 0, 0};
  }
};

// beta / (1 + beta N): b = beta (N + eps) / (1 + beta N).    Source: Longhorn (arXiv 2407.14207).
struct LonghornGain {
  static constexpr bool key_norm = true;
  template <class Real>
  RANKONE_HOST_DEVICE static GainValue<Real> value(const GainInputs<Real>& in) {
    const Real beta = sigmoid(in.x), norm = in.N + in.eps, below = 1 + beta * in.N;
    const Real d_beta = norm / (below * below);
    return {beta * norm / below, d_beta * beta * sigmoid(-in.x),
            beta * (1 - beta * in.eps) / (below * below), 0};
  }
};

// (1 - exp(-beta N)) / N: b = (N + eps) beta m(beta N), m(y) = (1 - exp(-y)) / y.
// Source: EFLA, as tabulated in arXiv 2604.21100.
struct EflaGain {
  static constexpr bool key_norm = true;
  template <class Real>
  RANKONE_HOST_DEVICE static GainValue<Real> value(const GainInputs<Real>& in) {
    const Real beta = sigmoid(in.x), norm = in.N + in.eps, y = beta * in.N;
    const Real m = exponential_mean(y);
    const Real d_N = beta * m + norm * beta * beta * exponential_mean_derivative(y);
    return {norm * beta * m, norm * std::exp(-y) * beta * sigmoid(-in.x), d_N, 0};
  }
};

// beta / (s N + eps), s = softplus(theta): b = beta (N + eps) / (s N + eps).
// Source: the LearnedScalar ablation of KLA (arXiv 2605.08587).
struct LearnedScalarGain {
  static constexpr bool key_norm = true;
  template <class Real>
  RANKONE_HOST_DEVICE static GainValue<Real> value(const GainInputs<Real>& in) {
    const Real beta = sigmoid(in.x), s = softplus(in.theta), norm = in.N + in.eps;
    // At N = eps = 0 there is no write at all: any finite gain will do.
    if (norm == 0) return {0, 0, 0, 0};
    const Real below = s * in.N + in.eps, ratio = norm / below;
    return {beta * ratio, ratio * beta * sigmoid(-in.x), beta * in.eps * (1 - s) / (below * below),
            -beta * ratio * in.N / below * sigmoid(in.theta)};
  }
};

// Calls visit(policy) with the policy of `kind`. The vector gain has no scalar: it gates keys and
// values (prologue.hpp).
template <class Visit>
RANKONE_HOST_DEVICE void with_gain(GainKind kind, Visit&& visit) {
  switch (kind) {
    case GainKind::one:
    case GainKind::vector:
      return visit(OneGain{});
    case GainKind::sigmoid:
      return visit(SigmoidGain<1>{});
    case GainKind::sigmoid2:
      return visit(SigmoidGain<2>{});
    case GainKind::dt:
      return visit(TimeStepGain{});
    case GainKind::kaczmarz:
      return visit(KaczmarzGain{});
    case GainKind::nlms:
      return visit(NlmsGain{});
    case GainKind::longhorn:
      return visit(LonghornGain{});
    case GainKind::efla:
      return visit(EflaGain{});
    case GainKind::learned_scalar:
      return visit(LearnedScalarGain{});
  }
}

// f(t), t >= 1.
template <class Real>
RANKONE_HOST_DEVICE Real time_factor(TimeFactor kind, std::int64_t t) {
  const auto time = static_cast<double>(t);
  switch (kind) {
    case TimeFactor::none:
      break;
    case TimeFactor::inv_t:
      return static_cast<Real>(1.0 / time);
    case TimeFactor::inv_sqrt_t:
      return static_cast<Real>(1.0 / std::sqrt(time));
    case TimeFactor::inv_log_t:
      return static_cast<Real>(1.0 / std::log1p(time));
  }
  return 1;
}

}  // namespace rankone::recurrence
