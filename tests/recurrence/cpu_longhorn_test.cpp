// Diagonal Longhorn in float32 against float64.

#include <gtest/gtest.h>

#include <vector>

#include "recurrence/backend.hpp"
#include "tests/cases/compare.hpp"
#include "tests/cases/tensors.hpp"

namespace rankone::test {
namespace {

using recurrence::Longhorn;
using recurrence::LonghornCotangents;
using recurrence::LonghornGrads;
using recurrence::LonghornOut;

// As for every float32 token loop: a rounding or two per token of memory.
constexpr double kBound = 4e-6;

struct Setting {
  std::int64_t heads, value_heads, d_k, d_v;
  bool initial;
  std::vector<std::int64_t> cu_seqlens;
};

struct Problem {
  Sequences sequences;
  Longhorn in;
  LonghornCotangents cotangents;

  explicit Problem(const Setting& s) : sequences(Sequences::packed(s.cu_seqlens)) {
    Random random(3);
    const std::int64_t rows = sequences.rows();
    const Shape states{sequences.count(), s.value_heads, s.d_k, s.d_v};
    in.q = normal({rows, s.heads, s.d_k}, random);
    in.k = normal({rows, s.heads, s.d_k}, random);
    in.v = normal({rows, s.value_heads, s.d_v}, random);
    in.beta = uniform({rows, s.value_heads, s.d_v}, random, 0.01, 1);
    if (s.initial) in.initial_state = normal(states, random);
    cotangents = {normal({rows, s.value_heads, s.d_v}, random), normal(states, random)};
  }

  Longhorn widened() const {
    return {wide(in.q), wide(in.k), wide(in.v), wide(in.beta), wide(in.initial_state)};
  }
};

class CpuLonghorn : public testing::TestWithParam<Setting> {
 protected:
  const Problem problem_{GetParam()};
  const Longhorn wide_ = problem_.widened();
  Context reference_{{.threads = 1, .backends = {"reference"}}};
  Context cpu_{{.threads = 2, .backends = {"cpu"}}};
};

void expect_close(const char* name, const Tensor& result, const Tensor& expected) {
  if (!result.defined()) return;
  EXPECT_LE(relative_error(result, expected), kBound) << name;
}

TEST_P(CpuLonghorn, Forward) {
  const LonghornCotangents& like = problem_.cotangents;
  const LonghornOut out{nan_like(like.o), nan_like(like.final_state)};
  const LonghornOut expected{wide(like.o), wide(like.final_state)};
  recurrence::longhorn(cpu_, problem_.sequences, problem_.in, out);
  recurrence::longhorn(reference_, problem_.sequences, wide_, expected);
  expect_close("o", out.o, expected.o);
  expect_close("final_state", out.final_state, expected.final_state);
}

TEST_P(CpuLonghorn, Backward) {
  const auto gradients = [](const Longhorn& in) {
    return LonghornGrads{nan_like(in.q), nan_like(in.k), nan_like(in.v), nan_like(in.beta),
                         nan_like(in.initial_state)};
  };
  const LonghornGrads grads = gradients(problem_.in);
  const LonghornGrads expected = gradients(wide_);
  const LonghornCotangents& cot = problem_.cotangents;
  recurrence::longhorn_vjp(cpu_, problem_.sequences, problem_.in, cot, grads);
  recurrence::longhorn_vjp(reference_, problem_.sequences, wide_,
                           {wide(cot.o), wide(cot.final_state)}, expected);
  expect_close("dq", grads.q, expected.q);
  expect_close("dk", grads.k, expected.k);
  expect_close("dv", grads.v, expected.v);
  expect_close("dbeta", grads.beta, expected.beta);
  expect_close("dinitial_state", grads.initial_state, expected.initial_state);
}

INSTANTIATE_TEST_SUITE_P(Settings, CpuLonghorn,
                         testing::Values(Setting{1, 1, 16, 64, true, {0, 1, 17, 17, 90}},
                                         Setting{2, 4, 7, 20, true, {0, 33}},
                                         Setting{1, 1, 1, 1, false, {0, 16, 40}},
                                         Setting{1, 2, 48, 33, false, {0, 15}}));

}  // namespace
}  // namespace rankone::test
