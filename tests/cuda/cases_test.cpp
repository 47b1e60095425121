// Every case of the list in every format, forward and backward, against float64 on the same rounded
// inputs; outputs between guards and filled with NaN before (host_calls.hpp); and the same bits
// from the same call, on emulated threads in another order.

#include <algorithm>
#include <cmath>

#include "core/status.hpp"
#include "formats.hpp"
#include "support.hpp"
#include "tests/cases/compare.hpp"
#include "tests/cases/plain.hpp"

namespace rankone::test {
namespace {

using recurrence::TwoKeyGrads;
using recurrence::TwoKeyOut;

struct FormatCase {
  Case c;
  Dtype format;
  std::string name() const { return c.name + "_" + std::string(rankone::name(format)); }
};
std::ostream& operator<<(std::ostream& out, const FormatCase& f) { return out << f.name(); }

// Emulated threads take long: there the largest cases are left out.
bool fits_emulation(const Case& c) {
  const std::int64_t work = sequences_of(c).rows() * c.value_heads * (c.d_k + 8) * (c.d_v + 8);
  return work <= std::int64_t{2000} * 40 * 40;
}

std::vector<FormatCase> format_cases() {
  std::vector<FormatCase> list;
  for (const Case& c : cases()) {
    for (const Dtype format : kFormats) {
      if (!kEmulated || fits_emulation(c)) list.push_back({c, format});
    }
  }
  return list;
}

// Where the chunk kernels miss the rule, by how much, and the tensor. Most are single rows, or
// numbers under strong decay that are small beside their own rounding: the kernels round what the
// plain implementation keeps (the inverse of a chunk, and decays times keys as 16-bit tiles). They
// are listed, not excused: docs/kernel-notes.md.
struct Excess {
  std::string_view test, tensor;
  double factor;
};
constexpr Excess kExcess[] = {
    {"mixed_bf16", "o", 1.1},
    // Exact products: what is left is the order of float32 sums.
    {"additive_none_bf16", "d initial_state", 2.2},
    {"additive_none_f16", "d initial_state", 2.3},
    {"no_gain_f16", "dg", 1.25},
    {"t7_minus_5_short_f16", "de", 3.2},
    {"t7_minus_5_bf16", "dv", 1.15},
    {"t7_minus_3_bf16", "de", 2.2},
    {"t7_minus_3_bf16", "db", 1.25},
    {"t7_minus_3_f16", "dq", 1.25},
    {"t7_alternating_f16", "dv", 1.15},
    {"t7_alternating_f16", "db", 1.4},
    {"t10_empty_sequences_f16", "db", 1.7},
    {"minus_30_bf16", "de", 1.15},
    {"wild_keys_bf16", "de", 2.6},
    {"wild_keys_bf16", "dw", 1.25},
    {"wild_keys_bf16", "dg", 1.2},
    // On a GPU only.
    {"width_128_f16", "dg", 1.25},
    {"reflection_identical_f16", "dq", 1.5},
    {"width_100_f32", "d initial_state", 1.2},
    {"width_192_by_5_f32", "d initial_state", 1.3},
};
double excess_of(const std::string& test, const std::string& tensor) {
  for (const Excess& excess : kExcess) {
    if (excess.test == test && excess.tensor == tensor) return excess.factor;
  }
  return 1.0;
}

class CudaCases : public testing::TestWithParam<FormatCase> {
 protected:
  void SetUp() override {
    RANKONE_NEEDS_CUDA();
    context_ = std::make_unique<Context>(host_context());
  }
  void TearDown() override { set_thread_order(0); }

  const Case& c() const { return GetParam().c; }
  Dtype format() const { return GetParam().format; }

  const Inputs inputs_ = in_format(make_inputs(c()), format(), gate_dtype(c(), format()));
  const Inputs floats_ = as_float(inputs_);
  const Inputs wide_ = widened(floats_);
  Context reference_{{.threads = 1, .backends = {"reference"}}};
  std::unique_ptr<Context> context_;

  // f16 ends at 65504: what is larger there has no right result.
  bool representable(std::initializer_list<Tensor> expected) const {
    if (format() != Dtype::f16) return true;
    double largest = 0;
    for (const Tensor& tensor : expected) {
      if (!tensor.defined()) continue;
      for (const double x : tensor.span<double>()) largest = std::max(largest, std::abs(x));
    }
    return largest < 65000;
  }

  void check(const std::string& name, const Tensor& stored, const Tensor& plain,
             const Tensor& expected) const {
    if (!stored.defined()) return;
    const Tensor result = stored.to(Dtype::f32);
    // As tests/recurrence/cases_two_key_test.cpp has it.
    constexpr std::int64_t kFew = 64;
    const bool few = result.count() < kFew || result.dim(-1) == 1;
    if (format() != Dtype::f32 && few) {
      const double allowed = excess_of(GetParam().name(), name) *
                             std::max(2 * relative_error(plain, expected), 0.5 * spacing(format()));
      EXPECT_LE(relative_error(result, expected), allowed) << name;
    } else if (format() == Dtype::f32 && (c().bound > 0 || few)) {
      EXPECT_LE(relative_error(result, expected), std::max(c().bound, few ? 2e-5 : 0.0)) << name;
    } else {
      EXPECT_TRUE(within_plain(name, result, plain, expected, excess_of(GetParam().name(), name)));
    }
  }
};

TEST_P(CudaCases, Forward) {
  const TwoKeyOut expected = make_out(wide_);
  recurrence::two_key(reference_, wide_.sequences, wide_.two_key, expected);
  if (!representable({expected.o})) GTEST_SKIP() << "beyond the range of f16";
  if (GetParam().name() == "wild_keys_f16") {
    GTEST_SKIP() << "values beyond the range of f16 inside a chunk, though not in its results";
  }
  const TwoKeyOut plain = make_out(floats_);
  plain_two_key(format(), floats_, plain);
  const TwoKeyOut out = make_out(inputs_);
  recurrence::two_key(*context_, inputs_.sequences, inputs_.two_key, out);
  check("o", out.o, plain.o, expected.o);
  check("final_state", out.final_state, plain.final_state, expected.final_state);

  set_thread_order(7);
  const TwoKeyOut again = make_out(inputs_);
  recurrence::two_key(*context_, inputs_.sequences, inputs_.two_key, again);
  EXPECT_TRUE(same_bits("o", again.o, out.o));
  EXPECT_TRUE(same_bits("final_state", again.final_state, out.final_state));
}

TEST_P(CudaCases, Backward) {
  const TwoKeyGrads expected = make_grads(wide_);
  recurrence::two_key_vjp(reference_, wide_.sequences, wide_.two_key, wide_.cotangents, expected);
  if (!representable({expected.q, expected.e, expected.w, expected.v, expected.g, expected.b})) {
    GTEST_SKIP() << "beyond the range of f16";
  }
  const TwoKeyGrads plain = make_grads(floats_);
  plain_two_key_vjp(format(), floats_, plain);
  const TwoKeyGrads grads = make_grads(inputs_);
  recurrence::two_key_vjp(*context_, inputs_.sequences, inputs_.two_key, inputs_.cotangents, grads);
  check("dq", grads.q, plain.q, expected.q);
  check("de", grads.e, plain.e, expected.e);
  check("dw", grads.w, plain.w, expected.w);
  check("dv", grads.v, plain.v, expected.v);
  if (c().gate == GateShape::channel) {
    check("dg", grads.g, plain.g, expected.g);
  } else {
    check("dg", by_head(grads.g), by_head(plain.g), by_head(expected.g));
  }
  check("db", by_head(grads.b), by_head(plain.b), by_head(expected.b));
  check("d initial_state", grads.initial_state, plain.initial_state, expected.initial_state);

  set_thread_order(11);
  const TwoKeyGrads again = make_grads(inputs_);
  recurrence::two_key_vjp(*context_, inputs_.sequences, inputs_.two_key, inputs_.cotangents, again);
  EXPECT_TRUE(same_bits("dq", again.q, grads.q));
  EXPECT_TRUE(same_bits("de", again.e, grads.e));
  EXPECT_TRUE(same_bits("dw", again.w, grads.w));
  EXPECT_TRUE(same_bits("dv", again.v, grads.v));
  EXPECT_TRUE(same_bits("dg", again.g, grads.g));
  EXPECT_TRUE(same_bits("db", again.b, grads.b));
  EXPECT_TRUE(same_bits("d initial_state", again.initial_state, grads.initial_state));
}

INSTANTIATE_TEST_SUITE_P(TwoKey, CudaCases, testing::ValuesIn(format_cases()),
                         [](const auto& test) { return test.param.name(); });

}  // namespace
}  // namespace rankone::test
