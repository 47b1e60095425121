// States stored as bf16: the same bits as a float32 call whose initial state holds those bf16
// numbers and whose final state is rounded afterwards, for every length, width and cut.

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "core/isa.hpp"
#include "core/status.hpp"
#include "recurrence/cpu/kernels.hpp"
#include "recurrence/recurrence.hpp"
#include "tests/cases/cases.hpp"
#include "tests/cases/compare.hpp"
#include "tests/cases/tensors.hpp"

namespace rankone::test {
namespace {

using recurrence::TwoKeyOut;

std::vector<Case> list() {
  std::vector<Case> cases;
  for (const std::int64_t time : {1, 2, 4, 17, 64, 65, 66, 70, 100, 129}) {
    for (const GateShape gate : {GateShape::scalar, GateShape::channel}) {
      for (const std::int64_t d_v : {128, 64, 20, 3}) {
        Case c{.name = "narrow", .gate = gate, .batch = 2, .time = time};
        c.value_heads = 2;
        c.d_k = d_v == 20 ? 60 : 32;
        c.d_v = d_v;
        cases.push_back(c);
      }
    }
  }
  cases.push_back({.name = "none", .gate = GateShape::none, .time = 1});
  cases.push_back({.name = "additive", .gate = GateShape::scalar, .time = 20, .delta = false});
  cases.push_back({.name = "no_initial_state", .gate = GateShape::scalar, .initial = false});
  cases.push_back({.name = "packed", .gate = GateShape::scalar, .cu_seqlens = {0, 1, 1, 5, 70}});
  return cases;
}

TwoKeyOut run(const Inputs& inputs, Dtype state, const char* backend, int threads,
              Precision precision = Precision::f32) {
  Context context({.threads = threads, .precision = precision, .backends = {backend}});
  TwoKeyOut out = make_out(inputs);
  out.final_state = Tensor::empty(out.final_state.shape(), state);
  recurrence::two_key(context, inputs.sequences, inputs.two_key, out);
  return out;
}

struct Level {
  Precision precision;
  double error;
};
// Of the kernels that this process may run.
std::vector<Level> levels() {
  if (tile_unit() == TileUnit::none) return {{Precision::f32, 1e-6}};
  return {{Precision::f32, 1e-6}, {Precision::bf16x3, 2e-5}, {Precision::bf16, 1e-2}};
}

TEST(CpuNarrowState, IsRoundedAtTheEndAndNowhereElse) {
  for (const Case& c : list()) {
    Inputs whole = make_inputs(c);
    Inputs narrow = whole;
    if (c.initial) {
      narrow.two_key.initial_state = whole.two_key.initial_state.to(Dtype::bf16);
      whole.two_key.initial_state = narrow.two_key.initial_state.to(Dtype::f32);
    }
    const TwoKeyOut reference = run(narrow, Dtype::bf16, "reference", 1);
    for (const Level& level : levels()) {
      const TwoKeyOut expected = run(whole, Dtype::f32, "cpu", 1, level.precision);
      const Tensor state = expected.final_state.to(Dtype::bf16);
      for (const int threads : {1, 3}) {
        const TwoKeyOut out = run(narrow, Dtype::bf16, "cpu", threads, level.precision);
        EXPECT_TRUE(same_bits("o", out.o, expected.o)) << c.time << " " << c.d_v;
        EXPECT_TRUE(same_bits("final_state", out.final_state, state)) << c.time << " " << c.d_v;
      }
      EXPECT_LE(relative_error(expected.o, wide(reference.o)), level.error);
      EXPECT_LE(relative_error(expected.final_state, wide(reference.final_state)),
                std::max(level.error, 0x1p-8));
    }
  }
}

TEST(CpuNarrowState, IsUpdatedInPlace) {
  for (const std::int64_t time : {0, 1, 4, 70}) {
    Case c{.name = "in_place", .gate = GateShape::scalar, .time = time, .d_v = 40};
    Inputs inputs = make_inputs(c);
    inputs.two_key.initial_state = inputs.two_key.initial_state.to(Dtype::bf16);
    const TwoKeyOut apart = run(inputs, Dtype::bf16, "cpu", 1);
    TwoKeyOut out = make_out(inputs);
    out.final_state = inputs.two_key.initial_state;
    Context context({.threads = 1, .precision = Precision::f32, .backends = {"cpu"}});
    recurrence::two_key(context, inputs.sequences, inputs.two_key, out);
    EXPECT_TRUE(same_bits("final_state", out.final_state, apart.final_state));
    EXPECT_TRUE(same_bits("o", out.o, apart.o));
  }
}

// Rounding to nearest even, whatever instruction does it; NaN and infinity stay what they are.
TEST(CpuNarrowState, RoundsToNearestEven) {
  const std::vector<float> numbers = {0.0F,
                                      -0.0F,
                                      1.0F,
                                      1.00390625F,  // half way, even below
                                      1.01171875F,  // half way, even above
                                      1.00390637F,
                                      -3.14159274F,
                                      3.39e38F,  // rounds to infinity
                                      1e-30F,
                                      std::numeric_limits<float>::infinity(),
                                      std::numeric_limits<float>::quiet_NaN(),
                                      std::bit_cast<float>(0xffffffffU),
                                      std::bit_cast<float>(0x7f800001U)};
  const int count = static_cast<int>(numbers.size());
  for (const int columns : {count, 16}) {
    std::vector<float> from(16, 2.0F);
    std::copy(numbers.begin(), numbers.end(), from.begin());
    std::vector<std::uint16_t> to(16, 7);
    recurrence::cpu::kernels().narrow_rows(to.data(), 16, from.data(), 16, 1, columns);
    for (int i = 0; i < columns; ++i) {
      const std::uint16_t bits = to[static_cast<std::size_t>(i)];
      const float x = from[static_cast<std::size_t>(i)];
      if (std::isnan(x)) {
        EXPECT_TRUE(std::isnan(to_float(bf16{bits}))) << i;
      } else {
        EXPECT_EQ(bits, to_bf16(x).bits) << i;
      }
    }
    if (columns < 16) {
      EXPECT_EQ(to.back(), 7);
    }
  }
}

TEST(CpuNarrowState, MustBeAllowed) {
  Case c{.name = "narrow", .time = 5};
  Inputs inputs = make_inputs(c);
  const Tensor narrow = inputs.two_key.initial_state.to(Dtype::bf16);
  recurrence::TwoKeyOut out = make_out(inputs);
  Context context({.threads = 1});
  const auto message = [&] {
    try {
      recurrence::two_key(context, inputs.sequences, inputs.two_key, out);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  out.final_state = narrow;
  EXPECT_EQ(message(),
            "[two_key] initial_state is f32 and final_state bf16 (they are of one dtype)");
  out.final_state = inputs.two_key.initial_state.to(Dtype::f16);
  EXPECT_EQ(message(), "[two_key] final_state is f16 (states of this call are f32 or bf16)");
  inputs.two_key.initial_state = narrow;
  try {
    recurrence::two_key_vjp(context, inputs.sequences, inputs.two_key, inputs.cotangents,
                            make_grads(inputs));
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "[two_key_vjp] initial_state is bf16 (states of this call are f32)");
  }
}

}  // namespace
}  // namespace rankone::test
