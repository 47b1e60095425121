#pragma once

// The preconditioner axis, diagonal kinds, for one channel: the factor that the state A puts on the
// target, with its derivatives.
//
//     atk: r = log(A + eps) - center;  s = r / (1 + |r|);  factor = x^(-s)         (write key)
//     atq: factor = 1 / (A + ridge)                                                (query)
//
// Source: Preconditioned DeltaNet (arXiv 2604.21100), Sec. 4.

#include "recurrence/axes/scalar.hpp"
#include "recurrence/choices.hpp"

namespace rankone::recurrence {

template <class Real>
struct PreconditionFactor {
  Real factor;
  Real d_state;      // d factor / dA
  Real d_parameter;  // d factor / d center, or / d ridge
};

template <class Real>
RANKONE_HOST_DEVICE PreconditionFactor<Real> atk_factor(Real state, Real center, Real log_x,
                                                        Real eps) {
  const Real r = log_of(state + eps) - center;
  const Real range = 1 + abs_of(r);
  const Real factor = exp_of(-log_x * (r / range));
  const Real d_r = -log_x * factor / range / range;
  return {factor, d_r / (state + eps), -d_r};
}

template <class Real>
RANKONE_HOST_DEVICE PreconditionFactor<Real> atq_factor(Real state, Real ridge) {
  const Real factor = 1 / (state + ridge);
  return {factor, -factor * factor, -factor * factor};
}

// The factor of a diagonal kind; `parameter` is center (atk) or ridge (atq).
template <class Real>
RANKONE_HOST_DEVICE PreconditionFactor<Real> precondition_factor(PreconditionerKind kind,
                                                                 Real state, Real parameter,
                                                                 Real log_x, Real eps) {
  return kind == PreconditionerKind::atk ? atk_factor(state, parameter, log_x, eps)
                                         : atq_factor(state, parameter);
}

// A_t from A_{t-1}: A = exp(g) A + b k^2.
template <class Real>
RANKONE_HOST_DEVICE Real precondition_step(Real state, Real decay, Real gain, Real key) {
  return decay * state + gain * key * key;
}

}  // namespace rankone::recurrence
