// The diagonal preconditioner, one lane a channel: A = exp(g) A + b k^2, out = factor(A) target.

#include "recurrence/cpu/isa/declarations.hpp"

namespace rankone::recurrence::cpu::RANKONE_ISA {
namespace {

struct Factor {
  Vec value;
  Vec d_state;
  Vec d_parameter;
};

// atk: r = log(A + eps) - center, factor = x^(-r / (1 + |r|)); atq: factor = 1 / (A + ridge).
inline Factor factor_of(const PreconditionScan& s, Vec state, Vec parameter) {
  const Vec one = splat(1.0F);
  if (!s.atk) {
    const Vec value = one / (state + parameter);
    return {value, -value * value, -value * value};
  }
  const Vec shifted = state + splat(s.eps);
  const Vec r = vlog(shifted) - parameter;
  const Vec range = one + vmax(r, -r);
  const Vec value = vexp(splat(-s.log_x) * (r / range));
  const Vec d_r = splat(-s.log_x) * value / (range * range);
  return {value, d_r / shifted, -d_r};
}

}  // namespace

void precondition(const PreconditionScan& s) {
  for (int c = 0; c < s.channels; c += kLanes) {
    const Vec parameter = load(s.parameter + c);
    Vec state = load(s.state + c);
    for (int t = 0; t < s.n; ++t) {
      const Index at = t * s.row + c;
      const Vec k = load(s.k + at);
      if (s.history != nullptr) store(s.history + at, state);
      state = splat(s.decay[t]) * state + splat(s.gain[t]) * (k * k);
      if (s.out == nullptr) continue;
      store(s.out + at, factor_of(s, state, parameter).value * load(s.target + at));
    }
    if (s.history != nullptr) store(s.history + s.n * s.row + c, state);
    store(s.state + c, state);
  }
}

void precondition_back(const PreconditionScanBack& b) {
  const PreconditionScan& s = b.scan;
  for (int t = 0; t < s.n; ++t) b.d_decay[t] = b.d_gain[t] = 0.0F;
  for (int c = 0; c < s.channels; c += kLanes) {
    const Vec parameter = load(s.parameter + c);
    Vec d_parameter{};
    Vec d_state = load(b.d_state + c);
    for (int t = s.n - 1; t >= 0; --t) {
      const Index at = t * s.row + c;
      const Vec d_out = load(b.d_out + at);
      const Vec k = load(s.k + at);
      const Factor factor = factor_of(s, load(s.history + at + s.row), parameter);
      const Vec through = d_out * load(s.target + at);
      store(b.d_target + at, d_out * factor.value);
      d_parameter += through * factor.d_parameter;
      d_state += through * factor.d_state;
      store(b.d_k + at, splat(2.0F * s.gain[t]) * k * d_state);
      // Lanes behind the last channel hold k = 0 and a state of no meaning.
      const int lanes = s.channels - c < kLanes ? s.channels - c : kLanes;
      Vec gain = k * k * d_state;
      d_state *= splat(s.decay[t]);
      Vec decay = d_state * load(s.history + at);
      for (int i = lanes; i < kLanes; ++i) gain[i] = decay[i] = 0.0F;
      b.d_gain[t] += sum(gain);
      b.d_decay[t] += sum(decay);
    }
    store(b.d_state + c, d_state);
    store(b.d_parameter + c, load(b.d_parameter + c) + d_parameter);
  }
}

}  // namespace rankone::recurrence::cpu::RANKONE_ISA
