#pragma once

// A vector of floats as the Real of the templates in axes/.

#include "core/simd.hpp"

namespace rankone::recurrence::cpu::RANKONE_ISA {

using namespace ::rankone::RANKONE_ISA;

struct Lanes {
  Vec v;

  explicit Lanes(Vec value) : v(value) {}
  // A number in every lane.
  template <class Number>
  Lanes(Number value) : v(splat(static_cast<float>(value))) {}

  friend Lanes operator-(Lanes a) { return Lanes(-a.v); }
  friend Lanes operator+(Lanes a, Lanes b) { return Lanes(a.v + b.v); }
  friend Lanes operator-(Lanes a, Lanes b) { return Lanes(a.v - b.v); }
  friend Lanes operator*(Lanes a, Lanes b) { return Lanes(a.v * b.v); }
  friend Lanes operator/(Lanes a, Lanes b) { return Lanes(a.v / b.v); }

  struct Mask {
    IntVec bits;
  };
  friend Mask operator>(Lanes a, Lanes b) { return {a.v > b.v}; }
  friend Mask operator>=(Lanes a, Lanes b) { return {a.v >= b.v}; }
  friend Mask operator==(Lanes a, Lanes b) { return {a.v == b.v}; }
  friend Lanes select(Mask mask, Lanes yes, Lanes no) {
    return Lanes(RANKONE_ISA::select(mask.bits, yes.v, no.v));
  }

  friend Lanes abs_of(Lanes a) {
    return Lanes(reinterpret_cast<Vec>(reinterpret_cast<IntVec>(a.v) & 0x7fffffff));
  }
  // NaN in `a` stays NaN.
  friend Lanes max_of(Lanes a, Lanes b) { return Lanes(RANKONE_ISA::select(a.v < b.v, b.v, a.v)); }
  friend Lanes min_of(Lanes a, Lanes b) { return Lanes(RANKONE_ISA::select(b.v < a.v, b.v, a.v)); }
  friend Lanes exp_of(Lanes a) { return Lanes(vexp(a.v)); }
  // For a > -1. The rounding of w = 1 + a is made good by the factor a / (w - 1).
  friend Lanes log1p_of(Lanes a) {
    const Vec w = splat(1.0F) + a.v;
    const Vec rest = w - splat(1.0F);
    const IntVec tiny = rest == Vec{};
    const Vec divisor = RANKONE_ISA::select(tiny, splat(1.0F), rest);
    return Lanes(RANKONE_ISA::select(tiny, a.v, vlog(w) * (a.v / divisor)));
  }
};

}  // namespace rankone::recurrence::cpu::RANKONE_ISA
