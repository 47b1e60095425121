#pragma once

// The registers of a tile unit, for the sources in cpu/tiles/ folders, which are compiled for AMX
// and for its emulation (rankone_tile_sources). Eight registers of 16 rows of 64 bytes. The same
// kernel source runs on both: what an instruction computes, rounding included, is the same.

#include "core/simd.hpp"

#if !defined(RANKONE_TILES_AMX)
#include <cstring>
#endif

namespace rankone::RANKONE_ISA {

inline constexpr int kTileRows = 16;
inline constexpr int kTileHalves = 32;  // bf16 in a row
inline constexpr int kTileSize = kTileRows * kTileHalves;

#if defined(RANKONE_TILES_AMX)

// The configuration: eight whole registers. Belongs to the thread from tiles_begin() to
// tiles_end(); released registers need not be saved when the system switches threads.
inline void tiles_begin() {
  struct alignas(64) {
    std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
    std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  } config;
  asm volatile("ldtilecfg %0" : : "m"(config));
}
inline void tiles_end() { asm volatile("tilerelease"); }

// In assembly, because the compilers' own functions say nothing of the memory they use.
struct TileRegisters {
  template <int kTile>
  void zero() {
    asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
  }
  // Rows are `row` bytes apart.
  template <int kTile>
  void load(const void* from, std::int64_t row) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(row), "i"(kTile) : "memory");
  }
  template <int kTile>
  void store(void* to, std::int64_t row) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(row), "i"(kTile) : "memory");
  }
  // c(m, n) += sum_k a(m, k) b(k, n) over 32 k; register b holds pairs of k beside each other:
  // row k / 2, then n, then k % 2.
  template <int kC, int kA, int kB>
  void multiply_add() {
    asm volatile("tdpbf16ps %%tmm%c0, %%tmm%c1, %%tmm%c2" : : "i"(kB), "i"(kA), "i"(kC));
  }
};

#else

inline void tiles_begin() {}
inline void tiles_end() {}

struct TileRegisters {
  template <int kTile>
  void zero() {
    std::memset(words[kTile], 0, sizeof words[kTile]);
  }
  template <int kTile>
  void load(const void* from, std::int64_t row) {
    const char* at = static_cast<const char*>(from);
    for (int r = 0; r < kTileRows; ++r) std::memcpy(words[kTile][r], at + r * row, 64);
  }
  template <int kTile>
  void store(void* to, std::int64_t row) {
    char* at = static_cast<char*>(to);
    for (int r = 0; r < kTileRows; ++r) std::memcpy(at + r * row, words[kTile][r], 64);
  }
  // The order of the additions is that of the instruction: the even and the odd k in sums of their
  // own, then their sum, then c. Denormal numbers count as zero, before and after.
  template <int kC, int kA, int kB>
  void multiply_add() {
    for (int m = 0; m < kTileRows; ++m) {
      for (int n = 0; n < kTileRows; n += kLanes) {
        Vec even{};
        Vec odd{};
        for (int k = 0; k < kTileRows; ++k) {
          const std::uint32_t a = words[kA][m][k];
          const IntVec b = vector_at(words[kB][k] + n);
          even = flushed(even + bf16_value(a << 16) * flushed(b << 16));
          odd = flushed(odd + bf16_value(a & 0xffff0000U) * flushed(b & kHigh));
        }
        float* c = reinterpret_cast<float*>(words[kC][m] + n);
        rankone::RANKONE_ISA::store(
            c, flushed(flushed(rankone::RANKONE_ISA::load(c)) + flushed(even + odd)));
      }
    }
  }

 private:
  static constexpr std::int32_t kHigh = -0x10000;
  static constexpr std::int32_t kExponent = 0x7f800000;

  static IntVec vector_at(const std::uint32_t* at) {
    return reinterpret_cast<IntVec>(rankone::RANKONE_ISA::load(reinterpret_cast<const float*>(at)));
  }
  static Vec flushed(IntVec bits) {
    const IntVec sign = bits & std::int32_t{-0x7fffffff - 1};
    const IntVec denormal = (bits & kExponent) == 0;
    return reinterpret_cast<Vec>((denormal & sign) | (~denormal & bits));
  }
  static Vec flushed(Vec value) { return flushed(reinterpret_cast<IntVec>(value)); }
  static Vec bf16_value(std::uint32_t bits) {
    if ((bits & static_cast<std::uint32_t>(kExponent)) == 0) bits &= 0x80000000U;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return splat(value);
  }

  alignas(64) std::uint32_t words[8][kTileRows][kTileRows];
};

#endif

}  // namespace rankone::RANKONE_ISA
