// Every case of the list, forward and backward, against float64: the float32 kernels
// (cpu_amx_test.cpp has those of lower precision).

#include <gtest/gtest.h>

#include <algorithm>

#include "recurrence/backend.hpp"
#include "tests/cases/compare.hpp"
#include "tests/cases/plain.hpp"

namespace rankone::test {
namespace {

using recurrence::TwoKeyGrads;
using recurrence::TwoKeyOut;

class Cases : public testing::TestWithParam<Case> {
 protected:
  void TearDown() override { print_repeat(); }

  const Inputs inputs_ = make_inputs(GetParam());
  const Inputs wide_ = widened(inputs_);
  Context reference_{{.threads = 1, .backends = {"reference"}}};
  Context cpu_{{.threads = 1, .precision = Precision::f32, .backends = {"cpu", "reference"}}};

  void check(const std::string& name, const Tensor& result, const Tensor& plain,
             const Tensor& expected) const {
    if (!result.defined()) return;
    // The worst row of a tensor of a handful of numbers, or of rows of one number, says nothing
    // beside another worst: there the whole tensor counts, and the bound is that of the golden
    // files.
    constexpr std::int64_t kFew = 64;
    const bool few = result.count() < kFew || result.dim(-1) == 1;
    if (GetParam().bound > 0 || few) {
      EXPECT_LE(relative_error(result, expected), std::max(GetParam().bound, few ? 2e-5 : 0.0))
          << name;
    } else {
      EXPECT_TRUE(within_plain(name, result, plain, expected));
    }
  }
};

TEST_P(Cases, Forward) {
  const TwoKeyOut expected = make_out(wide_);
  recurrence::two_key(reference_, wide_.sequences, wide_.two_key, expected);
  const TwoKeyOut plain = make_out(inputs_);
  plain_two_key(Dtype::f32, inputs_, plain);
  const TwoKeyOut out = make_out(inputs_);
  recurrence::two_key(cpu_, inputs_.sequences, inputs_.two_key, out);
  check("o", out.o, plain.o, expected.o);
  check("final_state", out.final_state, plain.final_state, expected.final_state);
}

TEST_P(Cases, Backward) {
  const TwoKeyGrads expected = make_grads(wide_);
  recurrence::two_key_vjp(reference_, wide_.sequences, wide_.two_key, wide_.cotangents, expected);
  const TwoKeyGrads plain = make_grads(inputs_);
  plain_two_key_vjp(Dtype::f32, inputs_, plain);
  const TwoKeyGrads grads = make_grads(inputs_);
  recurrence::two_key_vjp(cpu_, inputs_.sequences, inputs_.two_key, inputs_.cotangents, grads);
  check("dq", grads.q, plain.q, expected.q);
  check("de", grads.e, plain.e, expected.e);
  check("dw", grads.w, plain.w, expected.w);
  check("dv", grads.v, plain.v, expected.v);
  if (GetParam().gate == GateShape::channel) {
    check("dg", grads.g, plain.g, expected.g);
  } else {
    check("dg", by_head(grads.g), by_head(plain.g), by_head(expected.g));
  }
  check("db", by_head(grads.b), by_head(plain.b), by_head(expected.b));
  check("d initial_state", grads.initial_state, plain.initial_state, expected.initial_state);
}

INSTANTIATE_TEST_SUITE_P(TwoKey, Cases, testing::ValuesIn(cases()),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace rankone::test
