#pragma once

// Sixteen floats at a time, and the orders of 16-bit words in tiles. With AVX-512 in registers,
// else in plain loops that give the same bits.

#include "core/tiles.hpp"
#include "recurrence/cpu/tiles.hpp"

#if defined(__AVX512BF16__)
// Some functions of GCC 12 start from a register whose contents do not matter, and it warns of
// that.
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#else
#include <cstring>
#endif

namespace rankone::recurrence::cpu::RANKONE_ISA {

using Word = std::uint16_t;

#if defined(__AVX512BF16__)

using Line = __m512;

inline Line zero_line() { return _mm512_setzero_ps(); }
inline Line load_line(const float* from) { return _mm512_loadu_ps(from); }
// The first `count` of 16 (0 to 16), the rest zero; nothing behind them is read.
inline Line load_line(const float* from, int count) {
  if (count >= 16) return load_line(from);
  return _mm512_maskz_loadu_ps(static_cast<__mmask16>((1U << count) - 1U), from);
}
inline void store_line(float* to, Line value) { _mm512_storeu_ps(to, value); }
// Past the caches, to whole lines (stream_end()).
inline void stream_line(float* to, Line value) { _mm512_stream_ps(to, value); }
inline Line scaled(float factor, Line value) { return _mm512_set1_ps(factor) * value; }
inline Line times(Line a, Line b) { return a * b; }
inline Line plus(Line a, Line b) { return a + b; }
// The first `count` of 16 (or fewer than one: none), zero for the rest, whatever is there.
inline Line first_of(Line value, int count) {
  if (count >= 16) return value;
  if (count <= 0) return _mm512_setzero_ps();
  return _mm512_maskz_mov_ps(static_cast<__mmask16>((1U << count) - 1U), value);
}
// a + factor * b, a - factor * b
inline Line plus_scaled(Line a, float factor, Line b) {
  return _mm512_fmadd_ps(_mm512_set1_ps(factor), b, a);
}
inline Line minus_scaled(Line a, float factor, Line b) {
  return _mm512_fnmadd_ps(_mm512_set1_ps(factor), b, a);
}

// One part of 32 numbers, side by side or in pairs of one from each line; leaves the rest of them.
// Rounds to the nearest, ties to even; a NaN stays one.
inline void take_row(Word* to, Line& low, Line& high) {
  const __m512i words = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
  _mm512_storeu_si512(to, words);
  const __m512i first = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(words));
  const __m512i second = _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(words, 1));
  low -= _mm512_castsi512_ps(_mm512_slli_epi32(first, 16));
  high -= _mm512_castsi512_ps(_mm512_slli_epi32(second, 16));
}
inline void take_pairs(Word* to, Line& first, Line& second) {
  const __m512i lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  const __m512i order = _mm512_or_si512(_mm512_slli_epi32(lanes, 16),
                                        _mm512_add_epi32(lanes, _mm512_set1_epi32(16 << 16)));
  const __m512i words = _mm512_permutexvar_epi16(
      order, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(second, first)));
  _mm512_storeu_si512(to, words);
  first -= _mm512_castsi512_ps(_mm512_slli_epi32(words, 16));
  second -= _mm512_castsi512_ps(_mm512_and_si512(words, _mm512_set1_epi32(-0x10000)));
}

// out[r] word c = in[c] word r, in words of 32 bits.
inline void transpose_tile(Word* to, const Word* from) {
  __m512i a[16];
  __m512i b[16];
  for (int i = 0; i < 16; ++i) a[i] = _mm512_loadu_si512(from + i * kTileInner);
  for (int i = 0; i < 16; i += 2) {
    b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
    b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
  }
  // Lane l of a[4 i + c] is now column 4 l + c of rows 4 i to 4 i + 3.
  for (int i = 0; i < 16; i += 4) {
    a[i] = _mm512_unpacklo_epi64(b[i], b[i + 2]);
    a[i + 1] = _mm512_unpackhi_epi64(b[i], b[i + 2]);
    a[i + 2] = _mm512_unpacklo_epi64(b[i + 1], b[i + 3]);
    a[i + 3] = _mm512_unpackhi_epi64(b[i + 1], b[i + 3]);
  }
  // The 4 x 4 lanes are transposed.
  for (int c = 0; c < 4; ++c) {
    const __m512i low01 = _mm512_shuffle_i32x4(a[c], a[4 + c], 0x88);  // lanes 0, 2
    const __m512i odd01 = _mm512_shuffle_i32x4(a[c], a[4 + c], 0xdd);  // lanes 1, 3
    const __m512i low23 = _mm512_shuffle_i32x4(a[8 + c], a[12 + c], 0x88);
    const __m512i odd23 = _mm512_shuffle_i32x4(a[8 + c], a[12 + c], 0xdd);
    _mm512_storeu_si512(to + c * kTileInner, _mm512_shuffle_i32x4(low01, low23, 0x88));
    _mm512_storeu_si512(to + (4 + c) * kTileInner, _mm512_shuffle_i32x4(odd01, odd23, 0x88));
    _mm512_storeu_si512(to + (8 + c) * kTileInner, _mm512_shuffle_i32x4(low01, low23, 0xdd));
    _mm512_storeu_si512(to + (12 + c) * kTileInner, _mm512_shuffle_i32x4(odd01, odd23, 0xdd));
  }
}

// Two rows of 32 words to two rows of pairs: word i of the first row beside word i of the second,
// the first 16 of them and the last.
inline void zip_rows(Word* low, Word* high, const Word* first, const Word* second) {
  const __m512i a = _mm512_loadu_si512(first);
  const __m512i b = _mm512_loadu_si512(second);
  const __m512i order = _mm512_or_si512(
      _mm512_set1_epi32(32 << 16),
      _mm512_mullo_epi32(_mm512_set1_epi32(0x10001),
                         _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0)));
  _mm512_storeu_si512(low, _mm512_permutex2var_epi16(a, order, b));
  _mm512_storeu_si512(
      high, _mm512_permutex2var_epi16(a, _mm512_add_epi16(order, _mm512_set1_epi16(16)), b));
}

// And back: the even words of both rows, then the odd ones.
inline void unzip_rows(Word* even, Word* odd, const Word* first, const Word* second) {
  const __m512i a = _mm512_loadu_si512(first);
  const __m512i b = _mm512_loadu_si512(second);
  const __m512i low = _mm512_set1_epi32(0xffff);
  const __m512i order = _mm512_set_epi64(7, 5, 3, 1, 6, 4, 2, 0);
  // Packing takes 128 bits of each in turn, the permutation puts them in order.
  const __m512i evens = _mm512_packus_epi32(_mm512_and_si512(a, low), _mm512_and_si512(b, low));
  const __m512i odds = _mm512_packus_epi32(_mm512_srli_epi32(a, 16), _mm512_srli_epi32(b, 16));
  _mm512_storeu_si512(even, _mm512_permutexvar_epi64(order, evens));
  _mm512_storeu_si512(odd, _mm512_permutexvar_epi64(order, odds));
}

#else

struct Line {
  float x[16];
};

inline Line zero_line() { return {}; }
inline Line load_line(const float* from, int count) {
  Line line{};
  for (int i = 0; i < 16 && i < count; ++i) line.x[i] = from[i];
  return line;
}
inline Line load_line(const float* from) { return load_line(from, 16); }
inline void store_line(float* to, const Line& value) {
  for (int i = 0; i < 16; ++i) to[i] = value.x[i];
}
inline void stream_line(float* to, const Line& value) { store_line(to, value); }
inline Line scaled(float factor, Line value) {
  for (float& x : value.x) x *= factor;
  return value;
}
inline Line times(Line a, const Line& b) {
  for (int i = 0; i < 16; ++i) a.x[i] *= b.x[i];
  return a;
}
inline Line plus(Line a, const Line& b) {
  for (int i = 0; i < 16; ++i) a.x[i] += b.x[i];
  return a;
}
inline Line first_of(Line value, int count) {
  for (int i = count > 0 ? count : 0; i < 16; ++i) value.x[i] = 0;
  return value;
}
inline Line plus_scaled(Line a, float factor, const Line& b) {
  for (int i = 0; i < 16; ++i) a.x[i] += factor * b.x[i];
  return a;
}
inline Line minus_scaled(Line a, float factor, const Line& b) {
  for (int i = 0; i < 16; ++i) a.x[i] -= factor * b.x[i];
  return a;
}

// Rounds to bf16 and takes that from the value.
inline Word take(float& value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  if (value == value) bits += 0x7fffU + ((bits >> 16) & 1U);
  bits &= 0xffff0000U;
  float part;
  std::memcpy(&part, &bits, sizeof part);
  value -= part;
  return static_cast<Word>(bits >> 16);
}
inline void take_row(Word* to, Line& low, Line& high) {
  for (int i = 0; i < 16; ++i) {
    to[i] = take(low.x[i]);
    to[16 + i] = take(high.x[i]);
  }
}
inline void take_pairs(Word* to, Line& first, Line& second) {
  for (int i = 0; i < 16; ++i) {
    to[2 * i] = take(first.x[i]);
    to[2 * i + 1] = take(second.x[i]);
  }
}
inline void transpose_tile(Word* to, const Word* from) {
  for (int r = 0; r < 16; ++r) {
    for (int c = 0; c < 16; ++c) {
      to[c * kTileInner + 2 * r] = from[r * kTileInner + 2 * c];
      to[c * kTileInner + 2 * r + 1] = from[r * kTileInner + 2 * c + 1];
    }
  }
}
inline void zip_rows(Word* low, Word* high, const Word* first, const Word* second) {
  for (int i = 0; i < 16; ++i) {
    low[2 * i] = first[i];
    low[2 * i + 1] = second[i];
    high[2 * i] = first[16 + i];
    high[2 * i + 1] = second[16 + i];
  }
}
inline void unzip_rows(Word* even, Word* odd, const Word* first, const Word* second) {
  for (int i = 0; i < 16; ++i) {
    even[i] = first[2 * i];
    even[16 + i] = second[2 * i];
    odd[i] = first[2 * i + 1];
    odd[16 + i] = second[2 * i + 1];
  }
}

#endif

inline float total(const Line& line) {
  float values[16];
  store_line(values, line);
  float sum = 0.0F;
  for (const float value : values) sum += value;
  return sum;
}

}  // namespace rankone::recurrence::cpu::RANKONE_ISA
