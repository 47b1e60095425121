#pragma once

// A tile of R rows and N vectors held in registers, and the loops that cover a matrix with tiles.

#include "recurrence/cpu/isa/declarations.hpp"
#include "recurrence/cpu/isa/narrow.hpp"

namespace rankone::recurrence::cpu::RANKONE_ISA {

#if defined(__AVX512F__)
inline constexpr int kRows = 8;  // 32 registers: 16 sums, and room for the operands
#else
inline constexpr int kRows = 4;
#endif
inline constexpr int kVectors = 2;

#define RANKONE_INLINE inline __attribute__((always_inline))

template <int value>
struct Int {
  static constexpr int kValue = value;
};

// Access to a vector in memory, and to its first lanes.
struct Whole {
  template <class Number>
  Vec get(const Number* from) const {
    return load(from);
  }
  template <class Number>
  void put(Number* to, Vec value) const {
    store(to, value);
  }
};

struct WholeByHardware : Whole {
  using Whole::put;
  void put(std::uint16_t* to, Vec value) const { store_by_hardware(to, value); }
};

struct Part {
  int count;
  template <class Number>
  Vec get(const Number* from) const {
    return load_part(from, count);
  }
  template <class Number>
  void put(Number* to, Vec value) const {
    store_part(to, value, count);
  }
};

template <int R, int N>
RANKONE_INLINE void load_tile(Vec (&tile)[R][N], const float* from, Index row) {
  for (int r = 0; r < R; ++r) {
    for (int n = 0; n < N; ++n) tile[r][n] = load(from + r * row + n * kLanes);
  }
}

template <int R, int N>
RANKONE_INLINE void store_tile(const Vec (&tile)[R][N], float* to, Index row) {
  for (int r = 0; r < R; ++r) {
    for (int n = 0; n < N; ++n) store(to + r * row + n * kLanes, tile[r][n]);
  }
}

// tile(r, :) += sum_k a(r, k) b(k, :)
template <int R, int N>
RANKONE_INLINE void multiply_tile(Vec (&tile)[R][N], const float* a, Index a_row, Index a_column,
                                  const float* b, Index b_row, int inner) {
  for (int k = 0; k < inner; ++k) {
    Vec right[N];
    for (int n = 0; n < N; ++n) right[n] = load(b + n * kLanes);
    for (int r = 0; r < R; ++r) {
      const Vec left = splat(a[r * a_row]);
      for (int n = 0; n < N; ++n) tile[r][n] += left * right[n];
    }
    a += a_column;
    b += b_row;
  }
}

// tile(r, :) += factor * a row in memory, or another row of the tile.
template <int R, int N>
RANKONE_INLINE void add_row(Vec (&tile)[R][N], int r, float factor, const float* row) {
  const Vec left = splat(factor);
  for (int n = 0; n < N; ++n) tile[r][n] += left * load(row + n * kLanes);
}

template <int R, int N>
RANKONE_INLINE void add_row(Vec (&tile)[R][N], int r, float factor, int other) {
  const Vec left = splat(factor);
  for (int n = 0; n < N; ++n) tile[r][n] += left * tile[other][n];
}

// Calls tile(Int<R>, first) for row tiles from the first row to the last: full ones, then 4, 2, 1.
template <class F>
RANKONE_INLINE void rows_up(int rows, F&& tile) {
  int first = 0;
  for (; first + kRows <= rows; first += kRows) tile(Int<kRows>{}, first);
  if constexpr (kRows > 4) {
    if ((rows & 4) != 0) {
      tile(Int<4>{}, first);
      first += 4;
    }
  }
  if ((rows & 2) != 0) {
    tile(Int<2>{}, first);
    first += 2;
  }
  if ((rows & 1) != 0) tile(Int<1>{}, first);
}

// The same tiles from the last to the first.
template <class F>
RANKONE_INLINE void rows_down(int rows, F&& tile) {
  int end = rows;
  if ((rows & 1) != 0) tile(Int<1>{}, end -= 1);
  if ((rows & 2) != 0) tile(Int<2>{}, end -= 2);
  if constexpr (kRows > 4) {
    if ((rows & 4) != 0) tile(Int<4>{}, end -= 4);
  }
  while (end > 0) tile(Int<kRows>{}, end -= kRows);
}

// Calls panel(Int<N>, first) for column panels that cover `columns` up to the next multiple of
// kLine.
template <class F>
RANKONE_INLINE void column_panels(int columns, F&& panel) {
  constexpr int kWide = kVectors * kLanes;
  const int covered = (columns + kLine - 1) / kLine * kLine;
  int first = 0;
  for (; first + kWide <= covered; first += kWide) panel(Int<kVectors>{}, first);
  if (first < covered) panel(Int<1>{}, first);  // only where a vector is a whole line
}

}  // namespace rankone::recurrence::cpu::RANKONE_ISA
