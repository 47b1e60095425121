// Products and solves with a lower triangle. In-tile parts run element by element of the triangle,
// so entries on the other side of the diagonal are never read and a row never sees a later one.

#include "recurrence/cpu/isa/tile.hpp"

namespace rankone::recurrence::cpu::RANKONE_ISA {
namespace {

template <class F>
RANKONE_INLINE void tiles_up(const Triangle& t, F&& tile) {
  column_panels(t.columns, [&](auto vectors, int column) {
    rows_up(t.n, [&](auto rows, int row) { tile(rows, vectors, row, column); });
  });
}

template <class F>
RANKONE_INLINE void tiles_down(const Triangle& t, F&& tile) {
  column_panels(t.columns, [&](auto vectors, int column) {
    rows_down(t.n, [&](auto rows, int row) { tile(rows, vectors, row, column); });
  });
}

}  // namespace

void add_lower(const Triangle& t) {
  tiles_up(t, [&](auto rows, auto vectors, int row, int column) {
    constexpr int R = decltype(rows)::kValue;
    Vec tile[R][decltype(vectors)::kValue];
    const float* lower = t.lower + row * t.lower_row;
    const float* x = t.x + column;
    load_tile(tile, t.out + row * t.out_row + column, t.out_row);
    multiply_tile(tile, lower, t.lower_row, 1, x, t.x_row, row);
    for (int r = 0; r < R; ++r) {
      for (int j = 0; j <= r; ++j) {
        add_row(tile, r, lower[r * t.lower_row + row + j], x + (row + j) * t.x_row);
      }
    }
    store_tile(tile, t.out + row * t.out_row + column, t.out_row);
  });
}

void add_lower_transposed(const Triangle& t) {
  tiles_down(t, [&](auto rows, auto vectors, int row, int column) {
    constexpr int R = decltype(rows)::kValue;
    Vec tile[R][decltype(vectors)::kValue];
    const float* lower = t.lower + row;  // column `row` of the triangle
    const float* x = t.x + column;
    load_tile(tile, t.out + row * t.out_row + column, t.out_row);
    for (int r = 0; r < R; ++r) {
      for (int i = r; i < R; ++i) {
        add_row(tile, r, lower[(row + i) * t.lower_row + r], x + (row + i) * t.x_row);
      }
    }
    const Index behind = row + R;
    multiply_tile(tile, lower + behind * t.lower_row, 1, t.lower_row, x + behind * t.x_row, t.x_row,
                  t.n - static_cast<int>(behind));
    store_tile(tile, t.out + row * t.out_row + column, t.out_row);
  });
}

void solve_lower(const Triangle& t) {
  tiles_up(t, [&](auto rows, auto vectors, int row, int column) {
    constexpr int R = decltype(rows)::kValue;
    Vec tile[R][decltype(vectors)::kValue];
    const float* lower = t.lower + row * t.lower_row;
    load_tile(tile, t.x + row * t.x_row + column, t.x_row);
    multiply_tile(tile, lower, t.lower_row, 1, t.out + column, t.out_row, row);
    for (int r = 1; r < R; ++r) {
      for (int j = 0; j < r; ++j) add_row(tile, r, lower[r * t.lower_row + row + j], j);
    }
    store_tile(tile, t.out + row * t.out_row + column, t.out_row);
  });
}

void solve_lower_transposed(const Triangle& t) {
  tiles_down(t, [&](auto rows, auto vectors, int row, int column) {
    constexpr int R = decltype(rows)::kValue;
    Vec tile[R][decltype(vectors)::kValue];
    const float* lower = t.lower + row;
    const Index behind = row + R;
    load_tile(tile, t.x + row * t.x_row + column, t.x_row);
    multiply_tile(tile, lower + behind * t.lower_row, 1, t.lower_row,
                  t.out + behind * t.out_row + column, t.out_row, t.n - static_cast<int>(behind));
    for (int r = R - 2; r >= 0; --r) {
      for (int i = r + 1; i < R; ++i) add_row(tile, r, lower[(row + i) * t.lower_row + r], i);
    }
    store_tile(tile, t.out + row * t.out_row + column, t.out_row);
  });
}

void scale_lower(const LowerScale& l) {
  for (int i = 0; i < l.n; ++i) {
    const float* from = l.from + i * l.from_row;
    float* to = l.to + i * l.to_row;
    const float factor = l.row_factor == nullptr ? l.factor : l.factor * l.row_factor[i];
    const int end = l.diagonal ? i + 1 : i;
    if (l.between == nullptr) {
      for (int j = 0; j < end; ++j) to[j] = from[j] * factor;
    } else {
      const float* between = l.between + i * l.between_row;
      for (int j = 0; j < end; ++j) to[j] = from[j] * between[j] * factor;
    }
    for (int j = end; j < l.n; ++j) to[j] = 0.0F;
  }
}

}  // namespace rankone::recurrence::cpu::RANKONE_ISA
