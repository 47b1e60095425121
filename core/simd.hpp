#pragma once

// Vectors of floats for the kernel sources in cpu/isa/ folders, which are compiled once per
// instruction set. Only such sources may include this header: everything lives in the namespace of
// the set, so that no function compiled for a newer processor can be picked by the linker for an
// older one. For the same reason those sources use no inline functions or templates of the standard
// library.

#include <cstdint>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#ifndef RANKONE_ISA
#error "core/simd.hpp is for sources compiled by rankone_isa_sources()"
#endif

namespace rankone::RANKONE_ISA {

#if defined(__AVX512F__)
inline constexpr int kLanes = 16;
#elif defined(__AVX2__)
inline constexpr int kLanes = 8;
#else
inline constexpr int kLanes = 4;
#endif

using Vec = float __attribute__((vector_size(kLanes * 4)));
using IntVec = std::int32_t __attribute__((vector_size(kLanes * 4)));
// For memory that need not be aligned. A typedef: in a using declaration Clang drops `aligned`.
// NOLINTNEXTLINE(modernize-use-using)
typedef float LooseVec __attribute__((vector_size(kLanes * 4), aligned(4), may_alias));

inline Vec load(const float* from) { return *reinterpret_cast<const LooseVec*>(from); }
inline void store(float* to, Vec value) { *reinterpret_cast<LooseVec*>(to) = value; }
inline Vec splat(float value) { return value - Vec{}; }

// The first `count` lanes (0 < count < kLanes), the rest zero; and the reverse.
#if defined(__AVX512F__)
inline Vec load_part(const float* from, int count) {
  return _mm512_maskz_loadu_ps(static_cast<__mmask16>((1U << count) - 1U), from);
}
inline void store_part(float* to, Vec value, int count) {
  _mm512_mask_storeu_ps(to, static_cast<__mmask16>((1U << count) - 1U), value);
}
#else
inline Vec load_part(const float* from, int count) {
  Vec value{};
  for (int i = 0; i < count; ++i) value[i] = from[i];
  return value;
}
inline void store_part(float* to, Vec value, int count) {
  for (int i = 0; i < count; ++i) to[i] = value[i];
}
#endif

// Sum of the lanes by halving, a fixed order.
using Vec4 = float __attribute__((vector_size(16)));
inline float sum4(Vec4 value) {
  value += __builtin_shufflevector(value, value, 2, 3, 2, 3);
  return value[0] + value[1];
}
#if defined(__AVX2__)
using Vec8 = float __attribute__((vector_size(32)));
inline float sum8(Vec8 value) {
  return sum4(__builtin_shufflevector(value, value, 0, 1, 2, 3) +
              __builtin_shufflevector(value, value, 4, 5, 6, 7));
}
#endif
inline float sum(Vec value) {
#if defined(__AVX512F__)
  return sum8(__builtin_shufflevector(value, value, 0, 1, 2, 3, 4, 5, 6, 7) +
              __builtin_shufflevector(value, value, 8, 9, 10, 11, 12, 13, 14, 15));
#elif defined(__AVX2__)
  return sum8(value);
#else
  return sum4(value);
#endif
}

inline Vec select(IntVec mask, Vec yes, Vec no) { return mask ? yes : no; }
inline Vec vmax(Vec a, Vec b) { return select(a > b, a, b); }
inline Vec vmin(Vec a, Vec b) { return select(a < b, a, b); }

// x = n ln 2 + r with a whole n and |r| <= ln 2 / 2.
struct ExpReduced {
  Vec r, n;
};
inline ExpReduced exp_reduced(Vec x) {
  const Vec magic = splat(12582912.0F);  // adding 1.5 * 2^23 rounds to the nearest integer
  const Vec rounded = x * splat(1.44269504F) + magic;
  const Vec n = rounded - magic;
  return {(x - n * splat(0.693359375F)) + n * splat(2.12194440e-4F), n};
}

// e^x = p 2^n for x in [-87.33654, 88.722839] or NaN, with n a whole number in [-126, 128].
struct ExpParts {
  Vec p, n;
};
inline ExpParts exp_parts(Vec x) {
  const auto [r, n] = exp_reduced(x);
  Vec p = splat(1.9875691500e-4F);
  p = p * r + splat(1.3981999507e-3F);
  p = p * r + splat(8.3334519073e-3F);
  p = p * r + splat(4.1665795894e-2F);
  p = p * r + splat(1.6666665459e-1F);
  p = p * r + splat(5.0000001201e-1F);
  return {p * r * r + r + splat(1.0F), n};
}
// 2^n for whole n in [-126, 127].
inline Vec power_of_two(IntVec n) { return reinterpret_cast<Vec>((n + 127) << 23); }

inline constexpr float kLowestExponent = -87.33654F;

// e^x, at most 2 ulp from exact on [-87.3, 88.7]; below it is 0, above it is infinity, NaN stays
// NaN.
inline Vec vexp(Vec x) {
  const Vec low = splat(kLowestExponent);
  const Vec high = splat(88.722839F);
  // In this order of arguments NaN stays.
  const ExpParts parts = exp_parts(vmin(high, vmax(low, x)));
  // 2^n in two factors: n reaches 128, which one exponent can not hold.
  const IntVec exponent = __builtin_convertvector(parts.n, IntVec);
  const IntVec half = exponent >> 1;
  const Vec result = parts.p * power_of_two(half) * power_of_two(exponent - half);
  return select(x < low, Vec{}, select(x > high, splat(__builtin_inff()), result));
}

// The same with a largest value of about 1e37, so that what multiplies it stays finite a little
// longer and zero times it is zero.
inline Vec vexp_finite(Vec x) {
  const Vec low = splat(kLowestExponent);
  const ExpParts parts = exp_parts(vmin(splat(85.19F), vmax(low, x)));
  const Vec result = parts.p * power_of_two(__builtin_convertvector(parts.n, IntVec));
  return select(x < low, Vec{}, result);
}

// ln x, at most 2 ulp from exact for normal x > 0; of zero and denormals -infinity, of negative
// numbers NaN.
inline Vec vlog(Vec x) {
  const IntVec bits = reinterpret_cast<IntVec>(x);
  // x = 2^n m with m in [sqrt(1/2), sqrt(2)).
  const IntVec offset = bits - 0x3f3504f3;  // sqrt(1/2)
  const IntVec n = offset >> 23;
  const Vec m = reinterpret_cast<Vec>((offset & 0x007fffff) + 0x3f3504f3) - splat(1.0F);
  const Vec exponent = __builtin_convertvector(n, Vec);
  const Vec square = m * m;
  Vec p = splat(7.0376836292e-2F);
  p = p * m + splat(-1.1514610310e-1F);
  p = p * m + splat(1.1676998740e-1F);
  p = p * m + splat(-1.2420140846e-1F);
  p = p * m + splat(1.4249322787e-1F);
  p = p * m + splat(-1.6668057665e-1F);
  p = p * m + splat(2.0000714765e-1F);
  p = p * m + splat(-2.4999993993e-1F);
  p = p * m + splat(3.3333331174e-1F);
  p = p * m * square + exponent * splat(-2.12194440e-4F);
  Vec result = (p - splat(0.5F) * square + m) + exponent * splat(0.693359375F);
  result = select(x < splat(1.17549435e-38F), splat(-__builtin_inff()), result);
  result = select(x < Vec{}, splat(__builtin_nanf("")), result);
  result = select(x == splat(__builtin_inff()), x, result);
  return select(x != x, x, result);
}

inline Vec vsigmoid(Vec x) { return splat(1.0F) / (splat(1.0F) + vexp(-x)); }

}  // namespace rankone::RANKONE_ISA
