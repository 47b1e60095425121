// The two-key recurrence on a tile unit: the tiles themselves, bit for bit, and errors against
// float64. What is skipped needs RANKONE_ISA=amx-emulated, or a machine with AMX.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "core/isa.hpp"
#include "recurrence/backend.hpp"
#include "recurrence/cpu/tiles.hpp"
#include "tests/cases/cases.hpp"
#include "tests/cases/compare.hpp"
#include "tests/cases/plain.hpp"
#include "tests/cases/tensors.hpp"
#include "tests/recurrence/tile_units.hpp"

namespace rankone::test {
namespace {

using recurrence::TwoKeyGrads;
using recurrence::TwoKeyOut;
using recurrence::cpu::Into;
using recurrence::cpu::TileKernels;
using recurrence::cpu::TileMatrix;
using Shape = recurrence::cpu::TileProduct::Shape;

bool same_words(const TileMatrix& a, const TileMatrix& b) {
  const std::size_t bytes = static_cast<std::size_t>(a.part_size()) * a.parts * 2;
  return std::memcmp(a.data, b.data, bytes) == 0;
}

constexpr int kRows = 60, kColumns = 41;

TEST(CpuTiles, PartsAddUp) {
  Random random(11);
  const Tensor matrix = normal({kRows, kColumns}, random);
  const Tensor factor = normal({kRows}, random);
  const float* from = matrix.data<float>();
  for (const Unit& unit : units()) {
    for (const int parts : {1, 2, 3}) {
      Tiles rows(4, 2, parts), pairs(4, 2, parts);
      unit.kernels->pack_rows({rows.matrix, from, kColumns, kRows, kColumns, factor.data<float>()});
      unit.kernels->pack_pairs(
          {pairs.matrix, from, kColumns, kRows, kColumns, factor.data<float>()});
      const double left = std::ldexp(1.0, -8 * parts);
      for (int i = 0; i < 64; ++i) {
        for (int j = 0; j < 64; ++j) {
          const bool inside = i < kRows && j < kColumns;
          const float value = inside ? from[i * kColumns + j] * factor.data<float>()[i] : 0.0F;
          double sum = 0;
          for (int p = 0; p < parts; ++p) {
            sum += rows.row_value(i, j, p);
            ASSERT_EQ(rows.row_value(i, j, p), pairs.pair_value(i, j, p)) << unit.name;
          }
          ASSERT_LE(std::abs(sum - value), left * std::abs(value)) << unit.name << parts;
        }
      }
    }
  }
}

TEST(CpuTiles, FormsOfAMatrix) {
  Random random(12);
  const Tensor matrix = normal({64, 96}, random);
  Tensor turned = Tensor::empty({96, 64}, Dtype::f32);
  for (int i = 0; i < 64; ++i) {
    for (int j = 0; j < 96; ++j)
      turned.data<float>()[j * 64 + i] = matrix.data<float>()[i * 96 + j];
  }
  for (const Unit& unit : units()) {
    const TileKernels& k = *unit.kernels;
    Tiles rows(4, 3, 2), pairs(6, 2, 2), turned_rows(6, 2, 2), turned_pairs(4, 3, 2);
    k.pack_rows({rows.matrix, matrix.data<float>(), 96, 64, 96});
    k.pack_pairs({pairs.matrix, matrix.data<float>(), 96, 64, 96});
    k.pack_rows({turned_rows.matrix, turned.data<float>(), 64, 96, 64});
    k.pack_pairs({turned_pairs.matrix, turned.data<float>(), 64, 96, 64});
    Tiles result(4, 3, 2), other(6, 2, 2);
    k.transpose(result.matrix, rows.matrix);
    EXPECT_TRUE(same_words(result.matrix, turned_pairs.matrix)) << unit.name;
    k.transpose(other.matrix, pairs.matrix);
    EXPECT_TRUE(same_words(other.matrix, turned_rows.matrix)) << unit.name;
    k.rows_to_pairs(other.matrix, rows.matrix);
    EXPECT_TRUE(same_words(other.matrix, pairs.matrix)) << unit.name;
    k.pairs_to_rows(result.matrix, pairs.matrix);
    EXPECT_TRUE(same_words(result.matrix, rows.matrix)) << unit.name;
  }
}

// One instruction's sum: even and odd terms apart, then together, then the old value.
float dot(const Tiles& a, int row, const Tiles& b, int column, int inner, float c) {
  for (int k = 0; k < inner; k += 32) {
    float even = 0, odd = 0;
    for (int i = k; i < k + 32; i += 2) {
      even = static_cast<float>(even + a.row_value(row, i, 0) * b.pair_value(i, column, 0));
      odd = static_cast<float>(odd + a.row_value(row, i + 1, 0) * b.pair_value(i + 1, column, 0));
    }
    c += even + odd;
  }
  return c;
}

// Every implementation computes the same bits, and they are those of the instruction's definition.
TEST(CpuTiles, ProductsHaveTheBitsOfTheInstruction) {
  Random random(13);
  const Tensor left = normal({64, 64}, random), right = normal({64, 32}, random);
  const Tensor old = normal({64, 32}, random);
  for (const Unit& unit : units()) {
    const TileKernels& k = *unit.kernels;
    Tiles a(4, 2, 1), b(2, 2, 1);
    k.pack_rows({a.matrix, left.data<float>(), 64, 64, 64});
    k.pack_pairs({b.matrix, right.data<float>(), 32, 64, 32});
    const Tensor c = old.clone();
    k.begin();
    k.product({a.matrix, b.matrix, c.data<float>(), 32, Into::add});
    k.end();
    for (int m = 0; m < 64; ++m) {
      for (int n = 0; n < 32; ++n) {
        const int at = m * 32 + n;
        ASSERT_EQ(c.data<float>()[at], dot(a, m, b, n, 64, old.data<float>()[at])) << unit.name;
      }
    }
  }
}

// Numbers close to the ends of the range: denormals are zero before and after, infinities stay.
TEST(CpuTiles, EndsOfTheRangeAgree) {
  Random random(14);
  const Tensor left =
      filled({32, 32}, [&] { return random.normal() * std::exp2(-random.uniform(0, 127)); });
  const Tensor right =
      filled({32, 32}, [&] { return random.normal() * std::exp2(-random.uniform(0, 127)); });
  left.data<float>()[5] = INFINITY;
  left.data<float>()[40] = NAN;
  const Tensor old = filled({32, 32}, [&] { return random.normal() * 1e-38; });
  const std::vector<Unit> list = units();
  Tensor first;
  for (const Unit& unit : list) {
    const TileKernels& k = *unit.kernels;
    Tiles a(2, 1, 1), b(2, 1, 1);
    k.pack_rows({a.matrix, left.data<float>(), 32, 32, 32});
    k.pack_pairs({b.matrix, right.data<float>(), 32, 32, 32});
    const Tensor c = old.clone();
    k.begin();
    k.product({a.matrix, b.matrix, c.data<float>(), 32, Into::add});
    k.end();
    for (float& x : c.span<float>()) {
      if (std::isnan(x)) x = NAN;
    }
    if (!first.defined()) first = c;
    EXPECT_TRUE(same_bits(unit.name, c, first));
  }
}

// A lower triangle as a left operand of three parts, and the sum of its squares.
TEST(CpuTiles, LowerHasItsPartsAndSquares) {
  Random random(16);
  const Tensor square = normal({64, 64}, random);
  for (const Unit& unit : units()) {
    for (const int n : {64, 37}) {
      Tiles tiles(4, 2, 3);
      float squares = 0;
      unit.kernels->lower({.from = square.data<float>(),
                           .from_row = 64,
                           .n = n,
                           .factor = 0.5F,
                           .tiles = tiles.matrix,
                           .squares = &squares});
      double expected = 0;
      for (int i = 0; i < 64; ++i) {
        if (i >= (n + 31) / 32 * 32) continue;
        for (int j = 0; j < (n + 31) / 32 * 32; ++j) {
          const float value = i < n && j < i ? 0.5F * square.data<float>()[i * 64 + j] : 0.0F;
          double sum = 0;
          for (int p = 0; p < 3; ++p) sum += tiles.row_value(i, j, p);
          ASSERT_EQ(sum, value) << unit.name << " " << i << " " << j;
          expected += static_cast<double>(value) * value;
        }
      }
      EXPECT_NEAR(squares, expected, 1e-5 * expected) << unit.name;
    }
  }
}

TEST(CpuTiles, AmxIsTestedWhereItIs) {
  if (tile_unit() != TileUnit::amx) {
    GTEST_SKIP() << "no AMX on this machine, or RANKONE_ISA is set: only the emulation is tested";
  }
}

// What a product may leave out changes nothing else; parts bring the error down.
TEST(CpuTiles, ShapesAndParts) {
  Random random(15);
  const Tensor left = normal({64, 64}, random), right = normal({64, 64}, random);
  for (int i = 0; i < 64; ++i) {
    for (int j = i + 1; j < 64; ++j) left.data<float>()[i * 64 + j] = 0;
  }
  for (const Unit& unit : units()) {
    const TileKernels& k = *unit.kernels;
    for (const int parts : {1, 2, 3}) {
      Tiles a(4, 2, parts), b(4, 2, parts), turned(4, 2, parts), pairs(4, 2, parts);
      k.pack_rows({a.matrix, left.data<float>(), 64, 64, 64});
      k.pack_pairs({b.matrix, right.data<float>(), 64, 64, 64});
      k.rows_to_pairs(pairs.matrix, a.matrix);
      k.transpose(turned.matrix, pairs.matrix);  // the transpose of `left`: an upper triangle
      const auto product = [&](const Tiles& x, const Tiles& y, Shape shape) {
        const Tensor c = Tensor::zeros({64, 64}, Dtype::f32);
        k.begin();
        k.product({x.matrix, y.matrix, c.data<float>(), 64, Into::overwrite, shape});
        k.end();
        return c;
      };
      const Tensor full = product(a, b, Shape::full);
      EXPECT_TRUE(same_bits(unit.name, product(a, b, Shape::lower_left), full));
      EXPECT_TRUE(same_bits(unit.name, product(turned, b, Shape::upper_left),
                            product(turned, b, Shape::full)));
      const Tensor lower = product(a, b, Shape::lower_result);
      double error = 0, size = 0;
      for (int i = 0; i < 64; ++i) {
        for (int j = 0; j < 64; ++j) {
          const int at = i * 64 + j;
          if (j <= i) {
            EXPECT_EQ(lower.data<float>()[at], full.data<float>()[at]);
          }
          double exact = 0;
          for (int n = 0; n < 64; ++n) {
            exact += static_cast<double>(left.data<float>()[i * 64 + n]) *
                     right.data<float>()[n * 64 + j];
          }
          error += std::pow(full.data<float>()[at] - exact, 2);
          size += exact * exact;
        }
      }
      const double bounds[] = {4e-3, 8e-6, 3e-7};
      EXPECT_LE(std::sqrt(error / size), bounds[parts - 1]) << unit.name << " parts " << parts;
    }
  }
}

// The recurrence, in both precisions.
class TileCases : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (tile_unit() == TileUnit::none) GTEST_SKIP() << "no tile unit (RANKONE_ISA=amx-emulated)";
  }
  void TearDown() override { print_repeat(); }

  const Inputs inputs_ = make_inputs(GetParam());
  const Inputs wide_ = widened(inputs_);
  Context reference_{{.threads = 1, .backends = {"reference"}}};
  Context high_{{.threads = 1, .precision = Precision::bf16x3, .backends = {"cpu"}}};
  Context low_{{.threads = 1, .precision = Precision::bf16, .backends = {"cpu"}}};

  static void check_high(const std::string& name, const Tensor& result, const Tensor& expected,
                         double bound) {
    if (!result.defined()) return;
    EXPECT_LE(relative_error(result, expected), bound) << name;
  }
  // The relative error of a handful of numbers is that of one of them, however close to zero.
  static bool few(const Tensor& tensor) { return tensor.count() < 128; }

  // bf16x3 by absolute bounds on the relative error: one where an inverse of gains and keys is
  // within reach of float32, and more where gains of 2 reflect every rounding over and over.
  double bound(bool gradient = false) const {
    const Case& c = GetParam();
    const bool alike =
        c.keys == Keys::identical || c.keys == Keys::squares || c.keys == Keys::rounded;
    if (alike && c.gains == Gains::two) return 2e-3;
    if (alike && c.gains == Gains::near_two) return 5e-4;
    if (c.gains == Gains::two) return 2e-4;
    return gradient ? 4e-5 : 2e-5;
  }
  // bf16 by the rule of the plain implementation of that format.
  void check_low(const std::string& name, const Tensor& result, const Tensor& plain,
                 const Tensor& expected) const {
    if (!result.defined() || few(result)) return;
    EXPECT_LE(relative_error(result, expected), 2 * relative_error(plain, expected) + 1e-6) << name;
  }
};

TEST_P(TileCases, Forward) {
  const TwoKeyOut expected = make_out(wide_);
  recurrence::two_key(reference_, wide_.sequences, wide_.two_key, expected);
  const TwoKeyOut plain = make_out(inputs_), out = make_out(inputs_);
  recurrence::two_key(high_, inputs_.sequences, inputs_.two_key, out);
  check_high("o", out.o, expected.o, bound());
  check_high("final_state", out.final_state, expected.final_state, bound());
  plain_two_key(Dtype::bf16, inputs_, plain);
  recurrence::two_key(low_, inputs_.sequences, inputs_.two_key, out);
  check_low("o", out.o, plain.o, expected.o);
  check_low("final_state", out.final_state, plain.final_state, expected.final_state);
}

TEST_P(TileCases, Backward) {
  const TwoKeyGrads expected = make_grads(wide_);
  recurrence::two_key_vjp(reference_, wide_.sequences, wide_.two_key, wide_.cotangents, expected);
  const TwoKeyGrads plain = make_grads(inputs_), grads = make_grads(inputs_);
  using Check =
      std::function<void(const std::string&, const Tensor&, const Tensor&, const Tensor&)>;
  const auto all = [&](const Check& check) {
    check("dq", grads.q, plain.q, expected.q);
    check("de", grads.e, plain.e, expected.e);
    check("dw", grads.w, plain.w, expected.w);
    check("dv", grads.v, plain.v, expected.v);
    check("dg", grads.g, plain.g, expected.g);
    check("db", grads.b, plain.b, expected.b);
    check("d initial_state", grads.initial_state, plain.initial_state, expected.initial_state);
  };
  recurrence::two_key_vjp(high_, inputs_.sequences, inputs_.two_key, inputs_.cotangents, grads);
  all([&](const std::string& name, const Tensor& result, const Tensor&, const Tensor& exact) {
    check_high(name, result, exact, bound(true));
  });
  plain_two_key_vjp(Dtype::bf16, inputs_, plain);
  recurrence::two_key_vjp(low_, inputs_.sequences, inputs_.two_key, inputs_.cotangents, grads);
  all([&](const std::string& name, const Tensor& result, const Tensor& theirs,
          const Tensor& exact) { check_low(name, result, theirs, exact); });
}

INSTANTIATE_TEST_SUITE_P(TwoKey, TileCases, testing::ValuesIn(cases()),
                         [](const auto& test) { return test.param.name; });

class TileBounds : public testing::Test {
 protected:
  void SetUp() override {
    if (tile_unit() == TileUnit::none) GTEST_SKIP() << "no tile unit (RANKONE_ISA=amx-emulated)";
  }
  // The worse of output and state, relative to float64.
  static double error_of(const Case& c) {
    const Inputs inputs = make_inputs(c), exact = widened(inputs);
    Context reference({.threads = 1, .backends = {"reference"}});
    Context cpu({.threads = 1, .precision = Precision::bf16x3, .backends = {"cpu"}});
    const TwoKeyOut expected = make_out(exact), out = make_out(inputs);
    recurrence::two_key(reference, exact.sequences, exact.two_key, expected);
    recurrence::two_key(cpu, inputs.sequences, inputs.two_key, out);
    return std::max(relative_error(out.o, expected.o),
                    relative_error(out.final_state, expected.final_state));
  }
};

// `auto` is bf16x3, but float32 under per-channel decay; what is asked for by name is done.
TEST_F(TileBounds, AutoIsTheFasterOne) {
  for (const GateShape gate : {GateShape::none, GateShape::scalar, GateShape::channel}) {
    Case c{.name = "auto", .gate = gate, .time = 130};
    const Inputs inputs = make_inputs(c);
    const auto run = [&](Precision precision) {
      Context context({.threads = 1, .precision = precision, .backends = {"cpu"}});
      const TwoKeyOut out = make_out(inputs);
      recurrence::two_key(context, inputs.sequences, inputs.two_key, out);
      const TwoKeyGrads grads = make_grads(inputs);
      recurrence::two_key_vjp(context, inputs.sequences, inputs.two_key, inputs.cotangents, grads);
      return std::pair(out.o, grads.w);
    };
    const bool channel = gate == GateShape::channel;
    const auto [o, dw] = run(Precision::automatic);
    const auto [expected_o, expected_dw] = run(channel ? Precision::f32 : Precision::bf16x3);
    EXPECT_TRUE(same_bits("o", o, expected_o));
    EXPECT_TRUE(same_bits("dw", dw, expected_dw));
    const auto [other_o, other_dw] = run(channel ? Precision::bf16x3 : Precision::f32);
    EXPECT_FALSE(same_bits("o", o, other_o));
    EXPECT_FALSE(same_bits("dw", dw, other_dw));
    Context automatic({.threads = 1, .backends = {"cpu"}});
    const std::string kernel = recurrence::cpu_kernel(automatic, c.time, channel);
    EXPECT_EQ(kernel.substr(kernel.rfind('-') + 1), channel ? "f32" : "bf16x3");
  }
}

// Without decay nothing is forgotten, so what is ill-conditioned shows.
TEST_F(TileBounds, OverFourThousandTokens) {
  struct Row {
    Keys keys;
    Gains gains;
    double bound;
  };
  for (const Row& row :
       {Row{Keys::unit, Gains::up_to_two, 2e-5}, Row{Keys::correlated, Gains::up_to_two, 2e-5},
        Row{Keys::unit, Gains::two, 2e-4}, Row{Keys::identical, Gains::uniform, 5e-4},
        Row{Keys::identical, Gains::two, 2e-3}}) {
    Case c{.name = "long", .gate = GateShape::none, .keys = row.keys, .gains = row.gains};
    c.time = 4096;
    c.d_k = c.d_v = 64;
    EXPECT_LE(error_of(c), row.bound)
        << "keys " << static_cast<int>(row.keys) << " gains " << static_cast<int>(row.gains);
  }
}

// A NaN stays in its sequence, in its head, and behind its token, though a tile multiplies zeros.
void expect_no_leak(Precision precision) {
  Context context({.threads = 1, .precision = precision, .backends = {"cpu"}});
  const double close = precision == Precision::bf16 ? 1e-2 : 4e-5;
  for (const GateShape gate : {GateShape::none, GateShape::scalar, GateShape::channel}) {
    Case c{.name = "nan", .gate = gate, .batch = 2, .time = 130};
    c.heads = c.value_heads = 2;
    const Inputs clean = make_inputs(c);
    const TwoKeyOut expected = make_out(clean);
    recurrence::two_key(context, clean.sequences, clean.two_key, expected);
    constexpr std::int64_t kToken = 69;
    for (int which = 0; which < (gate == GateShape::none ? 3 : 4); ++which) {
      Inputs dirty = clean;
      Tensor* tensor = which == 0   ? &dirty.two_key.q
                       : which == 1 ? &dirty.two_key.v
                       : which == 2 ? &dirty.two_key.e
                                    : &dirty.two_key.g;
      *tensor = tensor->clone();
      tensor->slice(0, kToken, kToken + 1).slice(1, 1, 2).fill(NAN);
      if (which == 2) dirty.two_key.w = dirty.two_key.e;
      const TwoKeyOut out = make_out(dirty);
      recurrence::two_key(context, dirty.sequences, dirty.two_key, out);
      const auto rows = [&](const TwoKeyOut& from, std::int64_t begin, std::int64_t end) {
        return from.o.slice(0, begin, end).clone();
      };
      if (which == 3 && gate == GateShape::channel) {
        // The gates of a whole chunk decide how its decays are formed.
        EXPECT_LE(relative_error(rows(out, 0, kToken), wide(rows(expected, 0, kToken))), close);
      } else {
        EXPECT_TRUE(same_bits("before", rows(out, 0, kToken), rows(expected, 0, kToken)));
      }
      EXPECT_TRUE(
          same_bits("head 0", out.o.slice(1, 0, 1).clone(), expected.o.slice(1, 0, 1).clone()));
      EXPECT_TRUE(same_bits("sequence 1", rows(out, c.time, 2 * c.time),
                            rows(expected, c.time, 2 * c.time)));
      EXPECT_TRUE(std::isnan(out.o.slice(0, kToken, kToken + 1).slice(1, 1, 2).data<float>()[0]));
    }
  }
}

TEST_F(TileBounds, NaNDoesNotLeak) {
  for (const Precision precision : {Precision::bf16x3, Precision::bf16}) expect_no_leak(precision);
}

}  // namespace
}  // namespace rankone::test
