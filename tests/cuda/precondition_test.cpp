// The diagonal preconditioner on CUDA against float64, held to the bounds of the cpu backend.

#include "operators.hpp"

namespace rankone::test {
namespace {

using namespace rankone::recurrence;

// A plain float32 scan stays below this; it is a rounding error or two per token of memory.
constexpr double kBound = 4e-6;

struct Setting {
  PreconditionerKind kind;
  bool normalize, gates, initial;
  std::int64_t d_k;
  std::vector<std::int64_t> cu_seqlens;
};

struct Problem {
  Sequences sequences;
  Precondition in;
  PreconditionCotangents cot;

  Problem(const Setting& s, Dtype dtype) : sequences(Sequences::packed(s.cu_seqlens)) {
    Random random(11);
    const std::int64_t rows = sequences.rows(), heads = 2;
    in.kind = s.kind;
    in.normalize = s.normalize;
    in.k = normal({rows, heads, s.d_k}, random);
    if (!s.normalize) normalise_rows(in.k, s.d_k);
    in.k = in.k.to(dtype);
    in.target = in.k;
    if (s.kind == PreconditionerKind::atq) {
      in.target = normal({rows, heads, s.d_k}, random).to(dtype);
    }
    if (s.gates) {
      in.g = weak_gates({rows, heads}, random);
      in.b = uniform({rows, heads}, random, 0, 1).to(dtype);
    }
    if (s.kind == PreconditionerKind::atk) {
      in.center = uniform({heads}, random, -1, 1);
    } else {
      in.ridge = uniform({heads, s.d_k}, random, 0.2, 1).to(dtype);
    }
    if (s.initial) in.initial = uniform({sequences.count(), heads, s.d_k}, random, 0, 1);
    cot.out = normal({rows, heads, s.d_k}, random).to(dtype);
    cot.final = normal({sequences.count(), heads, s.d_k}, random);
  }

  Precondition widened() const {
    Precondition result = in;
    for (Tensor* tensor : {&result.k, &result.target, &result.g, &result.b, &result.center,
                           &result.ridge, &result.initial}) {
      *tensor = wide(*tensor);
    }
    return result;
  }
  void upload(Context& context) {
    const bool same = in.k.raw() == in.target.raw();
    for (Tensor* tensor : {&in.k, &in.target, &in.g, &in.b, &in.center, &in.ridge, &in.initial,
                           &cot.out, &cot.final}) {
      *tensor = to_device(*tensor, context);
    }
    if (same) in.target = in.k;
  }
};

std::vector<Setting> settings() {
  std::vector<Setting> list;
  for (const PreconditionerKind kind : {PreconditionerKind::atk, PreconditionerKind::atq}) {
    for (const bool on : {false, true}) {
      list.push_back({kind, on, true, true, 48, {0, 1, 64, 64, 193}});
      list.push_back({kind, !on, on, !on, 7, {0, 65}});
    }
    list.push_back({kind, true, true, true, 128, {0, 1300}});
    list.push_back({kind, false, true, true, 128, {0, 1, 64, 64, 400}});
    list.push_back({kind, true, true, false, 256, {0, 0, 70, 150}});
    list.push_back({kind, false, true, true, 1, {0, 3, 20}});
  }
  return list;
}

class CudaPrecondition : public testing::TestWithParam<std::tuple<Dtype, Setting>> {
 protected:
  void SetUp() override { RANKONE_NEEDS_CUDA(); }
};

TEST_P(CudaPrecondition, AgreesWithFloat64) {
  Context cuda = cuda_context(), reference = reference_context();
  Problem problem(std::get<1>(GetParam()), std::get<0>(GetParam()));
  const Precondition& in = problem.in;
  const Precondition exact = problem.widened();
  const PreconditionOut expected{wide_like(in.target), wide_like(problem.cot.final)};
  precondition(reference, problem.sequences, exact, expected);
  const PreconditionGrads d_expected{
      wide_like(in.k),      wide_like(in.target), wide_like(in.g),      wide_like(in.b),
      wide_like(in.center), wide_like(in.ridge),  wide_like(in.initial)};
  precondition_vjp(reference, problem.sequences, exact,
                   {wide(problem.cot.out), wide(problem.cot.final)}, d_expected);

  problem.upload(cuda);
  const std::vector<Tensor> got = run_in_two_orders(cuda, [&] {
    const PreconditionOut out{output_like(in.target, cuda), output_like(problem.cot.final, cuda)};
    precondition(cuda, problem.sequences, in, out);
    std::vector<Tensor> results{out.out, out.final};
    const std::int64_t numbers = precondition_saved(cuda, problem.sequences, in);
    const Tensor saved = output_like(Tensor::empty({numbers}, Dtype::f32), cuda);
    const PreconditionOut again{output_like(in.target, cuda), {}, saved};
    precondition(cuda, problem.sequences, in, again);
    results.push_back(again.out);
    for (const bool with_saved : {false, true}) {
      const PreconditionGrads grads{output_like(in.k, cuda),      output_like(in.target, cuda),
                                    output_like(in.g, cuda),      output_like(in.b, cuda),
                                    output_like(in.center, cuda), output_like(in.ridge, cuda),
                                    output_like(in.initial, cuda)};
      PreconditionCotangents cot = problem.cot;
      if (with_saved) cot.saved = saved;
      precondition_vjp(cuda, problem.sequences, in, cot, grads);
      for (const Tensor& gradient :
           {grads.k, grads.target, grads.g, grads.b, grads.center, grads.ridge, grads.initial}) {
        results.push_back(gradient);
      }
    }
    return results;
  });
  expect_close("out", got[0], expected.out, kBound);
  expect_close("final", got[1], expected.final, kBound);
  EXPECT_TRUE(same_bits("out, states saved", got[2], got[0]));
  for (std::size_t first = 3; first < got.size(); first += 7) {
    expect_close("dk", got[first], d_expected.k, kBound);
    expect_close("dtarget", got[first + 1], d_expected.target, kBound);
    expect_close("dg", got[first + 2], d_expected.g, kBound);
    expect_close("db", got[first + 3], d_expected.b, kBound);
    expect_close("dcenter", got[first + 4], d_expected.center, kBound);
    expect_close("dridge", got[first + 5], d_expected.ridge, kBound);
    expect_close("dinitial", got[first + 6], d_expected.initial, kBound);
  }
}

Tensor sum_of(std::initializer_list<Tensor> parts) {
  const Tensor sum = Tensor::zeros(parts.begin()->shape(), Dtype::f64);
  for (const Tensor& part : parts) {
    for (std::int64_t i = 0; i < sum.count(); ++i) sum.data<double>()[i] += part.data<double>()[i];
  }
  return sum;
}

// The gradients of k and the target in one memory, with and without another part of it there.
TEST_P(CudaPrecondition, GradientsInOneMemoryAreSummed) {
  Context cuda = cuda_context(), reference = reference_context();
  Problem problem(std::get<1>(GetParam()), std::get<0>(GetParam()));
  const Precondition& in = problem.in;
  Random random(12);
  const Tensor other = normal(in.k.shape(), random).to(in.k.dtype());
  PreconditionGrads expected;
  expected.k = wide_like(in.k);
  expected.target = wide_like(in.target);
  precondition_vjp(reference, problem.sequences, problem.widened(),
                   {wide(problem.cot.out), wide(problem.cot.final)}, expected);

  problem.upload(cuda);
  const std::vector<Tensor> got = run_in_two_orders(cuda, [&] {
    const std::int64_t numbers = precondition_saved(cuda, problem.sequences, in);
    const Tensor saved = output_like(Tensor::empty({numbers}, Dtype::f32), cuda);
    precondition(cuda, problem.sequences, in, {output_like(in.target, cuda), {}, saved});
    std::vector<Tensor> results;
    for (const bool with_saved : {false, true}) {
      PreconditionCotangents cot = problem.cot;
      if (with_saved) cot.saved = saved;
      PreconditionGrads joined, all, apart;
      joined.k = joined.target = output_like(in.k, cuda);
      precondition_vjp(cuda, problem.sequences, in, cot, joined);
      cot.k = all.k = all.target = to_device(other, cuda);
      precondition_vjp(cuda, problem.sequences, in, cot, all);
      cot.k = apart.k = to_device(other, cuda);
      apart.target = output_like(in.target, cuda);
      precondition_vjp(cuda, problem.sequences, in, cot, apart);
      for (const Tensor& gradient : {joined.k, all.k, apart.k, apart.target}) {
        results.push_back(gradient);
      }
    }
    return results;
  });
  const Tensor more = wide(other);
  for (std::size_t first = 0; first < got.size(); first += 4) {
    expect_close("dk + dtarget", got[first], sum_of({expected.k, expected.target}), kBound);
    expect_close("all", got[first + 1], sum_of({expected.k, expected.target, more}), kBound);
    expect_close("dk + other", got[first + 2], sum_of({expected.k, more}), kBound);
    expect_close("dtarget", got[first + 3], expected.target, kBound);
  }
}

INSTANTIATE_TEST_SUITE_P(Settings, CudaPrecondition,
                         testing::Combine(testing::Values(Dtype::f32, Dtype::bf16, Dtype::f16),
                                          testing::ValuesIn(settings())));

TEST(CudaPreconditionEdges, EmptySequenceKeepsItsState) {
  RANKONE_NEEDS_CUDA();
  Context cuda = cuda_context();
  const std::array<std::int64_t, 2> none{0, 0};
  Precondition in;
  in.k = in.target = to_device(Tensor::empty({0, 1, 4}, Dtype::f32), cuda);
  in.center = to_device(Tensor::zeros({1}, Dtype::f32), cuda);
  in.initial = to_device(filled({1, 1, 4}, [] { return 3.5; }), cuda);
  const PreconditionOut out{in.k, output_like(in.initial, cuda)};
  precondition(cuda, Sequences::packed(none), in, out);
  EXPECT_TRUE(same_bits("final", to_host(out.final, cuda), to_host(in.initial, cuda)));
}

// A sequence gives the same bits whatever its neighbours, were they NaN.
TEST(CudaPreconditionEdges, NeighboursDoNotMatter) {
  RANKONE_NEEDS_CUDA();
  Context cuda = cuda_context();
  Problem problem({PreconditionerKind::atk, true, true, true, 32, {0, 70, 170, 200}}, Dtype::f32);
  const auto run = [&] {
    Problem copy = problem;
    copy.upload(cuda);
    const PreconditionOut out{output_like(copy.in.k, cuda), output_like(copy.cot.final, cuda)};
    precondition(cuda, copy.sequences, copy.in, out);
    const PreconditionGrads grads{
        output_like(copy.in.k, cuda),      {}, output_like(copy.in.g, cuda), {}, {}, {},
        output_like(copy.in.initial, cuda)};
    precondition_vjp(cuda, copy.sequences, copy.in, copy.cot, grads);
    std::vector<Tensor> rows;
    for (const Tensor& tensor : {out.out, grads.k, grads.g}) {
      rows.push_back(to_host(tensor, cuda).slice(0, 70, 170).clone());
    }
    rows.push_back(to_host(out.final, cuda).slice(0, 1, 2).clone());
    rows.push_back(to_host(grads.initial, cuda).slice(0, 1, 2).clone());
    return rows;
  };
  const std::vector<Tensor> before = run();
  problem.in.k = problem.in.k.clone();
  problem.in.k.slice(0, 0, 70).fill(std::numeric_limits<double>::quiet_NaN());
  problem.in.g = problem.in.g.clone();
  problem.in.g.slice(0, 170, 200).fill(std::numeric_limits<double>::quiet_NaN());
  problem.in.target = problem.in.k;
  const std::vector<Tensor> after = run();
  for (std::size_t i = 0; i < before.size(); ++i) {
    EXPECT_TRUE(same_bits("result " + std::to_string(i), before[i], after[i]));
  }
}

}  // namespace
}  // namespace rankone::test
