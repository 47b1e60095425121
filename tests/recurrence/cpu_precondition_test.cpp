// The diagonal preconditioner in float32 against float64.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "recurrence/backend.hpp"
#include "tests/cases/compare.hpp"
#include "tests/cases/tensors.hpp"

namespace rankone::test {
namespace {

using recurrence::Precondition;
using recurrence::PreconditionCotangents;
using recurrence::PreconditionerKind;
using recurrence::PreconditionGrads;
using recurrence::PreconditionOut;

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
  PreconditionCotangents cotangents;

  explicit Problem(const Setting& s) : sequences(Sequences::packed(s.cu_seqlens)) {
    Random random(11);
    const std::int64_t rows = sequences.rows(), heads = 2;
    in.kind = s.kind;
    in.normalize = s.normalize;
    in.k = normal({rows, heads, s.d_k}, random);
    if (!s.normalize) normalise_rows(in.k, s.d_k);
    in.target = s.kind == PreconditionerKind::atk ? in.k : normal({rows, heads, s.d_k}, random);
    if (s.gates) {
      in.g = weak_gates({rows, heads}, random);
      in.b = uniform({rows, heads}, random, 0, 1);
    }
    if (s.kind == PreconditionerKind::atk) {
      in.center = uniform({heads}, random, -1, 1);
    } else {
      in.ridge = uniform({heads, s.d_k}, random, 0.2, 1);
    }
    if (s.initial) in.initial = uniform({sequences.count(), heads, s.d_k}, random, 0, 1);
    cotangents.out = normal({rows, heads, s.d_k}, random);
    cotangents.final = normal({sequences.count(), heads, s.d_k}, random);
  }

  Precondition widened() const {
    Precondition result = in;
    for (Tensor* tensor : {&result.k, &result.target, &result.g, &result.b, &result.center,
                           &result.ridge, &result.initial}) {
      *tensor = wide(*tensor);
    }
    return result;
  }
};

std::vector<Setting> settings() {
  std::vector<Setting> list;
  for (const PreconditionerKind kind : {PreconditionerKind::atk, PreconditionerKind::atq}) {
    for (const bool on : {false, true}) {
      list.push_back({kind, on, true, true, 48, {0, 1, 64, 64, 193}});
      list.push_back({kind, !on, on, !on, 7, {0, 65}});
    }
    list.push_back({kind, true, true, true, 128, {0, 150}});
    list.push_back({kind, false, true, true, 1, {0, 3, 20}});
  }
  return list;
}

class CpuPrecondition : public testing::TestWithParam<Setting> {
 protected:
  const Problem problem_{GetParam()};
  const Precondition wide_ = problem_.widened();
  Context reference_{{.threads = 1, .backends = {"reference"}}};
  Context cpu_{{.threads = 2, .backends = {"cpu"}}};
};

void expect_close(const char* name, const Tensor& result, const Tensor& expected) {
  if (!result.defined()) return;
  EXPECT_LE(relative_error(result, expected), kBound) << name;
}

TEST_P(CpuPrecondition, Forward) {
  const Precondition& in = problem_.in;
  const PreconditionOut out{nan_like(in.target), nan_like(problem_.cotangents.final)};
  const PreconditionOut expected{nan_like(wide(in.target)), wide(problem_.cotangents.final)};
  recurrence::precondition(cpu_, problem_.sequences, in, out);
  recurrence::precondition(reference_, problem_.sequences, wide_, expected);
  expect_close("out", out.out, expected.out);
  expect_close("final", out.final, expected.final);
}

TEST_P(CpuPrecondition, Backward) {
  const auto gradients = [](const Precondition& in) {
    return PreconditionGrads{nan_like(in.k),      nan_like(in.target), nan_like(in.g),
                             nan_like(in.b),      nan_like(in.center), nan_like(in.ridge),
                             nan_like(in.initial)};
  };
  const PreconditionGrads grads = gradients(problem_.in);
  const PreconditionGrads expected = gradients(wide_);
  const PreconditionCotangents& cot = problem_.cotangents;
  recurrence::precondition_vjp(cpu_, problem_.sequences, problem_.in, cot, grads);
  recurrence::precondition_vjp(reference_, problem_.sequences, wide_,
                               {wide(cot.out), wide(cot.final)}, expected);
  expect_close("dk", grads.k, expected.k);
  expect_close("dtarget", grads.target, expected.target);
  expect_close("dg", grads.g, expected.g);
  expect_close("db", grads.b, expected.b);
  expect_close("dcenter", grads.center, expected.center);
  expect_close("dridge", grads.ridge, expected.ridge);
  expect_close("dinitial", grads.initial, expected.initial);
}

// The gradients of k and the target in one memory, with and without another part of it there.
TEST_P(CpuPrecondition, GradientsInOneMemoryAreSummed) {
  const PreconditionCotangents& cot = problem_.cotangents;
  const PreconditionCotangents exact{wide(cot.out), wide(cot.final)};
  Random random(12);
  const Tensor other = normal(problem_.in.k.shape(), random);
  PreconditionGrads parts;
  parts.k = nan_like(wide_.k);
  parts.target = nan_like(wide_.target);
  recurrence::precondition_vjp(reference_, problem_.sequences, wide_, exact, parts);
  const auto check = [&](Context& context, const Precondition& in, PreconditionCotangents from,
                         double bound) {
    for (const bool joined : {false, true}) {
      for (const bool more : {false, true}) {
        PreconditionGrads grads;
        grads.k = more ? other.to(in.k.dtype()).clone() : nan_like(in.k);
        grads.target = joined ? grads.k : nan_like(in.target);
        from.k = more ? grads.k : Tensor();
        recurrence::precondition_vjp(context, problem_.sequences, in, from, grads);
        const Tensor expected = parts.k.clone();
        for (std::int64_t i = 0; i < expected.count(); ++i) {
          if (joined) expected.data<double>()[i] += parts.target.data<double>()[i];
          if (more) expected.data<double>()[i] += other.data<float>()[i];
        }
        EXPECT_LE(relative_error(grads.k.to(Dtype::f32), expected), bound) << joined << more;
        if (!joined) {
          EXPECT_LE(relative_error(grads.target.to(Dtype::f32), parts.target), bound);
        }
      }
    }
  };
  check(reference_, wide_, exact, 1e-7);
  check(cpu_, problem_.in, cot, kBound);
}

INSTANTIATE_TEST_SUITE_P(Settings, CpuPrecondition, testing::ValuesIn(settings()));

// One call gives the bits of two, whether a head is one task or several, and whether the rows of
// the preconditioner are wanted or not.
TEST_P(CpuPrecondition, OneCallWithTheRecurrence) {
  const Precondition& in = problem_.in;
  const std::int64_t rows = problem_.sequences.rows(), states = problem_.sequences.count();
  const bool query = in.kind == PreconditionerKind::atq;
  constexpr std::int64_t kHeads = 2, kWidth = 80;
  for (const std::int64_t group : {1, 2}) {
    Random random(5);
    const std::int64_t value_heads = kHeads * group;
    recurrence::TwoKey two_key;
    two_key.q = query ? Tensor() : normal({rows, kHeads, in.k.dim(-1)}, random);
    two_key.w = query ? unit_rows({rows, kHeads, in.k.dim(-1)}, random) : Tensor();
    // Against keys of any norm, so that the state stays finite.
    two_key.e = unit_rows({rows, kHeads, in.k.dim(-1)}, random);
    two_key.b = uniform({rows, value_heads}, random, 0, 0.05);
    two_key.v = normal({rows, value_heads, kWidth}, random);
    two_key.g = weak_gates({rows, value_heads}, random);
    two_key.initial_state = normal({states, value_heads, in.k.dim(-1), kWidth}, random);
    const auto outputs = [&] {
      return recurrence::TwoKeyOut{nan_like(two_key.v), nan_like(two_key.initial_state)};
    };
    const PreconditionOut made{nan_like(in.target), nan_like(problem_.cotangents.final)};
    const recurrence::TwoKeyOut expected = outputs();
    recurrence::TwoKey complete = two_key;
    (query ? complete.q : complete.w) = made.out;
    recurrence::precondition(cpu_, problem_.sequences, in, made);
    recurrence::two_key(cpu_, problem_.sequences, complete, expected);
    for (const float o : expected.o.span<float>()) ASSERT_TRUE(std::isfinite(o));
    for (const int threads : {1, 8}) {
      for (const bool wanted : {false, true}) {
        Context context({.threads = threads, .backends = {"cpu"}});
        const PreconditionOut keys{wanted ? nan_like(in.target) : Tensor(),
                                   nan_like(problem_.cotangents.final)};
        const recurrence::TwoKeyOut out = outputs();
        recurrence::preconditioned_two_key(context, problem_.sequences, in, keys, two_key, out);
        EXPECT_TRUE(same_bits("o", out.o, expected.o)) << group << " " << threads;
        EXPECT_TRUE(same_bits("S", out.final_state, expected.final_state)) << threads;
        EXPECT_TRUE(same_bits("A", keys.final, made.final)) << threads;
        if (wanted) {
          EXPECT_TRUE(same_bits("made", keys.out, made.out)) << threads;
        }
      }
    }
  }
}

// The factor alone: the states go through all magnitudes, one row each, whatever the range.
TEST(CpuPreconditionFactor, IsWithinARoundingError) {
  constexpr std::int64_t kRows = 4000, kChannels = 16;
  Context cpu({.threads = 1, .backends = {"cpu"}});
  Context reference({.threads = 1, .backends = {"reference"}});
  for (const double x : {1.0, 1.5, 1.64, 2.0, 100.0}) {
    for (const double center : {-14.0, -2.0, 0.0, 0.7, 20.0}) {
      Random random(3);
      Precondition in;
      in.k = in.target = Tensor::empty({kRows, 1, kChannels}, Dtype::f32);
      for (float& key : in.k.span<float>()) {
        key = static_cast<float>(std::exp(random.uniform(-12, 12)));
      }
      in.g = filled({kRows, 1}, [] { return -100.0; });  // nothing is remembered
      in.center = filled({1}, [&] { return center; });
      in.x = x;
      Precondition exact = in;
      for (Tensor* tensor : {&exact.k, &exact.target, &exact.g, &exact.center}) {
        *tensor = wide(*tensor);
      }
      const PreconditionOut out{nan_like(in.k), {}}, expected{nan_like(exact.k), {}};
      const Sequences sequences = Sequences::dense(1, kRows);
      recurrence::precondition(cpu, sequences, in, out);
      recurrence::precondition(reference, sequences, exact, expected);
      double worst = 0;
      for (std::int64_t i = 0; i < out.out.count(); ++i) {
        const double y = expected.out.data<double>()[i];
        worst = std::max(worst, std::abs(out.out.data<float>()[i] - y) / y);
      }
      // Rounding, the squash and the exponential; then the logarithm, which near the center has an
      // ulp of it, and of which the factor sees log x.
      EXPECT_LE(worst, 2e-7 + 1.5e-7 * (1 + std::abs(center)) * std::log(x))
          << "x " << x << " center " << center;
    }
  }
}

TEST(CpuPreconditionEdges, EmptySequenceKeepsItsState) {
  Context context({.threads = 1, .backends = {"cpu"}});
  const std::array<std::int64_t, 2> none{0, 0};
  Precondition in;
  in.k = in.target = Tensor::empty({0, 1, 4}, Dtype::f32);
  in.center = Tensor::zeros({1}, Dtype::f32);
  in.initial = filled({1, 1, 4}, [] { return 3.5; });
  const PreconditionOut out{Tensor::empty({0, 1, 4}, Dtype::f32), nan_like(in.initial)};
  recurrence::precondition(context, Sequences::packed(none), in, out);
  EXPECT_TRUE(same_bits("final", out.final, in.initial));
}

}  // namespace
}  // namespace rankone::test
