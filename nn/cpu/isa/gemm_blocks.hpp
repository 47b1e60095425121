#pragma once

// What the matrix-product kernels of one instruction set share: the formats they read, and square
// blocks of vectors transposed in registers.

#include "core/simd.hpp"
#include "nn/cpu/isa/gemm_kernels.hpp"

namespace rankone::nn::RANKONE_ISA {
namespace {

// NOLINTNEXTLINE(google-build-using-namespace): the vocabulary of this instruction set
using namespace rankone::RANKONE_ISA;

// Two vectors wide and as tall as the registers allow: rows * 2 accumulators, two vectors of b and
// one broadcast element of a.
#if defined(__AVX512F__)
constexpr int kRows = 12;
#elif defined(__AVX2__)
constexpr int kRows = 6;
#else
constexpr int kRows = 4;
#endif
constexpr int kColumns = 2 * kLanes;

using Half = std::uint16_t;
// A typedef, as LooseVec of core/simd.hpp.
// NOLINTNEXTLINE(modernize-use-using)
typedef Half HalfVec __attribute__((vector_size(kLanes * 2), aligned(2), may_alias));
using UintVec = std::uint32_t __attribute__((vector_size(kLanes * 4)));

struct F32 {
  using Element = float;
  static Vec widen(const float* from) { return load(from); }
  static float widen_one(float value) { return value; }
  static Vec from_words(Vec words, int) { return words; }
};

struct Bf16 {
  using Element = Half;
  static Vec widen(const Half* from) {
    const HalfVec bits = *reinterpret_cast<const HalfVec*>(from);
    return reinterpret_cast<Vec>(__builtin_convertvector(bits, UintVec) << 16);
  }
  static float widen_one(Half value) {
    const std::uint32_t bits = static_cast<std::uint32_t>(value) << 16;
    float result;
    __builtin_memcpy(&result, &bits, sizeof result);
    return result;
  }
  // The first or second of the two in each word.
  static Vec from_words(Vec words, int part) {
    const UintVec bits = reinterpret_cast<UintVec>(words);
    return reinterpret_cast<Vec>(part == 0 ? bits << 16 : bits & 0xffff0000U);
  }
};

struct F16 {
  using Element = Half;
  // Exponent and mantissa, moved into place, are the value times 2^-112, subnormals included;
  // infinities and NaNs get the largest exponent back.
  static Vec widen(const Half* from) {
    const HalfVec half = *reinterpret_cast<const HalfVec*>(from);
    return widen_bits(__builtin_convertvector(half, UintVec));
  }
  static Vec from_words(Vec words, int part) {
    const UintVec bits = reinterpret_cast<UintVec>(words);
    return widen_bits(part == 0 ? bits & 0xffffU : bits >> 16);
  }
  static Vec widen_bits(UintVec bits) {
    const Vec magnitude = reinterpret_cast<Vec>((bits & 0x7fffU) << 13) * splat(0x1p112F);
    const UintVec special = reinterpret_cast<UintVec>((bits & 0x7c00U) == 0x7c00U);
    return reinterpret_cast<Vec>(reinterpret_cast<UintVec>(magnitude) | (special & 0x7f800000U) |
                                 ((bits & 0x8000U) << 16));
  }
  static float widen_one(Half value) {
    Half padded[kLanes] = {value};
    return widen(padded)[0];
  }
};

template <class Source>
Vec widen_part(const typename Source::Element* from, std::int64_t count) {
  Vec value{};
  for (int i = 0; i < count; ++i) value[i] = Source::widen_one(from[i]);
  return value;
}

// Transposes the kLanes by kLanes matrix in `rows`: first the 4 by 4 blocks inside each quarter of
// the vectors, then the quarters themselves.
#if defined(__AVX512F__)
#define RANKONE_UNPACK(a, b, o)                                                                \
  __builtin_shufflevector(a, b, o, o + 16, o + 1, o + 17, o + 4, o + 20, o + 5, o + 21, o + 8, \
                          o + 24, o + 9, o + 25, o + 12, o + 28, o + 13, o + 29)
#define RANKONE_PAIRS(a, b, o)                                                                 \
  __builtin_shufflevector(a, b, o, o + 1, o + 16, o + 17, o + 4, o + 5, o + 20, o + 21, o + 8, \
                          o + 9, o + 24, o + 25, o + 12, o + 13, o + 28, o + 29)
#define RANKONE_QUARTERS(a, b, o)                                                             \
  __builtin_shufflevector(a, b, o, o + 1, o + 2, o + 3, o + 8, o + 9, o + 10, o + 11, o + 16, \
                          o + 17, o + 18, o + 19, o + 24, o + 25, o + 26, o + 27)
#elif defined(__AVX2__)
#define RANKONE_UNPACK(a, b, o) \
  __builtin_shufflevector(a, b, o, o + 8, o + 1, o + 9, o + 4, o + 12, o + 5, o + 13)
#define RANKONE_PAIRS(a, b, o) \
  __builtin_shufflevector(a, b, o, o + 1, o + 8, o + 9, o + 4, o + 5, o + 12, o + 13)
#define RANKONE_QUARTERS(a, b, o) \
  __builtin_shufflevector(a, b, o, o + 1, o + 2, o + 3, o + 8, o + 9, o + 10, o + 11)
#else
#define RANKONE_UNPACK(a, b, o) __builtin_shufflevector(a, b, o, o + 4, o + 1, o + 5)
#define RANKONE_PAIRS(a, b, o) __builtin_shufflevector(a, b, o, o + 1, o + 4, o + 5)
#endif

// Collects the even quarters and the odd quarters of each pair (i, i + distance).
#if defined(__AVX2__)
inline void merge_quarters(Vec* rows, int distance) {
  Vec result[kLanes];
#pragma GCC unroll 16
  for (int i = 0; i < kLanes / 2; ++i) {
    const int low = i / distance * 2 * distance + i % distance;
    result[low] = RANKONE_QUARTERS(rows[low], rows[low + distance], 0);
    result[low + distance] = RANKONE_QUARTERS(rows[low], rows[low + distance], 4);
  }
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) rows[i] = result[i];
}
#endif

// The 4 by 4 blocks of four rows.
inline void transpose_quarters(Vec* rows) {
  const Vec low01 = RANKONE_UNPACK(rows[0], rows[1], 0);
  const Vec high01 = RANKONE_UNPACK(rows[0], rows[1], 2);
  const Vec low23 = RANKONE_UNPACK(rows[2], rows[3], 0);
  const Vec high23 = RANKONE_UNPACK(rows[2], rows[3], 2);
  rows[0] = RANKONE_PAIRS(low01, low23, 0);
  rows[1] = RANKONE_PAIRS(low01, low23, 2);
  rows[2] = RANKONE_PAIRS(high01, high23, 0);
  rows[3] = RANKONE_PAIRS(high01, high23, 2);
}

// Vector 4g + c now holds, in quarter q, rows 4g .. 4g + 3 of column 4q + c; it is wanted in
// quarter g of vector 4q + c.
inline void gather_quarters(Vec* rows) {
#if defined(__AVX512F__)
  merge_quarters(rows, 4);
  merge_quarters(rows, 8);
#elif defined(__AVX2__)
  merge_quarters(rows, 4);
#else
  static_cast<void>(rows);
#endif
}

inline void transpose(Vec* rows) {
#pragma GCC unroll 4
  for (int i = 0; i < kLanes; i += 4) transpose_quarters(rows + i);
  gather_quarters(rows);
}

// Elements k .. k + kLanes - 1 of the first `width` rows (zero beyond width and depth), transposed.
template <class Source>
inline void load_transposed(const typename Source::Element* data, std::int64_t stride, int width,
                            std::int64_t left, Vec* block) {
  if (width >= kLanes && left >= kLanes) {
#pragma GCC unroll 16
    for (int p = 0; p < kLanes; ++p) block[p] = Source::widen(data + p * stride);
  } else if (left >= kLanes) {
#pragma GCC unroll 16
    for (int p = 0; p < kLanes; ++p) {
      block[p] = p < width ? Source::widen(data + p * stride) : Vec{};
    }
  } else {
    for (int p = 0; p < kLanes; ++p) {
      block[p] = p < width ? widen_part<Source>(data + p * stride, left) : Vec{};
    }
  }
  transpose(block);
}

inline void put(float* to, Vec value, int columns, bool add) {
  if (columns >= kLanes) {
    store(to, add ? load(to) + value : value);
  } else if (columns > 0) {
    store_part(to, add ? load_part(to, columns) + value : value, columns);
  }
}

}  // namespace

// gemm_stream.cpp
extern const int kStreamRows;
void stream(std::int64_t depth, int rows, const float* a, const void* b, Storage storage,
            std::int64_t b_stride, std::int64_t columns, float* c, std::int64_t c_stride, bool add);

}  // namespace rankone::nn::RANKONE_ISA
