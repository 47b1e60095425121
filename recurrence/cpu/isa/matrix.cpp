// Dense products.

#include "recurrence/cpu/isa/tile.hpp"

namespace rankone::recurrence::cpu::RANKONE_ISA {
namespace {

template <int R, int N>
RANKONE_INLINE void product_tile(const Product& p, int row, int column, Index a_row,
                                 Index a_column) {
  Vec tile[R][N] = {};
  multiply_tile(tile, p.a + row * a_row, a_row, a_column, p.b + column, p.b_row, p.inner);
  float* out = p.out + row * p.out_row + column;
  if (p.into == Into::add) {
    // The old value joins last: added first, it would cost its rounding in every term of the sum.
    for (int r = 0; r < R; ++r) {
      const Vec scale = splat(p.scale == nullptr ? 1.0F : p.scale[row + r]);
      for (int n = 0; n < N; ++n) tile[r][n] += scale * load(out + r * p.out_row + n * kLanes);
    }
  }
  store_tile(tile, out, p.out_row);
}

template <bool kRowMajor>
void product_of(const Product& p) {
  // One of the strides is the constant 1, which the address arithmetic of the inner loop can use.
  const Index a_row = kRowMajor ? p.a_row : 1;
  const Index a_column = kRowMajor ? 1 : p.a_column;
  column_panels(p.columns, [&](auto vectors, int column) {
    rows_up(p.rows, [&](auto rows, int row) {
      product_tile<decltype(rows)::kValue, decltype(vectors)::kValue>(p, row, column, a_row,
                                                                      a_column);
    });
  });
}

}  // namespace

void product(const Product& p) {
  if (p.a_column == 1) {
    product_of<true>(p);
  } else {
    product_of<false>(p);
  }
}

void lower_inner(const Product& p) {
  column_panels(p.columns, [&](auto vectors, int column) {
    rows_up(p.rows, [&](auto rows, int row) {
      constexpr int kTile = decltype(rows)::kValue;
      if (row + kTile <= column) return;  // wholly above the diagonal
      product_tile<kTile, decltype(vectors)::kValue>(p, row, column, p.a_row, 1);
    });
  });
}

}  // namespace rankone::recurrence::cpu::RANKONE_ISA
