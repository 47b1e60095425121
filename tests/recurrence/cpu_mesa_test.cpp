// MesaNet in float32: the solve by conjugate gradients against the exact one in float64.

#include <gtest/gtest.h>

#include <vector>

#include "recurrence/backend.hpp"
#include "tests/cases/compare.hpp"
#include "tests/cases/tensors.hpp"

namespace rankone::test {
namespace {

using recurrence::Mesa;
using recurrence::MesaCotangents;
using recurrence::MesaGrads;
using recurrence::MesaOut;

// Rounding of float32 times the condition of the systems, which are below 30 here.
constexpr double kBound = 1e-5;

struct Setting {
  std::int64_t d_k, d_v;
  bool gates, initial;
  std::vector<std::int64_t> cu_seqlens;
};

// A symmetric positive definite matrix per state: the sum of a few outer products.
Tensor gram_states(std::int64_t count, std::int64_t d_k, Random& random) {
  Tensor states = Tensor::zeros({count, 2, d_k, d_k}, Dtype::f32);
  for (std::int64_t s = 0; s < count * 2; ++s) {
    for (int i = 0; i < 3; ++i) {
      const Tensor key = unit_rows({1, d_k}, random);
      for (std::int64_t at = 0; at < d_k * d_k; ++at) {
        states.data<float>()[s * d_k * d_k + at] +=
            key.data<float>()[at / d_k] * key.data<float>()[at % d_k];
      }
    }
  }
  return states;
}

struct Problem {
  Sequences sequences;
  Mesa in;
  MesaCotangents cotangents;

  explicit Problem(const Setting& s) : sequences(Sequences::packed(s.cu_seqlens)) {
    Random random(5);
    const std::int64_t rows = sequences.rows(), heads = 2, count = sequences.count();
    in.q = unit_rows({rows, heads, s.d_k}, random);
    in.k = unit_rows({rows, heads, s.d_k}, random);
    in.v = normal({rows, heads, s.d_v}, random);
    if (s.gates) {
      in.g = weak_gates({rows, heads}, random);
      in.b = uniform({rows, heads}, random, 0, 1);
    }
    in.lambda = uniform({heads, s.d_k}, random, 0.5, 1.5);
    if (s.initial) {
      in.initial_hkk = gram_states(count, s.d_k, random);
      in.initial_hkv = normal({count, heads, s.d_k, s.d_v}, random);
    }
    in.max_iterations = static_cast<int>(2 * s.d_k);
    cotangents.o = normal({rows, heads, s.d_v}, random);
    cotangents.final_hkk = normal({count, heads, s.d_k, s.d_k}, random);
    cotangents.final_hkv = normal({count, heads, s.d_k, s.d_v}, random);
  }

  Mesa widened() const {
    Mesa result = in;
    for (Tensor* tensor : {&result.q, &result.k, &result.v, &result.g, &result.b, &result.lambda,
                           &result.initial_hkk, &result.initial_hkv}) {
      *tensor = wide(*tensor);
    }
    return result;
  }
  MesaOut out() const {
    return {nan_like(cotangents.o), nan_like(cotangents.final_hkk), nan_like(cotangents.final_hkv)};
  }
};

class CpuMesa : public testing::TestWithParam<Setting> {
 protected:
  const Problem problem_{GetParam()};
  const Mesa wide_ = problem_.widened();
  Context reference_{{.threads = 1, .backends = {"reference"}}};
  Context cpu_{{.threads = 2, .backends = {"cpu"}}};

  MesaOut expected() {
    const MesaCotangents& cot = problem_.cotangents;
    const MesaOut expected{wide(cot.o), wide(cot.final_hkk), wide(cot.final_hkv)};
    recurrence::mesa(reference_, problem_.sequences, wide_, expected);
    return expected;
  }
};

void expect_close(const char* name, const Tensor& result, const Tensor& expected) {
  if (!result.defined()) return;
  EXPECT_LE(relative_error(result, expected), kBound) << name;
}

TEST_P(CpuMesa, Forward) {
  const MesaOut out = problem_.out();
  recurrence::mesa(cpu_, problem_.sequences, problem_.in, out);
  const MesaOut exact = expected();
  expect_close("o", out.o, exact.o);
  expect_close("final_hkk", out.final_hkk, exact.final_hkk);
  expect_close("final_hkv", out.final_hkv, exact.final_hkv);
}

TEST_P(CpuMesa, StopsAtTheResidual) {
  Mesa in = problem_.in;
  in.max_iterations = 100000;  // with the residual test off this would take minutes
  in.tolerance = 1e-6;
  const MesaOut out = problem_.out();
  recurrence::mesa(cpu_, problem_.sequences, in, out);
  expect_close("o", out.o, expected().o);
}

TEST_P(CpuMesa, Backward) {
  const auto gradients = [](const Mesa& in) {
    return MesaGrads{nan_like(in.q),           nan_like(in.k),          nan_like(in.v),
                     nan_like(in.g),           nan_like(in.b),          nan_like(in.lambda),
                     nan_like(in.initial_hkk), nan_like(in.initial_hkv)};
  };
  const MesaGrads grads = gradients(problem_.in);
  const MesaGrads exact = gradients(wide_);
  const MesaCotangents& cot = problem_.cotangents;
  recurrence::mesa_vjp(cpu_, problem_.sequences, problem_.in, cot, grads);
  recurrence::mesa_vjp(reference_, problem_.sequences, wide_,
                       {wide(cot.o), wide(cot.final_hkk), wide(cot.final_hkv)}, exact);
  expect_close("dq", grads.q, exact.q);
  expect_close("dk", grads.k, exact.k);
  expect_close("dv", grads.v, exact.v);
  expect_close("dg", grads.g, exact.g);
  expect_close("db", grads.b, exact.b);
  expect_close("dlambda", grads.lambda, exact.lambda);
  expect_close("dinitial_hkk", grads.initial_hkk, exact.initial_hkk);
  expect_close("dinitial_hkv", grads.initial_hkv, exact.initial_hkv);
}

INSTANTIATE_TEST_SUITE_P(Settings, CpuMesa,
                         testing::Values(Setting{16, 24, true, true, {0, 1, 65, 65, 150}},
                                         Setting{7, 5, false, false, {0, 64}},
                                         Setting{32, 32, true, false, {0, 100}},
                                         Setting{20, 33, false, true, {0, 3, 5}}));

// One iteration from zero is x = (q.q / q.(H + lambda) q) q, by hand for one token.
TEST(CpuMesaIterations, TheirNumberIsRespected) {
  Context context({.threads = 1, .backends = {"cpu"}});
  Mesa in;
  in.q = filled({1, 1, 2}, [i = 0]() mutable { return ++i; });  // (1, 2)
  in.k = filled({1, 1, 2}, [i = 2]() mutable { return --i; });  // (1, 0)
  in.v = filled({1, 1, 1}, [] { return 3; });
  in.lambda = filled({1, 2}, [] { return 1; });
  in.max_iterations = 1;
  const MesaOut out{nan_like(in.v), Tensor(), Tensor()};
  recurrence::mesa(context, Sequences::dense(1, 1), in, out);
  // Hkk = diag(1, 0): step = 5 / 6, x = (5/6, 5/3), o = v k.x = 3 * 5/6.
  EXPECT_FLOAT_EQ(out.o.data<float>()[0], 2.5F);
}

// Damped, the iterations are the definition: one of them is x = (q.q / (q.(H + lambda) q +
// damping)) q, and the reference and the cpu agree after many.
TEST(CpuMesaIterations, DampingIsThatOfThePublishedModelOnEveryBackend) {
  Context cpu({.threads = 1, .backends = {"cpu"}}),
      reference({.threads = 1, .backends = {"reference"}});
  Mesa in;
  in.q = filled({1, 1, 2}, [i = 0]() mutable { return ++i; });
  in.k = filled({1, 1, 2}, [i = 2]() mutable { return --i; });
  in.v = filled({1, 1, 1}, [] { return 3; });
  in.lambda = filled({1, 2}, [] { return 1; });
  in.damping = 4.0;  // step = 5 / (6 + 4)
  in.max_iterations = 1;
  for (Context* context : {&cpu, &reference}) {
    const MesaOut out{nan_like(in.v), Tensor(), Tensor()};
    recurrence::mesa(*context, Sequences::dense(1, 1), in, out);
    EXPECT_FLOAT_EQ(out.o.data<float>()[0], 1.5F);
  }
  in.max_iterations = 7;
  const MesaOut fast{nan_like(in.v), Tensor(), Tensor()}, exact{nan_like(in.v), Tensor(), Tensor()};
  recurrence::mesa(cpu, Sequences::dense(1, 1), in, fast);
  recurrence::mesa(reference, Sequences::dense(1, 1), in, exact);
  EXPECT_NEAR(fast.o.data<float>()[0], exact.o.data<float>()[0], 1e-5);
}

}  // namespace
}  // namespace rankone::test
