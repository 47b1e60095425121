// Diagonal Longhorn on CUDA against float64, held to the bounds of the cpu backend.

#include "operators.hpp"

namespace rankone::test {
namespace {

using namespace rankone::recurrence;

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
  LonghornCotangents cot;

  Problem(const Setting& s, Dtype dtype) : sequences(Sequences::packed(s.cu_seqlens)) {
    Random random(3);
    const std::int64_t rows = sequences.rows();
    const Shape states{sequences.count(), s.value_heads, s.d_k, s.d_v};
    in.q = normal({rows, s.heads, s.d_k}, random).to(dtype);
    in.k = normal({rows, s.heads, s.d_k}, random).to(dtype);
    in.v = normal({rows, s.value_heads, s.d_v}, random).to(dtype);
    in.beta = uniform({rows, s.value_heads, s.d_v}, random, 0.01, 1).to(dtype);
    if (s.initial) in.initial_state = normal(states, random);
    cot = {normal({rows, s.value_heads, s.d_v}, random).to(dtype), normal(states, random)};
  }
  Longhorn widened() const {
    return {wide(in.q), wide(in.k), wide(in.v), wide(in.beta), wide(in.initial_state)};
  }
  void upload(Context& context) {
    for (Tensor* tensor :
         {&in.q, &in.k, &in.v, &in.beta, &in.initial_state, &cot.o, &cot.final_state}) {
      *tensor = to_device(*tensor, context);
    }
  }
};

class CudaLonghorn : public testing::TestWithParam<std::tuple<Dtype, Setting>> {
 protected:
  void SetUp() override { RANKONE_NEEDS_CUDA(); }
};

TEST_P(CudaLonghorn, AgreesWithFloat64) {
  Context cuda = cuda_context(), reference = reference_context();
  Problem problem(std::get<1>(GetParam()), std::get<0>(GetParam()));
  const Longhorn& in = problem.in;
  const LonghornCotangents& cot = problem.cot;
  const Longhorn exact = problem.widened();
  const LonghornOut expected{wide_like(cot.o), wide_like(cot.final_state)};
  longhorn(reference, problem.sequences, exact, expected);
  const LonghornGrads d_expected{wide_like(in.q), wide_like(in.k), wide_like(in.v),
                                 wide_like(in.beta), wide_like(in.initial_state)};
  longhorn_vjp(reference, problem.sequences, exact, {wide(cot.o), wide(cot.final_state)},
               d_expected);

  problem.upload(cuda);
  const std::vector<Tensor> got = run_in_two_orders(cuda, [&] {
    const LonghornOut out{output_like(cot.o, cuda), output_like(cot.final_state, cuda)};
    longhorn(cuda, problem.sequences, in, out);
    const LonghornGrads grads{output_like(in.q, cuda), output_like(in.k, cuda),
                              output_like(in.v, cuda), output_like(in.beta, cuda),
                              output_like(in.initial_state, cuda)};
    longhorn_vjp(cuda, problem.sequences, in, cot, grads);
    return std::vector<Tensor>{out.o,      out.final_state,    grads.q, grads.k, grads.v,
                               grads.beta, grads.initial_state};
  });
  expect_close("o", got[0], expected.o, kBound);
  expect_close("final_state", got[1], expected.final_state, kBound);
  expect_close("dq", got[2], d_expected.q, kBound);
  expect_close("dk", got[3], d_expected.k, kBound);
  expect_close("dv", got[4], d_expected.v, kBound);
  expect_close("dbeta", got[5], d_expected.beta, kBound);
  expect_close("dinitial_state", got[6], d_expected.initial_state, kBound);
}

INSTANTIATE_TEST_SUITE_P(
    Settings, CudaLonghorn,
    testing::Combine(testing::Values(Dtype::f32, Dtype::bf16, Dtype::f16),
                     testing::Values(Setting{1, 1, 16, 64, true, {0, 1, 17, 17, 90}},
                                     Setting{2, 4, 7, 20, true, {0, 33, 165}},
                                     Setting{1, 1, 1, 1, false, {0, 16, 40}},
                                     Setting{1, 2, 48, 33, false, {0, 15}},
                                     Setting{1, 1, 136, 40, true, {0, 70}},
                                     // Two segments and one whole one.
                                     Setting{1, 1, 8, 8, true, {0, 600, 600, 1112}})));

// A sequence gives the same bits whatever its neighbours, were they NaN.
TEST(CudaLonghornEdges, NeighboursDoNotMatter) {
  RANKONE_NEEDS_CUDA();
  Context cuda = cuda_context();
  Problem problem({1, 2, 8, 8, true, {0, 30, 110, 130}}, Dtype::f32);
  const auto run = [&] {
    Problem copy = problem;
    copy.upload(cuda);
    const Longhorn& in = copy.in;
    const LonghornOut out{output_like(copy.cot.o, cuda), output_like(copy.cot.final_state, cuda)};
    longhorn(cuda, copy.sequences, in, out);
    const LonghornGrads grads{output_like(in.q, cuda),
                              output_like(in.k, cuda),
                              {},
                              {},
                              output_like(in.initial_state, cuda)};
    longhorn_vjp(cuda, copy.sequences, in, copy.cot, grads);
    std::vector<Tensor> rows;
    for (const Tensor& tensor : {out.o, grads.q, grads.k}) {
      rows.push_back(to_host(tensor, cuda).slice(0, 30, 110).clone());
    }
    rows.push_back(to_host(out.final_state, cuda).slice(0, 1, 2).clone());
    rows.push_back(to_host(grads.initial_state, cuda).slice(0, 1, 2).clone());
    return rows;
  };
  const std::vector<Tensor> before = run();
  problem.in.k = problem.in.k.clone();
  problem.in.k.slice(0, 0, 30).fill(std::numeric_limits<double>::quiet_NaN());
  problem.cot.o = problem.cot.o.clone();
  problem.cot.o.slice(0, 110, 130).fill(std::numeric_limits<double>::quiet_NaN());
  const std::vector<Tensor> after = run();
  for (std::size_t i = 0; i < before.size(); ++i) {
    EXPECT_TRUE(same_bits("result " + std::to_string(i), before[i], after[i]));
  }
}

}  // namespace
}  // namespace rankone::test
