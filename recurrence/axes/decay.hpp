#pragma once

// The decay axis for one element: the log decay g <= 0 from a logit x, with derivatives. To add a
// decay: a value of DecayForm (choices.hpp), a struct here, a line in with_decay(). The reference
// computes it with Real = double, the cpu backend with vectors of floats, the cuda backend with
// floats.

#include <cstdint>

#include "recurrence/axes/scalar.hpp"
#include "recurrence/choices.hpp"

namespace rankone::recurrence {

// The numbers of a Decay.
struct DecayConstants {
  DecayForm form;
  double bound, normalizer, clamp, dt_min, dt_max;
};

template <class Real>
struct DecayValue {
  Real g;
  Real dt;  // the time step; 0 where the form has none
};

template <class Real>
struct DecayDerivative {
  Real x;      // dL/dx, which is dL/d dt_bias too
  Real a_log;  // dL/d a_log, the part of this element
};

// g = -A dt,  dt = softplus(x) within [dt_min, dt_max],  A = exp(a_log)
// Source: Mamba-2 (ICML 2024), Gated DeltaNet (arXiv 2412.06464); per channel KDA (2510.26692).
template <class Real>
struct SoftplusDecay {
  Real dt_min, dt_max;

  RANKONE_HOST_DEVICE explicit SoftplusDecay(const DecayConstants& in)
      : dt_min(static_cast<Real>(in.dt_min)), dt_max(static_cast<Real>(in.dt_max)) {}
  RANKONE_HOST_DEVICE DecayValue<Real> value(Real x, Real A) const {
    const Real dt = min_of(max_of(softplus(x), dt_min), dt_max);
    return {-A * dt, dt};
  }
  RANKONE_HOST_DEVICE DecayDerivative<Real> vjp(Real x, Real A, Real d_g, Real d_dt) const {
    const Real free = softplus(x);
    const Real dt = min_of(max_of(free, dt_min), dt_max);
    const Real d_free = select(free == dt, d_dt - A * d_g, Real(0));
    return {d_free * sigmoid(x), -A * dt * d_g};
  }
};

// g = bound sigmoid(A x),  A = exp(a_log)          Source: KDA (arXiv 2510.26692), safe gate.
template <class Real>
struct LowerBoundDecay {
  Real bound;

  RANKONE_HOST_DEVICE explicit LowerBoundDecay(const DecayConstants& in)
      : bound(static_cast<Real>(in.bound)) {}
  RANKONE_HOST_DEVICE DecayValue<Real> value(Real x, Real A) const {
    return {bound * sigmoid(A * x), Real(0)};
  }
  RANKONE_HOST_DEVICE DecayDerivative<Real> vjp(Real x, Real A, Real d_g, Real) const {
    const Real d_product = d_g * bound * sigmoid(A * x) * sigmoid(-A * x);
    return {d_product * A, d_product * A * x};
  }
};

// g = max(logsigmoid(x) / normalizer, clamp)       Source: GLA (ICML 2024).
template <class Real>
struct LogSigmoidDecay {
  Real normalizer, clamp;

  RANKONE_HOST_DEVICE explicit LogSigmoidDecay(const DecayConstants& in)
      : normalizer(static_cast<Real>(in.normalizer)), clamp(static_cast<Real>(in.clamp)) {}
  RANKONE_HOST_DEVICE DecayValue<Real> value(Real x, Real) const {
    return {max_of(-softplus(-x) / normalizer, clamp), Real(0)};
  }
  RANKONE_HOST_DEVICE DecayDerivative<Real> vjp(Real x, Real, Real d_g, Real) const {
    const Real free = -softplus(-x) / normalizer;
    return {select(free > clamp, d_g * sigmoid(-x) / normalizer, Real(0)), Real(0)};
  }
};

// g = log(1 - 2^(-5 - head)), no logits, so A is 2^(-5 - head) here.
// Source: RetNet (arXiv 2307.08621).
template <class Real>
struct FixedDecay {
  RANKONE_HOST_DEVICE explicit FixedDecay(const DecayConstants&) {}
  RANKONE_HOST_DEVICE DecayValue<Real> value(Real, Real A) const { return {log1p_of(-A), Real(0)}; }
  RANKONE_HOST_DEVICE DecayDerivative<Real> vjp(Real, Real, Real, Real) const {
    return {Real(0), Real(0)};
  }
};

#ifndef RANKONE_ISA
// A of a head, from its a_log (0 where the call has none).
template <class Real>
RANKONE_HOST_DEVICE Real decay_rate(DecayForm form, Real a_log, std::int64_t head) {
  return form == DecayForm::fixed ? std::exp2(static_cast<Real>(-5 - head)) : exp_of(a_log);
}
#endif

// Calls visit(policy) with the policy of in.form.
template <class Real, class Visit>
RANKONE_HOST_DEVICE void with_decay(const DecayConstants& in, Visit&& visit) {
  switch (in.form) {
    case DecayForm::softplus:
      return visit(SoftplusDecay<Real>(in));
    case DecayForm::lower_bound:
      return visit(LowerBoundDecay<Real>(in));
    case DecayForm::logsigmoid:
      return visit(LogSigmoidDecay<Real>(in));
    case DecayForm::fixed:
      return visit(FixedDecay<Real>(in));
  }
}

}  // namespace rankone::recurrence
