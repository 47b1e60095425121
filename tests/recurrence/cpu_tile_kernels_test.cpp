// Kernels beside the products of tiles: sums, decays and joins of products, in every
// implementation that this machine can run.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "core/isa.hpp"
#include "recurrence/cpu/tiles.hpp"
#include "tests/cases/compare.hpp"
#include "tests/cases/tensors.hpp"
#include "tests/recurrence/tile_units.hpp"

namespace rankone::test {
namespace {

using recurrence::cpu::TileKernels;
using recurrence::cpu::TilePack;
using recurrence::cpu::TileProduct;

TEST(CpuTileSums, DotsOfRows) {
  Random random(21);
  const Tensor left = normal({70, 130}, random), right = normal({70, 140}, random);
  for (const Unit& unit : units()) {
    const TileKernels* const k = unit.kernels;
    for (const int rows : {1, 16, 37, 64}) {
      for (const int columns : {1, 31, 128}) {
        std::vector<float> out(static_cast<std::size_t>(rows) + 1, 7.0F);
        k->row_dots({out.data(), left.data<float>(), 130, right.data<float>(), 140, rows, columns});
        for (int i = 0; i < rows; ++i) {
          double sum = 0, size = 0;
          for (int c = 0; c < columns; ++c) {
            const double term = static_cast<double>(left.data<float>()[i * 130 + c]) *
                                right.data<float>()[i * 140 + c];
            sum += term;
            size += std::abs(term);
          }
          ASSERT_NEAR(out[i], sum, 1e-6 * size) << rows << " x " << columns << ", row " << i;
        }
        EXPECT_EQ(out[rows], 7.0F);
      }
    }
  }
}

// What stands above the diagonal may be anything.
TEST(CpuTileSums, CrossingPairs) {
  Random random(22);
  constexpr int kRow = 80;
  for (const int n : {1, 33, 64}) {
    Tensor squares = normal({4, 64, kRow}, random);
    const auto at = [&](int which) { return squares.data<float>() + which * 64 * kRow; };
    for (int i = 0; i < n; ++i) {
      for (int j = i; j < kRow; ++j) at(1)[i * kRow + j] = at(3)[i * kRow + j] = NAN;
    }
    for (const Unit& unit : units()) {
      const TileKernels* const k = unit.kernels;
      for (const bool reads : {false, true}) {
        std::vector<float> inside(static_cast<std::size_t>(n));
        k->crossing({at(0), at(1), reads ? at(2) : nullptr, at(3), kRow, n, inside.data()});
        for (int t = 0; t < n; ++t) {
          double sum = 0, size = 0;
          for (int i = t; i < n; ++i) {
            for (int j = 0; j < t; ++j) {
              const int place = i * kRow + j;
              double term = static_cast<double>(at(0)[place]) * at(1)[place];
              if (reads) term += static_cast<double>(at(2)[place]) * at(3)[place];
              sum += term;
              size += std::abs(term);
            }
          }
          ASSERT_NEAR(inside[t], sum, 2e-6 * size) << n << " rows, t = " << t;
        }
      }
    }
  }
}

TEST(CpuTileDecays, BothWays) {
  Random random(23);
  constexpr int kChannels = 75, kRow = 80;
  Tensor gates = filled({64, kChannels}, [&] { return -random.uniform(0, 1.5); });
  std::vector<float> from_start(64 * kRow), back(64 * kRow);
  for (const Unit& unit : units()) {
    const TileKernels* const k = unit.kernels;
    const auto mild = [&] {
      return k->channel_decay(
          {gates.data<float>(), kChannels, 64, kChannels, kRow, from_start.data(), back.data()});
    };
    ASSERT_TRUE(mild());
    for (int c = 0; c < kChannels; ++c) {
      float sum = 0;
      for (int i = 0; i < 64; ++i) {
        sum += gates.data<float>()[i * kChannels + c];
        const double decay = std::exp(static_cast<double>(sum));
        ASSERT_NEAR(from_start[i * kRow + c], decay, 3e-7 * decay);
        ASSERT_NEAR(back[i * kRow + c], 1 / decay, 3e-7 / decay);
      }
    }
    // Too much for one channel, growth, and no number.
    for (const float wrong : {-60.0F, -1e30F, 0.5F, 1e30F, INFINITY, NAN}) {
      float& gate = gates.data<float>()[40 * kChannels + 70];
      const float right = gate;
      gate = wrong;
      EXPECT_FALSE(mild()) << wrong;
      gate = right;
    }
  }
}

// What joins a product has the bits of a product that stands alone, rounded once with it.
TEST(CpuTileProducts, OldValuesJoin) {
  Random random(24);
  const Tensor left = normal({64, 64}, random), right = normal({64, 96}, random);
  const Tensor old = normal({64, 100}, random);
  const Tensor scale = normal({64}, random);
  for (const Unit& unit : units()) {
    const TileKernels* const k = unit.kernels;
    Tiles a(4, 2, 2), b(6, 2, 2);
    k->pack_rows({a.matrix, left.data<float>(), 64, 64, 64});
    k->pack_pairs({b.matrix, right.data<float>(), 96, 64, 96});
    for (int which = 0; which < 3; ++which) {
      const float* by = which == 0 ? nullptr : scale.data<float>();
      const float* sum_by = which < 2 ? nullptr : by;
      const Tensor alone = filled({64, 96}, [] { return 0.0; });
      const Tensor joined = old.clone();
      TileProduct product{.a = a.matrix, .b = b.matrix, .c = alone.data<float>(), .c_row = 96};
      k->begin();
      k->product(product);
      product.c = joined.data<float>();
      product.from = joined.data<float>();
      product.c_row = product.from_row = 100;
      product.scale = by;
      product.scale_sum = sum_by != nullptr;
      k->product(product);
      k->end();
      for (int m = 0; m < 64; ++m) {
        for (int n = 0; n < 100; ++n) {
          const float before = old.data<float>()[m * 100 + n];
          if (n >= 96) {
            ASSERT_EQ(joined.data<float>()[m * 100 + n], before);
            continue;
          }
          const double sum = alone.data<float>()[m * 96 + n];
          const double part = by == nullptr ? before : static_cast<double>(by[m]) * before;
          const double whole = part + (sum_by == nullptr ? sum : sum_by[m] * sum);
          ASSERT_NEAR(joined.data<float>()[m * 100 + n], whole,
                      2e-7 * (std::abs(part) + std::abs(whole - part)))
              << which << ", " << m << ", " << n;
        }
      }
    }
  }
}

}  // namespace
}  // namespace rankone::test
