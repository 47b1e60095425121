// Exact properties of the recurrence: the state as a dictionary, scaling, permutation, packing,
// splitting; and what the reference backend does with memory, dtypes and threads.

#include "recurrence/recurrence.hpp"
#include "support/recurrence_support.hpp"

namespace rankone::test {
namespace {

using namespace rankone::recurrence;

TwoKey converted(const TwoKey& in, Dtype dtype) {
  TwoKey result = in;
  for (Tensor* tensor :
       {&result.q, &result.e, &result.w, &result.v, &result.g, &result.b, &result.initial_state}) {
    if (tensor->defined()) *tensor = tensor->to(dtype);
  }
  return result;
}

// The rows of one sequence of a call, as a call of its own.
TwoKey part(const TwoKey& in, std::int64_t begin, std::int64_t end, const Tensor& initial) {
  TwoKey result = in;
  for (Tensor* tensor : {&result.q, &result.e, &result.w, &result.v, &result.g, &result.b}) {
    *tensor = rows(*tensor, begin, end);
  }
  result.initial_state = initial;
  return result;
}

// ---- Exact on every backend --------------------------------------------------------------------

class ExactTwoKey : public testing::TestWithParam<const char*> {
 protected:
  Context context = make_context(GetParam(), 2);
  Dtype dtype = std::string_view(GetParam()) == "reference" ? Dtype::f64 : Dtype::f32;
};

// One-hot keys, gain 1, no decay, integers: the state is a dictionary.
TEST_P(ExactTwoKey, StateIsADictionary) {
  Random random(1);
  const Sizes sizes{150, 2, 4, 16, 8};
  TwoKey in;
  in.q = filled(sizes.keys(), 0.0);
  in.e = filled(sizes.keys(), 0.0);
  in.v = filled(sizes.values(), 0.0);
  in.b = filled(sizes.gates(), 1.0);
  Tensor expected = filled(sizes.values(), 0.0);
  std::vector<double> table(static_cast<std::size_t>(4 * 16 * 8), 0.0);
  for (std::int64_t t = 0; t < sizes.R; ++t) {
    for (std::int64_t h = 0; h < sizes.H; ++h) {
      const auto key = static_cast<std::int64_t>(random.below(16));
      const auto query = static_cast<std::int64_t>(random.below(16));
      in.e.data<double>()[(t * 2 + h) * 16 + key] = 1.0;
      in.q.data<double>()[(t * 2 + h) * 16 + query] = 1.0;
      for (std::int64_t head = h * 2; head < h * 2 + 2; ++head) {
        const bool written = random.below(4) != 0;  // else gain 0: the state is unchanged
        in.b.data<double>()[t * 4 + head] = written ? 1.0 : 0.0;
        for (std::int64_t j = 0; j < 8; ++j) {
          const std::int64_t at = (t * 4 + head) * 8 + j;
          in.v.data<double>()[at] = static_cast<double>(random.below(200)) - 100.0;
          const auto slot = [&](std::int64_t k) {
            return static_cast<std::size_t>((head * 16 + k) * 8 + j);
          };
          if (written) table[slot(key)] = in.v.data<double>()[at];
          expected.data<double>()[at] = table[slot(query)];
        }
      }
    }
  }
  in.w = in.e;
  const TwoKeyResult result =
      run_two_key(context, Sequences::dense(1, sizes.R), converted(in, dtype));
  EXPECT_EQ(difference(result.o, expected), 0.0);
  EXPECT_EQ(difference(result.state, Tensor::of<double>(table, {1, 4, 16, 8})), 0.0);
}

TEST_P(ExactTwoKey, PowersOfTwoScaleExactly) {
  Random random(2);
  const Sizes sizes{70, 2, 2, 16, 8};
  const TwoKey in = converted(random_delta(random, sizes), dtype);
  const Sequences sequences = Sequences::dense(1, sizes.R);
  const TwoKeyResult plain = run_two_key(context, sequences, in);
  TwoKey scaled = in;
  scaled.v = times(in.v, 1024.0).to(dtype);
  scaled.initial_state = times(in.initial_state, 1024.0).to(dtype);
  const TwoKeyResult large = run_two_key(context, sequences, scaled);
  EXPECT_EQ(difference(large.o, times(plain.o, 1024.0)), 0.0);
  EXPECT_EQ(difference(large.state, times(plain.state, 1024.0)), 0.0);
}

TEST_P(ExactTwoKey, HeadsAndSequencesPermute) {
  Random random(3);
  const std::int64_t B = 3, T = 40, H = 2;
  const Sizes sizes{B * T, H, H, 16, 8};
  TwoKey in = random_delta(random, sizes);
  in.initial_state = normal(random, sizes.states(B));
  in = converted(in, dtype);
  const Sequences sequences = Sequences::dense(B, T);
  const TwoKeyResult plain = run_two_key(context, sequences, in);
  // Heads swapped, sequences rotated: element (b, ..., h, ...) comes from (b + 1, ..., 1 - h, ...).
  const auto permuted = [&](const Tensor& a, bool state) {
    Tensor result = a.clone();
    const std::int64_t inner = a.count() / (state ? B * H : B * T * H);
    const Shape shape{B, state ? 1 : T, H, inner};
    const Tensor from = a.reshape(shape), to = result.reshape(shape);
    for (std::int64_t b = 0; b < B; ++b) {
      for (std::int64_t h = 0; h < H; ++h) {
        to.slice(0, b, b + 1)
            .slice(2, h, h + 1)
            .copy_from(from.slice(0, (b + 1) % B, (b + 1) % B + 1).slice(2, 1 - h, 2 - h));
      }
    }
    return result;
  };
  TwoKey moved = in;
  for (Tensor* tensor : {&moved.q, &moved.e, &moved.w, &moved.v, &moved.g, &moved.b}) {
    *tensor = permuted(*tensor, false);
  }
  moved.w = moved.e;
  moved.initial_state = permuted(in.initial_state, true);
  const TwoKeyResult result = run_two_key(context, sequences, moved);
  EXPECT_TRUE(same_bits(result.o, permuted(plain.o, false)));
  EXPECT_TRUE(same_bits(result.state, permuted(plain.state, true)));
}

TEST_P(ExactTwoKey, PackedSequencesEqualSingleOnes) {
  Random random(4);
  const std::vector<std::int64_t> cu_seqlens = {0, 0, 70, 71, 71, 140, 150};
  const Sizes sizes{150, 2, 4, 16, 8};
  const auto N = static_cast<std::int64_t>(cu_seqlens.size()) - 1;
  TwoKey in = random_delta(random, sizes);
  in.initial_state = normal(random, sizes.states(N));
  in = converted(in, dtype);
  const TwoKeyResult packed = run_two_key(context, Sequences::packed(cu_seqlens), in);
  for (std::int64_t i = 0; i < N; ++i) {
    const std::int64_t begin = cu_seqlens[static_cast<std::size_t>(i)],
                       end = cu_seqlens[static_cast<std::size_t>(i) + 1];
    const Tensor initial = rows(in.initial_state, i, i + 1);
    const TwoKeyResult single =
        run_two_key(context, Sequences::dense(1, end - begin), part(in, begin, end, initial));
    EXPECT_TRUE(same_bits(single.o, rows(packed.o, begin, end)));
    EXPECT_TRUE(same_bits(single.state, rows(packed.state, i, i + 1)));
    if (begin == end) {
      EXPECT_TRUE(same_bits(single.state, initial));  // an empty sequence
    }
  }
}

TEST_P(ExactTwoKey, NotANumberStaysInItsSequenceAndHead) {
  Random random(5);
  const Sizes sizes{60, 2, 2, 16, 8};
  TwoKey in = random_delta(random, sizes);
  in.initial_state = normal(random, sizes.states(3));
  in = converted(in, dtype);
  const Sequences sequences = Sequences::dense(3, 20);
  const TwoKeyResult clean = run_two_key(context, sequences, in);
  TwoKey dirty = in;
  dirty.v = in.v.clone();
  dirty.v.slice(0, 25, 26).slice(1, 1, 2).fill(NAN);  // sequence 1, head 1
  const TwoKeyResult result = run_two_key(context, sequences, dirty);
  for (std::int64_t n = 0; n < 3; ++n) {
    for (std::int64_t h = 0; h < 2; ++h) {
      const auto of = [&](const Tensor& o) {
        return o.slice(0, n * 20, n * 20 + 20).slice(1, h, h + 1).clone();
      };
      if (n == 1 && h == 1) {
        EXPECT_TRUE(std::isnan(largest(of(result.o))));
      } else {
        EXPECT_TRUE(same_bits(of(result.o), of(clean.o)));
      }
    }
  }
}

TEST_P(ExactTwoKey, StateIsUpdatedInPlace) {
  Random random(6);
  const Sizes sizes{30, 2, 4, 16, 8};
  const TwoKey in = converted(random_delta(random, sizes), dtype);
  const Sequences sequences = Sequences::dense(1, 30);
  const TwoKeyResult apart = run_two_key(context, sequences, in);
  TwoKey same = in;
  same.initial_state = in.initial_state.clone();
  const Tensor o = filled(in.v.shape(), NAN, dtype);
  two_key(context, sequences, same, {o, same.initial_state});
  EXPECT_TRUE(same_bits(o, apart.o));
  EXPECT_TRUE(same_bits(same.initial_state, apart.state));
}

INSTANTIATE_TEST_SUITE_P(Backends, ExactTwoKey, testing::Values("reference", "cpu"),
                         [](const auto& suite) { return std::string(suite.param); });

// ---- The reference -----------------------------------------------------------------------------

// Half-lives and integers: every sum is a float64, so the result is exact.
TEST(Reference, HalvingIsExact) {
  Context context = make_context();
  const std::int64_t T = 20;
  TwoKey in;
  in.q = in.w = filled({T, 1, 1}, 1.0);
  in.v = filled({T, 1, 1}, 3.0);
  in.g = filled({T, 1}, std::log(0.5));
  const TwoKeyResult result = run_two_key(context, Sequences::dense(1, T), in);
  double state = 0.0;
  for (std::int64_t t = 0; t < T; ++t) {
    state = 0.5 * state + 3.0;
    EXPECT_EQ(result.o.data<double>()[t], state);
  }
}

// A whole call, and the same rows in pieces with the carried state.
TEST(Reference, SplitsAndStepsEqualTheWhole) {
  Random random(7);
  Context context = make_context();
  const Sizes sizes{40, 2, 4, 6, 5};
  const TwoKey in = random_delta(random, sizes);
  const TwoKeyResult whole = run_two_key(context, Sequences::dense(1, 40), in);
  for (const std::vector<std::int64_t>& cuts :
       {std::vector<std::int64_t>{0, 1, 40}, {0, 20, 20, 40}, {0, 39, 40}, {0, 7, 8, 9, 30, 40}}) {
    Tensor state = in.initial_state.clone();
    for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
      const TwoKeyResult piece = run_two_key(context, Sequences::dense(1, cuts[i + 1] - cuts[i]),
                                             part(in, cuts[i], cuts[i + 1], state));
      EXPECT_TRUE(same_bits(piece.o, rows(whole.o, cuts[i], cuts[i + 1])));
      state = piece.state;
    }
    EXPECT_TRUE(same_bits(state, whole.state));
  }
  Tensor state = in.initial_state.clone();
  for (std::int64_t t = 0; t < 40; ++t) {  // one token at a time, in place
    const Tensor o = filled({1, 4, 5}, NAN);
    two_key(context, Sequences::dense(1, 1), part(in, t, t + 1, state), {o, state});
    EXPECT_TRUE(same_bits(o, rows(whole.o, t, t + 1)));
  }
  EXPECT_TRUE(same_bits(state, whole.state));
}

TEST(Reference, PreconditionerStepsEqualTheWhole) {
  Random random(8);
  Context context = make_context();
  const Sizes sizes{20, 2, 2, 4, 3};
  for (const auto kind :
       {PreconditionerKind::atk, PreconditionerKind::atq, PreconditionerKind::gram}) {
    Precondition in;
    in.kind = kind;
    in.normalize = true;
    in.k = normal(random, sizes.keys());
    in.target = normal(random, sizes.keys());
    in.g = uniform(random, sizes.gates(), -0.5, 0.0);
    in.b = uniform(random, sizes.gates(), 0.0, 1.0);
    if (kind == PreconditionerKind::atk) {
      in.center = filled({2}, -0.2);
    } else {
      in.ridge = filled({2, 4}, 0.6);
    }
    const Shape shape = kind == PreconditionerKind::gram ? Shape{1, 2, 4, 4} : Shape{1, 2, 4};
    const PreconditionOut whole{filled(sizes.keys(), NAN), filled(shape, NAN)};
    precondition(context, Sequences::dense(1, 20), in, whole);
    Tensor state;  // undefined at first: the state of a new sequence
    for (std::int64_t t = 0; t < 20; ++t) {
      Precondition step = in;
      for (Tensor* tensor : {&step.k, &step.target, &step.g, &step.b}) {
        *tensor = rows(*tensor, t, t + 1);
      }
      step.initial = state;
      if (!state.defined()) state = filled(shape, NAN);
      const Tensor out = filled({1, 2, 4}, NAN);
      precondition(context, Sequences::dense(1, 1), step, {out, state});
      EXPECT_TRUE(same_bits(out, rows(whole.out, t, t + 1)));
    }
    EXPECT_TRUE(same_bits(state, whole.final));
  }
}

TEST(Reference, MesaAndLonghornStepsEqualTheWhole) {
  Random random(9);
  Context context = make_context();
  const Sizes sizes{20, 2, 2, 4, 3};
  Mesa in;
  in.q = normal(random, sizes.keys());
  in.k = normal(random, sizes.keys());
  in.v = normal(random, sizes.values());
  in.g = uniform(random, sizes.gates(), -0.5, 0.0);
  in.b = uniform(random, sizes.gates(), 0.0, 1.0);
  in.lambda = filled({2, 4}, 0.8);
  const MesaOut whole{filled(sizes.values(), NAN), filled({1, 2, 4, 4}, NAN),
                      filled({1, 2, 4, 3}, NAN)};
  mesa(context, Sequences::dense(1, 20), in, whole);
  const Tensor hkk = filled({1, 2, 4, 4}, 0.0), hkv = filled({1, 2, 4, 3}, 0.0);
  Longhorn scan{in.q, in.k, in.v, uniform(random, sizes.values(), 0.1, 2.0), Tensor()};
  const LonghornOut scanned{filled(sizes.values(), NAN), filled(sizes.states(), NAN)};
  longhorn(context, Sequences::dense(1, 20), scan, scanned);
  const Tensor state = filled(sizes.states(), 0.0);
  for (std::int64_t t = 0; t < 20; ++t) {
    Mesa step = in;
    for (Tensor* tensor : {&step.q, &step.k, &step.v, &step.g, &step.b}) {
      *tensor = rows(*tensor, t, t + 1);
    }
    step.initial_hkk = hkk;
    step.initial_hkv = hkv;
    const Tensor o = filled({1, 2, 3}, NAN);
    mesa(context, Sequences::dense(1, 1), step, {o, hkk, hkv});
    EXPECT_TRUE(same_bits(o, rows(whole.o, t, t + 1)));
    longhorn(context, Sequences::dense(1, 1),
             {step.q, step.k, step.v, rows(scan.beta, t, t + 1), state}, {o, state});
    EXPECT_TRUE(same_bits(o, rows(scanned.o, t, t + 1)));
  }
  EXPECT_TRUE(same_bits(hkk, whole.final_hkk));
  EXPECT_TRUE(same_bits(hkv, whole.final_hkv));
  EXPECT_TRUE(same_bits(state, scanned.final_state));
}

// The time factors count from the positions, so that steps see the same t as the whole.
TEST(Reference, GainStepsEqualTheWhole) {
  Random random(10);
  Context context = make_context();
  const Sizes sizes{20, 2, 2, 4, 3};
  for (const auto factor : {TimeFactor::inv_t, TimeFactor::inv_sqrt_t, TimeFactor::inv_log_t}) {
    Gain in;
    in.x = normal(random, sizes.gates());
    in.time_factor = factor;
    GainOut whole;
    whole.b = filled(sizes.gates(), NAN);
    gain(context, Sequences::dense(1, 20), in, whole);
    for (std::int64_t t = 0; t < 20; ++t) {
      Gain step = in;
      step.x = rows(in.x, t, t + 1);
      step.positions = Tensor::of<std::int64_t>(std::vector<std::int64_t>{t}, {1});
      GainOut out;
      out.b = filled({1, 2}, NAN);
      gain(context, Sequences::dense(1, 1), step, out);
      EXPECT_TRUE(same_bits(out.b, rows(whole.b, t, t + 1)));
    }
  }
}

TEST(Reference, BitsDoNotDependOnThreads) {
  Random random(11);
  const Sizes sizes{90, 2, 4, 6, 5};
  const TwoKey in = random_delta(random, sizes);
  const Sequences sequences = Sequences::packed(std::vector<std::int64_t>{0, 10, 50, 90});
  TwoKey call = in;
  call.initial_state = normal(random, sizes.states(3));
  const TwoKeyCotangents cot{normal(random, sizes.values()), normal(random, sizes.states(3))};
  std::vector<TwoKeyGrads> results;
  for (const int threads : {1, 2, 5}) {
    Context context = make_context("reference", threads);
    const TwoKeyGrads grads{filled(sizes.keys(), NAN),   filled(sizes.keys(), NAN),
                            filled(sizes.keys(), NAN),   filled(sizes.values(), NAN),
                            filled(sizes.gates(), NAN),  filled(sizes.gates(), NAN),
                            filled(sizes.states(3), NAN)};
    two_key_vjp(context, sequences, call, cot, grads);
    results.push_back(grads);
    EXPECT_TRUE(same_bits(grads.q, results[0].q));
    EXPECT_TRUE(same_bits(grads.e, results[0].e));
    EXPECT_TRUE(same_bits(grads.w, results[0].w));
    EXPECT_TRUE(same_bits(grads.v, results[0].v));
    EXPECT_TRUE(same_bits(grads.g, results[0].g));
    EXPECT_TRUE(same_bits(grads.b, results[0].b));
    EXPECT_TRUE(same_bits(grads.initial_state, results[0].initial_state));
  }
}

// The gradients of e and w in one memory: summed, in float64, and rounded once.
TEST(Reference, GradientOfTiedKeysIsTheSum) {
  Random random(14);
  Context context = make_context();
  const Sizes sizes{20, 2, 4, 6, 5};
  const Sequences sequences = Sequences::dense(1, 20);
  const TwoKey in = random_delta(random, sizes);
  const TwoKeyCotangents cot{normal(random, sizes.values()), Tensor()};
  const auto gradient = [&](Dtype dtype, bool joined) {
    TwoKeyGrads grads;
    grads.e = filled(sizes.keys(), NAN).to(dtype);
    grads.w = joined ? grads.e : filled(sizes.keys(), NAN).to(dtype);
    TwoKeyCotangents rounded = cot;
    rounded.o = cot.o.to(dtype);
    two_key_vjp(context, sequences, converted(in, dtype), rounded, grads);
    return grads;
  };
  const TwoKeyGrads apart = gradient(Dtype::f64, false);
  Tensor sum = map(apart.e, apart.w, [](double e, double w) { return e + w; });
  EXPECT_LE(difference(gradient(Dtype::f64, true).e, sum), 1e-14);
  EXPECT_LE(difference(gradient(Dtype::f32, true).e.to(Dtype::f64), sum), 1e-6);
}

// Other dtypes are widened, computed in float64 and rounded once.
TEST(Reference, RoundsOnce) {
  Random random(12);
  Context context = make_context();
  const Sizes sizes{20, 2, 4, 6, 5};
  const Sequences sequences = Sequences::dense(1, 20);
  const TwoKey wide = random_delta(random, sizes);
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16, Dtype::f16}) {
    TwoKey narrow = converted(wide, dtype);
    narrow.initial_state = wide.initial_state.to(Dtype::f32);
    narrow.g = wide.g.to(Dtype::f32);  // gates may be f32 in a 16-bit call
    const TwoKeyResult got = run_two_key(context, sequences, narrow);
    const TwoKeyResult exact = run_two_key(context, sequences, converted(narrow, Dtype::f64));
    EXPECT_TRUE(same_bits(got.o, exact.o.to(dtype)));
    EXPECT_TRUE(same_bits(got.state, exact.state.to(Dtype::f32)));
  }
}

// A planning pass asks for exactly what a real one uses.
TEST(Reference, PlanningMeasuresTheScratch) {
  Random random(13);
  const Sizes sizes{20, 2, 4, 6, 5};
  const Sequences sequences = Sequences::dense(2, 10);
  TwoKey in = random_delta(random, sizes);
  in.initial_state = normal(random, sizes.states(2));
  in = converted(in, Dtype::f32);
  TwoKey planned = in;
  for (Tensor* tensor : {&planned.q, &planned.e, &planned.w, &planned.v, &planned.g, &planned.b,
                         &planned.initial_state}) {
    *tensor = Tensor::view(nullptr, tensor->shape(), tensor->dtype());
  }
  Context context = make_context();
  const auto backward = [&](const TwoKey& call, bool real) {
    const auto like = [&](const Shape& shape) {
      return real ? filled(shape, NAN, Dtype::f32) : Tensor::view(nullptr, shape, Dtype::f32);
    };
    two_key_vjp(context, sequences, call, {like(sizes.values()), Tensor()},
                {like(sizes.keys()), like(sizes.keys()), like(sizes.keys()), like(sizes.values()),
                 like(sizes.gates()), Tensor(), like(sizes.states(2))});
  };
  context.arena().set_planning(true);
  backward(planned, false);
  const std::size_t peak = context.arena().peak();
  EXPECT_GT(peak, 0U);
  context.arena().set_planning(false);
  std::vector<std::byte> memory(peak + 64);
  void* aligned = memory.data();
  std::size_t space = memory.size();
  ASSERT_NE(std::align(64, peak, aligned, space), nullptr);
  context.arena().adopt(aligned, peak);
  EXPECT_NO_THROW(backward(in, true));
}

}  // namespace
}  // namespace rankone::test
