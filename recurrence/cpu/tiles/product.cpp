// Products of tiles.

#include "recurrence/cpu/tiles/declarations.hpp"
#include "recurrence/cpu/tiles/layout.hpp"

namespace rankone::recurrence::cpu::RANKONE_ISA {
namespace {

constexpr int kBlockSteps = 8;  // of fetch(), in the time of a block

// A block of 2 x 2 tiles of the result in registers 0 to 3, two tiles of a in 4 and 5, of b in 6
// and 7.
struct Block {
  TileRegisters t;
  Index a_next, b_next;  // from a tile to the one in the next 16 rows, columns

  void load_a(const Word* a) {
    t.load<4>(a, 64);
    t.load<5>(a + a_next, 64);
  }
  void load_b(const Word* b) {
    t.load<6>(b, 64);
    t.load<7>(b + b_next, 64);
  }
  void multiply_add() {
    t.multiply_add<0, 4, 6>();
    t.multiply_add<1, 4, 7>();
    t.multiply_add<2, 5, 6>();
    t.multiply_add<3, 5, 7>();
  }
};

// The pairs of parts of one step along the sum, small ones first where that costs no loads.
// between() stands behind the first loads.
template <int kParts, class Between>
inline void step(Block& block, const Word* a, Index a_part, const Word* b, Index b_part,
                 Between&& between) {
  block.load_a(a + (kParts - 1) * a_part);
  block.load_b(b);
  between();
  block.multiply_add();
  if constexpr (kParts == 3) {
    block.load_a(a + a_part);
    block.multiply_add();
    block.load_b(b + b_part);
    block.multiply_add();
    block.load_a(a);
    block.multiply_add();
    block.load_b(b + 2 * b_part);
    block.multiply_add();
    block.load_b(b);
    block.multiply_add();
  } else if constexpr (kParts == 2) {
    block.load_a(a);
    block.multiply_add();
    block.load_b(b + b_part);
    block.multiply_add();
  }
}

inline void store_block(Block& block, float* c, Index row) {
  float* below = c + row / static_cast<Index>(sizeof(float)) * kTileRows;
  block.t.store<0>(c, row);
  block.t.store<1>(c + kTileRows, row);
  block.t.store<2>(below, row);
  block.t.store<3>(below + kTileRows, row);
}

inline void start_block(Block& block, const float* c, Index row, Into into) {
  if (into == Into::overwrite) {
    block.t.zero<0>();
    block.t.zero<1>();
    block.t.zero<2>();
    block.t.zero<3>();
    return;
  }
  const float* below = c + row / static_cast<Index>(sizeof(float)) * kTileRows;
  block.t.load<0>(c, row);
  block.t.load<1>(c + kTileRows, row);
  block.t.load<2>(below, row);
  block.t.load<3>(below + kTileRows, row);
}

constexpr int kBlockSide = 2 * kTileRows;

// A block of a result, its sum in memory of its own.
struct Sum {
  alignas(64) float values[kBlockSide * kBlockSide];
  float* c = nullptr;
  const float* from;
  const float* scale;
  bool scale_sum;
};

template <bool kStream>
inline void finish_block(const Sum& sum, Index c_row, Index from_row) {
  if (sum.c == nullptr) return;
  for (int r = 0; r < kBlockSide; ++r) {
    for (int n = 0; n < kBlockSide; n += 16) {
      Line value = load_line(sum.values + r * kBlockSide + n);
      if (sum.scale_sum) value = scaled(sum.scale[r], value);
      const Line old = load_line(sum.from + r * from_row + n);
      value = plus_scaled(value, sum.scale == nullptr ? 1.0F : sum.scale[r], old);
      if constexpr (kStream) {
        stream_line(sum.c + r * c_row + n, value);
      } else {
        store_line(sum.c + r * c_row + n, value);
      }
    }
  }
}

inline void finish(const Sum& sum, const TileProduct& p) {
  p.stream ? finish_block<true>(sum, p.c_row, p.from_row)
           : finish_block<false>(sum, p.c_row, p.from_row);
}

template <int kParts>
void product_of(const TileProduct& p) {
  using Shape = TileProduct::Shape;
  // Sums that join old values go to memory of their own first; the old values of a block join
  // while the next one is multiplied.
  const bool joins = p.from != nullptr;
  const Index row = (joins ? kBlockSide : p.c_row) * static_cast<Index>(sizeof(float));
  Sum sums[2];
  int current = 0;
  Block block;
  block.a_next = static_cast<Index>(p.a.inner) * kTileHalves;
  block.b_next = static_cast<Index>(p.b.inner) * kTileHalves;
  const Index a_part = p.a.part_size();
  const Index b_part = p.b.part_size();
  // A block is stored behind the first loads of the next one: stores drain slowly, and a load waits
  // for those that share the low bits of its address. One part multiplies too little to cover that.
  constexpr bool kLate = kParts > 1;
  float* before = nullptr;
  // Columns outside: two columns of tiles of b stay in the first cache for all rows.
  for (int n = 0; n < p.b.outer; n += 2) {
    const Word* b = p.b.data + n * block.b_next;
    for (int m = p.shape == Shape::lower_result ? n : 0; m < p.a.outer; m += 2) {
      const Word* a = p.a.data + m * block.a_next;
      fetch(p.ahead, kBlockSteps);
      float* c = p.c + m * kTileRows * p.c_row + n * kTileRows;
      // Early stores that miss the first cache would hold up the loads of the next block.
      for (int r = 0; r < 2 * kTileRows && !kLate && !p.stream; ++r) {
        __builtin_prefetch(c + r * p.c_row, 1, 3);
        __builtin_prefetch(c + r * p.c_row + kTileRows, 1, 3);
      }
      if (joins) {
        current ^= 1;
        sums[current].c = c;
        sums[current].from = p.from + m * kTileRows * p.from_row + n * kTileRows;
        sums[current].scale = p.scale == nullptr ? nullptr : p.scale + m * kTileRows;
        sums[current].scale_sum = p.scale_sum && p.scale != nullptr;
        c = sums[current].values;
      }
      int k = p.shape == Shape::upper_left ? m / 2 : 0;
      const int end = p.shape == Shape::lower_left ? m / 2 + 1 : p.a.inner;
      step<kParts>(block, a + k * kTileHalves, a_part, b + k * kTileHalves, b_part, [&] {
        if (before != nullptr) store_block(block, before, row);
        start_block(block, c, row, p.into);
      });
      for (++k; k < end; ++k) {
        step<kParts>(block, a + k * kTileHalves, a_part, b + k * kTileHalves, b_part, [] {});
      }
      if constexpr (kLate) {
        before = c;
      } else {
        store_block(block, c, row);
      }
      if (joins) finish(sums[current ^ 1], p);
    }
  }
  if (before != nullptr) store_block(block, before, row);
  if (joins) finish(sums[current], p);
}

void product(const TileProduct& p) {
  const int parts = p.a.parts < p.b.parts ? p.a.parts : p.b.parts;
  if (parts == 1) {
    product_of<1>(p);
  } else if (parts == 2) {
    product_of<2>(p);
  } else {
    product_of<3>(p);
  }
}

}  // namespace

const TileKernels kTileKernels = {
    .begin = tiles_begin,
    .end = tiles_end,
    .pack_rows = pack_rows,
    .pack_pairs = pack_pairs,
    .transpose = transpose_tiles,
    .rows_to_pairs = rows_to_pairs,
    .pairs_to_rows = pairs_to_rows,
    .product = product,
    .scalar_decay = scalar_decay,
    .channel_decay = channel_decay,
    .lower = lower,
    .residual = residual,
    .row_dots = row_dots,
    .crossing = crossing,
    .finite_rows = finite_rows,
};

}  // namespace rankone::recurrence::cpu::RANKONE_ISA
