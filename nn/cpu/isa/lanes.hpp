#pragma once

// Loops over vectors of floats with a partial last one, for the kernel sources of this folder.

#include "core/simd.hpp"
#include "nn/choices.hpp"

namespace rankone::nn::RANKONE_ISA {

using rankone::RANKONE_ISA::IntVec;
using rankone::RANKONE_ISA::kLanes;
using rankone::RANKONE_ISA::load;
using rankone::RANKONE_ISA::load_part;
using rankone::RANKONE_ISA::select;
using rankone::RANKONE_ISA::splat;
using rankone::RANKONE_ISA::store;
using rankone::RANKONE_ISA::store_part;
using rankone::RANKONE_ISA::sum;
using rankone::RANKONE_ISA::Vec;
using rankone::RANKONE_ISA::vexp;
using rankone::RANKONE_ISA::vmax;
using rankone::RANKONE_ISA::vsigmoid;

// body(i, n): the n <= kLanes elements from i on. Inlined twice, so that n is a constant in the
// loop.
template <class Body>
inline void for_lanes(std::int64_t count, Body body) {
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) body(i, kLanes);
  if (i < count) body(i, static_cast<int>(count - i));
}

inline Vec get(const float* from, int n) { return n == kLanes ? load(from) : load_part(from, n); }
inline void put(float* to, Vec value, int n) {
  if (n == kLanes) {
    store(to, value);
  } else {
    store_part(to, value, n);
  }
}

// sum of a b, in four vector accumulators.
inline float dot(std::int64_t count, const float* a, const float* b) {
  Vec sums[4] = {};
  std::int64_t i = 0;
  for (; i + 4 * kLanes <= count; i += 4 * kLanes) {
    for (int j = 0; j < 4; ++j) sums[j] += load(a + i + j * kLanes) * load(b + i + j * kLanes);
  }
  for_lanes(count - i,
            [&](std::int64_t k, int n) { sums[0] += get(a + i + k, n) * get(b + i + k, n); });
  return sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

template <Activation kind>
inline Vec activation(Vec x) {
  if constexpr (kind == Activation::silu) return x * vsigmoid(x);
  if constexpr (kind == Activation::sigmoid) return vsigmoid(x);
  if constexpr (kind == Activation::relu) return select(x > Vec{}, x, Vec{});
  if constexpr (kind == Activation::elu1) return select(x > Vec{}, x + splat(1.0F), vexp(x));
  return x;
}

template <Activation kind>
inline Vec activation_slope(Vec x) {
  const Vec one = splat(1.0F);
  if constexpr (kind == Activation::silu) {
    const Vec s = vsigmoid(x);
    return s * (one + x * (one - s));
  }
  if constexpr (kind == Activation::sigmoid) {
    const Vec s = vsigmoid(x);
    return s * (one - s);
  }
  if constexpr (kind == Activation::relu) return select(x > Vec{}, one, Vec{});
  if constexpr (kind == Activation::elu1) return select(x > Vec{}, one, vexp(x));
  return one;
}

}  // namespace rankone::nn::RANKONE_ISA
