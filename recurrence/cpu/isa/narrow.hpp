#pragma once

// bf16 numbers in memory as vectors of floats.

#include "core/simd.hpp"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace rankone::recurrence::cpu::RANKONE_ISA {

using namespace ::rankone::RANKONE_ISA;
using ::rankone::RANKONE_ISA::load;
using ::rankone::RANKONE_ISA::load_part;
using ::rankone::RANKONE_ISA::store;
using ::rankone::RANKONE_ISA::store_part;

using HalfVec = std::uint16_t __attribute__((vector_size(kLanes * 2)));
// NOLINTNEXTLINE(modernize-use-using)
typedef std::uint16_t LooseHalfVec __attribute__((vector_size(kLanes * 2), aligned(2), may_alias));

// __builtin_convertvector would take these apart; unmasked, GCC 12 warns of its own header.
inline IntVec widened(HalfVec bits) {
#if defined(__AVX512F__)
  return reinterpret_cast<IntVec>(
      _mm512_maskz_cvtepu16_epi32(0xffff, reinterpret_cast<__m256i>(bits)));
#elif defined(__AVX2__)
  return reinterpret_cast<IntVec>(_mm256_cvtepu16_epi32(reinterpret_cast<__m128i>(bits)));
#else
  return __builtin_convertvector(bits, IntVec);
#endif
}
// The upper halves.
inline HalfVec narrowed(IntVec bits) {
#if defined(__AVX512F__)
  const auto upper = reinterpret_cast<__m512i>(bits >> 16);
  return reinterpret_cast<HalfVec>(_mm512_maskz_cvtepi32_epi16(0xffff, upper));
#elif defined(__AVX2__)
  const __m256i upper = _mm256_srli_epi32(reinterpret_cast<__m256i>(bits), 16);
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(upper, upper), 0x08);
  return reinterpret_cast<HalfVec>(_mm256_castsi256_si128(packed));
#else
  return __builtin_convertvector((bits >> 16) & 0xffff, HalfVec);
#endif
}

inline Vec load(const std::uint16_t* from) {
  return reinterpret_cast<Vec>(widened(*reinterpret_cast<const LooseHalfVec*>(from)) << 16);
}
// Rounded to nearest even.
inline void store(std::uint16_t* to, Vec value) {
  const IntVec bits = reinterpret_cast<IntVec>(value);
  const IntVec rounded = bits + 0x7fff + ((bits >> 16) & 1);
  // A NaN must stay one: rounding could carry its mantissa into the exponent.
  *reinterpret_cast<LooseHalfVec*>(to) = narrowed(value == value ? rounded : (bits | 0x400000));
}

// Whether this processor can round by one instruction, which takes denormals for zero.
inline bool rounds_in_hardware() {
#if defined(__AVX512F__)
  return __builtin_cpu_supports("avx512bf16") != 0;
#else
  return false;
#endif
}
inline void store_by_hardware(std::uint16_t* to, Vec value) {
#if defined(__AVX512F__)
  // As text: the sources of this instruction set are compiled for processors without it.
  HalfVec bits;
  asm("vcvtneps2bf16 %1, %0" : "=v"(bits) : "v"(value));
  *reinterpret_cast<LooseHalfVec*>(to) = bits;
#else
  store(to, value);
#endif
}

inline Vec load_part(const std::uint16_t* from, int count) {
  std::uint16_t numbers[kLanes] = {};
  for (int i = 0; i < count; ++i) numbers[i] = from[i];
  return load(numbers);
}
inline void store_part(std::uint16_t* to, Vec value, int count) {
  std::uint16_t numbers[kLanes];
  store(numbers, value);
  for (int i = 0; i < count; ++i) to[i] = numbers[i];
}

}  // namespace rankone::recurrence::cpu::RANKONE_ISA
