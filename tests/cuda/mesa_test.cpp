// MesaNet on CUDA: the solve by conjugate gradients against the exact one in float64, held to the
// bounds of the cpu backend.

#include <memory>

#include "operators.hpp"

namespace rankone::test {
namespace {

using namespace rankone::recurrence;

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
  MesaCotangents cot;

  Problem(const Setting& s, Dtype dtype) : sequences(Sequences::packed(s.cu_seqlens)) {
    Random random(5);
    const std::int64_t rows = sequences.rows(), heads = 2, count = sequences.count();
    in.q = unit_rows({rows, heads, s.d_k}, random).to(dtype);
    in.k = unit_rows({rows, heads, s.d_k}, random).to(dtype);
    in.v = normal({rows, heads, s.d_v}, random).to(dtype);
    if (s.gates) {
      in.g = weak_gates({rows, heads}, random);
      in.b = uniform({rows, heads}, random, 0, 1).to(dtype);
    }
    in.lambda = uniform({heads, s.d_k}, random, 0.5, 1.5);
    if (s.initial) {
      in.initial_hkk = gram_states(count, s.d_k, random);
      in.initial_hkv = normal({count, heads, s.d_k, s.d_v}, random);
    }
    in.max_iterations = static_cast<int>(2 * std::min<std::int64_t>(s.d_k, 32));
    cot.o = normal({rows, heads, s.d_v}, random).to(dtype);
    cot.final_hkk = normal({count, heads, s.d_k, s.d_k}, random);
    cot.final_hkv = normal({count, heads, s.d_k, s.d_v}, random);
  }
  Mesa widened() const {
    Mesa result = in;
    for (Tensor* tensor : {&result.q, &result.k, &result.v, &result.g, &result.b, &result.lambda,
                           &result.initial_hkk, &result.initial_hkv}) {
      *tensor = wide(*tensor);
    }
    return result;
  }
  void upload(Context& context) {
    for (Tensor* tensor : {&in.q, &in.k, &in.v, &in.g, &in.b, &in.lambda, &in.initial_hkk,
                           &in.initial_hkv, &cot.o, &cot.final_hkk, &cot.final_hkv}) {
      *tensor = to_device(*tensor, context);
    }
  }
};

class CudaMesa : public testing::TestWithParam<std::tuple<Dtype, Setting>> {
 protected:
  void SetUp() override {
    RANKONE_NEEDS_CUDA();
    cuda_ = std::make_unique<Context>(cuda_context());
  }
  Problem problem_{std::get<1>(GetParam()), std::get<0>(GetParam())};
  std::unique_ptr<Context> cuda_;  // where there is a GPU
  Context reference_ = reference_context();
};

TEST_P(CudaMesa, Forward) {
  const MesaCotangents& cot = problem_.cot;
  const MesaOut expected{wide_like(cot.o), wide_like(cot.final_hkk), wide_like(cot.final_hkv)};
  mesa(reference_, problem_.sequences, problem_.widened(), expected);
  problem_.upload(*cuda_);
  const std::vector<Tensor> got = run_in_two_orders(*cuda_, [&] {
    const MesaOut out{output_like(cot.o, *cuda_), output_like(cot.final_hkk, *cuda_),
                      output_like(cot.final_hkv, *cuda_)};
    mesa(*cuda_, problem_.sequences, problem_.in, out);
    return std::vector<Tensor>{out.o, out.final_hkk, out.final_hkv};
  });
  expect_close("o", got[0], expected.o, kBound);
  expect_close("final_hkk", got[1], expected.final_hkk, kBound);
  expect_close("final_hkv", got[2], expected.final_hkv, kBound);
}

TEST_P(CudaMesa, StopsAtTheResidual) {
  const MesaCotangents& cot = problem_.cot;
  const Tensor expected = wide_like(cot.o);
  mesa(reference_, problem_.sequences, problem_.widened(), {expected, {}, {}});
  problem_.in.max_iterations = 100000;  // with the residual test off this would take minutes
  problem_.in.tolerance = 1e-6;
  problem_.upload(*cuda_);
  const Tensor o = output_like(cot.o, *cuda_);
  mesa(*cuda_, problem_.sequences, problem_.in, {o, {}, {}});
  expect_close("o", to_host(o, *cuda_), expected, kBound);
}

TEST_P(CudaMesa, Backward) {
  const Mesa& in = problem_.in;
  const MesaCotangents& cot = problem_.cot;
  const auto gradients = [&](auto&& like) {
    return MesaGrads{like(in.q), like(in.k),      like(in.v),           like(in.g),
                     like(in.b), like(in.lambda), like(in.initial_hkk), like(in.initial_hkv)};
  };
  const MesaGrads expected = gradients(wide_like);
  mesa_vjp(reference_, problem_.sequences, problem_.widened(),
           {wide(cot.o), wide(cot.final_hkk), wide(cot.final_hkv)}, expected);
  problem_.upload(*cuda_);
  const std::vector<Tensor> got = run_in_two_orders(*cuda_, [&] {
    const MesaGrads grads =
        gradients([&](const Tensor& tensor) { return output_like(tensor, *cuda_); });
    mesa_vjp(*cuda_, problem_.sequences, in, cot, grads);
    return std::vector<Tensor>{grads.q, grads.k,      grads.v,           grads.g,
                               grads.b, grads.lambda, grads.initial_hkk, grads.initial_hkv};
  });
  expect_close("dq", got[0], expected.q, kBound);
  expect_close("dk", got[1], expected.k, kBound);
  expect_close("dv", got[2], expected.v, kBound);
  expect_close("dg", got[3], expected.g, kBound);
  expect_close("db", got[4], expected.b, kBound);
  expect_close("dlambda", got[5], expected.lambda, kBound);
  expect_close("dinitial_hkk", got[6], expected.initial_hkk, kBound);
  expect_close("dinitial_hkv", got[7], expected.initial_hkv, kBound);
}

INSTANTIATE_TEST_SUITE_P(
    Settings, CudaMesa,
    testing::Combine(testing::Values(Dtype::f32, Dtype::bf16),
                     testing::Values(Setting{16, 24, true, true, {0, 1, 65, 65, 150}},
                                     Setting{7, 5, false, false, {0, 64}},
                                     Setting{40, 32, true, false, {0, 100}},
                                     Setting{20, 33, false, true, {0, 3, 5}},
                                     Setting{72, 16, true, true, {0, 20}},
                                     Setting{136, 16, true, true, {0, 20}})));

// One iteration from zero is x = (q.q / (q.(H + lambda) q + damping)) q, by hand for one token.
TEST(CudaMesaIterations, TheirNumberAndDampingAreRespected) {
  RANKONE_NEEDS_CUDA();
  Context cuda = cuda_context();
  Mesa in;
  in.q = to_device(filled({1, 1, 2}, [i = 0]() mutable { return ++i; }), cuda);  // (1, 2)
  in.k = to_device(filled({1, 1, 2}, [i = 2]() mutable { return --i; }), cuda);  // (1, 0)
  in.v = to_device(filled({1, 1, 1}, [] { return 3; }), cuda);
  in.lambda = to_device(filled({1, 2}, [] { return 1; }), cuda);
  in.max_iterations = 1;
  const Tensor o = output_like(in.v, cuda);
  mesa(cuda, Sequences::dense(1, 1), in, {o, {}, {}});
  // Hkk = diag(1, 0): step = 5 / 6, x = (5/6, 5/3), o = v k.x = 3 * 5/6.
  EXPECT_NEAR(to_host(o, cuda).data<float>()[0], 2.5F, 1e-6);
  in.damping = 4.0;  // step = 5 / (6 + 4)
  mesa(cuda, Sequences::dense(1, 1), in, {o, {}, {}});
  EXPECT_NEAR(to_host(o, cuda).data<float>()[0], 1.5F, 1e-6);
}

// A token gives the same bits whatever comes behind it, and a sequence whatever its neighbours.
TEST(CudaMesaEdges, OnlyThePastOfASequenceMatters) {
  RANKONE_NEEDS_CUDA();
  Context cuda = cuda_context();
  Problem problem({16, 8, true, true, {0, 70, 150}}, Dtype::f32);
  const auto run = [&](std::int64_t begin, std::int64_t end) {
    Problem copy = problem;
    copy.upload(cuda);
    const Tensor o = output_like(copy.cot.o, cuda);
    mesa(cuda, copy.sequences, copy.in, {o, {}, {}});
    return to_host(o, cuda).slice(0, begin, end).clone();
  };
  const Tensor before = run(70, 143);
  problem.in.k = problem.in.k.clone();
  problem.in.k.slice(0, 0, 70).fill(std::numeric_limits<double>::quiet_NaN());
  problem.in.k.slice(0, 143, 150).fill(std::numeric_limits<double>::quiet_NaN());
  EXPECT_TRUE(same_bits("o", before, run(70, 143)));
}

}  // namespace
}  // namespace rankone::test
