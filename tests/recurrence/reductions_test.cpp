// The models of the family are settings of one recurrence: the normal forms N1 to N6 and the
// reductions R1 to R23, each between two ways to compute the same thing, in float64.

#include "recurrence/recurrence.hpp"
#include "support/dense_solve.hpp"
#include "support/recurrence_support.hpp"

namespace rankone::test {
namespace {

using namespace rankone::recurrence;

constexpr double kExact = 1e-12;  // a reduction that rounding alone separates

class Reductions : public testing::Test {
 protected:
  TwoKeyResult run(const TwoKey& in) { return run_two_key(context, sequences, in); }

  void expect_same(const TwoKey& a, const TwoKey& b, double tolerance = kExact) {
    const TwoKeyResult x = run(a), y = run(b);
    EXPECT_LE(difference(x.o, y.o), tolerance);
    EXPECT_LE(difference(x.state, y.state), tolerance);
  }
  void expect_bits(const TwoKey& a, const TwoKey& b) {
    const TwoKeyResult x = run(a), y = run(b);
    EXPECT_TRUE(same_bits(x.o, y.o));
    EXPECT_TRUE(same_bits(x.state, y.state));
  }

  // Keys whose norms spread over six decades; the first is zero.
  Tensor wild_keys() {
    Tensor k = unit_rows(normal(random, sizes.keys()));
    for (std::int64_t row = 0; row < sizes.R * sizes.H; ++row) {
      const double length = row < sizes.H ? 0.0 : std::pow(10.0, random.uniform(-3.0, 3.0));
      for (std::int64_t d = 0; d < sizes.K; ++d) k.data<double>()[row * sizes.K + d] *= length;
    }
    return k;
  }
  // |k|^2 per row and head.
  Tensor squares(const Tensor& e, const Tensor& w) {
    Tensor N = filled(sizes.gates(), 0.0);
    for (std::int64_t i = 0; i < e.count(); ++i) {
      N.data<double>()[i / sizes.K] += e.data<double>()[i] * w.data<double>()[i];
    }
    return N;
  }
  // The inputs after a gain.
  TwoKey with_gain(TwoKey in, GainKind kind, const Tensor& logits, double eps) {
    Gain g;
    g.kind = kind;
    if (kind != GainKind::nlms) g.x = logits;
    g.e = in.e;
    g.w = in.w;
    g.v = in.v;
    g.eps = eps;
    const GainOut out{filled(sizes.gates(), NAN), filled(sizes.keys(), NAN),
                      filled(sizes.keys(), NAN), filled(sizes.values(), NAN)};
    gain(context, sequences, g, out);
    in.e = out.e;
    in.w = out.w;
    in.v = out.v;
    in.b = out.b;
    return in;
  }
  Tensor preconditioned(const Precondition& in) {
    const Tensor out = filled(sizes.keys(), NAN);
    precondition(context, sequences, in, {out, Tensor()});
    return out;
  }
  // ATK of the keys with gates of its own.
  Precondition random_atk(const Tensor& k) {
    Precondition in;
    in.k = in.target = k;
    in.g = uniform(random, sizes.gates(), -0.3, 0.0);
    in.b = uniform(random, sizes.gates(), 0.0, 1.0);
    in.center = filled({sizes.H}, -0.2);
    return in;
  }
  static Tensor logit(const Tensor& p) {
    return map(p, [](double x) { return std::log(x / (1.0 - x)); });
  }
  Tensor one_hot_keys() {
    Tensor k = filled(sizes.keys(), 0.0);
    for (std::int64_t row = 0; row < sizes.R * sizes.H; ++row) {
      k.data<double>()[row * sizes.K + static_cast<std::int64_t>(random.below(6))] = 1.0;
    }
    return k;
  }

  Random random{1};
  Sizes sizes;
  Sequences sequences = Sequences::dense(1, 23);
  Context context = make_context();
};

// ---- Normal forms ------------------------------------------------------------------------------

TEST_F(Reductions, N1_DeltaWithoutEraseKeyIsAdditive) {
  TwoKey delta = random_delta(random, sizes), additive = delta;
  delta.e = filled(sizes.keys(), 0.0);
  additive.e = Tensor();
  expect_bits(delta, additive);
}

TEST_F(Reductions, N2_GainMovesBetweenKeysAndValue) {
  const TwoKey in = random_delta(random, sizes);
  const Tensor c = uniform(random, sizes.gates(), 0.5, 2.0);
  TwoKey scaled = in;
  scaled.w = times(in.w, spread(c, sizes.K));
  scaled.b = map(in.b, c, [](double b, double x) { return b / x; });
  expect_same(in, scaled);
  scaled = in;
  scaled.e = times(in.e, spread(c, sizes.K));
  scaled.v = times(in.v, spread(c, sizes.V));
  scaled.b = map(in.b, c, [](double b, double x) { return b / x; });
  expect_same(in, scaled);
  scaled = in;
  scaled.e = times(in.e, spread(in.b, sizes.K));
  scaled.v = times(in.v, spread(in.b, sizes.V));
  scaled.b = Tensor();
  expect_same(in, scaled);
}

TEST_F(Reductions, N3_FixedDiagonalRescalesTheState) {
  TwoKey in = random_delta(random, sizes);
  in.g = uniform(random, sizes.channel_gates(), -0.5, 0.0);  // commutes with a decay per channel
  const Tensor D = uniform(random, {sizes.K}, 0.5, 2.0);
  const auto scale_channels = [&](const Tensor& a, std::int64_t inner, bool divide) {
    Tensor result = a.clone();
    for (std::int64_t i = 0; i < a.count(); ++i) {
      const double d = D.data<double>()[i / inner % sizes.K];
      result.data<double>()[i] *= divide ? 1.0 / d : d;
    }
    return result;
  };
  TwoKey scaled = in;
  scaled.q = scale_channels(in.q, 1, true);
  scaled.e = scale_channels(in.e, 1, true);
  scaled.w = scale_channels(in.w, 1, false);
  scaled.initial_state = scale_channels(in.initial_state, sizes.V, false);
  const TwoKeyResult x = run(in), y = run(scaled);
  EXPECT_LE(difference(x.o, y.o), kExact);
  EXPECT_LE(difference(scale_channels(x.state, sizes.V, false), y.state), kExact);
}

TEST_F(Reductions, N4_NoGainAndNoDecayIsNoStep) {
  TwoKey in = random_delta(random, sizes);
  in.b = filled(sizes.gates(), 0.0);
  in.g = filled(sizes.gates(), 0.0);
  EXPECT_TRUE(same_bits(run(in).state, in.initial_state));
}

TEST_F(Reductions, N5_ValueColumnsAreIndependent) {
  const TwoKey in = random_delta(random, sizes);
  const TwoKeyResult whole = run(in);
  TwoKey half = in;
  half.v = in.v.slice(2, 1, 3).clone();
  half.initial_state = in.initial_state.slice(3, 1, 3).clone();
  const TwoKeyResult part = run(half);
  EXPECT_TRUE(same_bits(part.o, whole.o.slice(2, 1, 3).clone()));
  EXPECT_TRUE(same_bits(part.state, whole.state.slice(3, 1, 3).clone()));
}

// N6, splitting, is in reference_test.cpp.

// ---- Kaczmarz and its neighbours ---------------------------------------------------------------

TEST_F(Reductions, R1_KlaIsItsBoundedForm) {
  TwoKey raw = random_delta(random, sizes);
  raw.e = raw.w = wild_keys();
  const Tensor eta = uniform(random, sizes.gates(), 0.01, 0.99);
  raw.b = map(eta, squares(raw.e, raw.w), [](double x, double N) { return x / (N + 1e-6); });
  TwoKey bounded = raw;
  bounded.b = Tensor();
  expect_same(raw, with_gain(bounded, GainKind::kaczmarz, logit(eta), 1e-6));
}

TEST_F(Reductions, R2_KlaWithScaledValuesIsGdn) {
  TwoKey kla = random_delta(random, sizes);
  kla.e = kla.w = normal(random, sizes.keys());
  const Tensor eta = uniform(random, sizes.gates(), 0.01, 0.99);
  const Tensor n = map(squares(kla.e, kla.w), [](double N) { return std::sqrt(N + 1e-6); });
  TwoKey gdn = kla;
  gdn.e = gdn.w = map(kla.e, spread(n, sizes.K), [](double k, double x) { return k / x; });
  gdn.b = eta;
  kla.v = times(kla.v, spread(n, sizes.V));
  expect_same(with_gain(kla, GainKind::kaczmarz, logit(eta), 1e-6), gdn);
}

TEST_F(Reductions, R3_KlaAtFullGainIsNlmsAndStoresExactly) {
  TwoKey in = random_delta(random, sizes);
  in.e = in.w = in.q = normal(random, sizes.keys());
  in.g = Tensor();
  in.scale = 1.0;
  const TwoKey kla = with_gain(in, GainKind::kaczmarz, filled(sizes.gates(), 50.0), 0.0);
  const TwoKey nlms = with_gain(in, GainKind::nlms, Tensor(), 0.0);
  expect_same(kla, nlms);
  EXPECT_LE(difference(run(nlms).o, in.v), kExact);  // S_t^T k_t = v_t
}

// ---- Decay and preconditioner ------------------------------------------------------------------

TEST_F(Reductions, R4_R7_R12_EqualChannelsAreAScalarDecay) {
  TwoKey scalar = random_delta(random, sizes);
  TwoKey channel = scalar;
  channel.g = spread(scalar.g, sizes.K);
  expect_bits(scalar, channel);  // KDA -> GDN
  scalar.w = channel.w = preconditioned(random_atk(scalar.e));
  expect_bits(scalar, channel);  // PKDA -> PGDN
  scalar.e = channel.e = Tensor();
  scalar.b = channel.b = Tensor();
  expect_bits(scalar, channel);  // GLA -> Mamba-2
}

TEST_F(Reductions, R5_R7_R12_NoDecayIsZeroDecay) {
  TwoKey zero = random_delta(random, sizes);
  zero.g = filled(sizes.gates(), 0.0);
  TwoKey none = zero;
  none.g = Tensor();
  expect_bits(zero, none);  // GDN -> DeltaNet
  zero.w = none.w = preconditioned(random_atk(zero.e));
  expect_bits(zero, none);  // PGDN -> PDN
  zero.e = none.e = Tensor();
  expect_bits(zero, none);  // RetNet -> linear attention
}

TEST_F(Reductions, R6_SquashOfOneIsNoPreconditioner) {
  TwoKey plain = random_delta(random, sizes);
  Precondition atk = random_atk(plain.e);
  atk.x = 1.0;
  TwoKey preconditioner = plain;
  preconditioner.w = preconditioned(atk);
  expect_bits(plain, preconditioner);
  PreconditionGrads grads;
  grads.g = filled(sizes.gates(), NAN);
  grads.b = filled(sizes.gates(), NAN);
  grads.center = filled({sizes.H}, NAN);
  precondition_vjp(context, sequences, atk, {normal(random, sizes.keys()), Tensor()}, grads);
  EXPECT_EQ(largest(grads.g), 0.0);
  EXPECT_EQ(largest(grads.b), 0.0);
  EXPECT_EQ(largest(grads.center), 0.0);
}

TEST_F(Reductions, R8_EqualVectorGatesAreKda) {
  TwoKey kda = random_delta(random, sizes);
  kda.g = uniform(random, sizes.channel_gates(), -0.5, 0.0);
  kda.b = uniform(random, sizes.gates(), 0.01, 0.99);
  Gain vector;
  vector.kind = GainKind::vector;
  vector.x = spread(logit(kda.b), sizes.K);
  vector.x_v = spread(logit(kda.b), sizes.V);
  vector.e = kda.e;
  vector.v = kda.v;
  GainOut out;
  out.e = filled(sizes.keys(), NAN);
  out.v = filled(sizes.values(), NAN);
  gain(context, sequences, vector, out);
  TwoKey gdn2 = kda;
  gdn2.e = out.e;
  gdn2.v = out.v;
  gdn2.b = Tensor();
  expect_same(kda, gdn2);
}

// Every row twice: the second write has no gain and no decay.
TEST_F(Reductions, R9_DeltaProductWithOneLiveWriteIsGdn) {
  const TwoKey gdn = random_delta(random, sizes);
  TwoKey product = gdn;
  const auto doubled = [&](const Tensor& a, bool keep_second, bool keep_first = true) {
    Shape shape = a.shape();
    shape[0] *= 2;
    Tensor result = filled(shape, 0.0);
    const std::int64_t width = a.count() / a.dim(0);
    for (std::int64_t i = 0; i < a.count(); ++i) {
      const std::int64_t first = (i / width * 2) * width + i % width;
      if (keep_first) result.data<double>()[first] = a.data<double>()[i];
      if (keep_second) result.data<double>()[first + width] = a.data<double>()[i];
    }
    return result;
  };
  product.q = doubled(gdn.q, true, false);  // the query reads after the last write
  product.e = product.w = doubled(gdn.e, true);
  product.v = doubled(gdn.v, true);
  product.g = doubled(gdn.g, false);
  product.b = doubled(gdn.b, false);
  const TwoKeyResult x = run(gdn);
  const TwoKeyResult y = run_two_key(context, Sequences::dense(1, 2 * sizes.R), product);
  EXPECT_TRUE(same_bits(y.state, x.state));
  const Tensor last = y.o.reshape({sizes.R, 2, sizes.HV, sizes.V}).slice(1, 1, 2).clone();
  EXPECT_TRUE(same_bits(last.reshape(sizes.values()), x.o));
}

// Comba reads before the decay: e = p exp(-g).
TEST_F(Reductions, R10_CombaIsGdnWhereItsReadIsDecayed) {
  const TwoKey gdn = random_delta(random, sizes);
  const auto comba = [&](const Tensor& p) {
    TwoKey in = gdn;
    in.e = map(p, spread(gdn.g, sizes.K), [](double x, double g) { return x * std::exp(-g); });
    return in;
  };
  const Tensor decayed =
      map(gdn.e, spread(gdn.g, sizes.K), [](double x, double g) { return x * std::exp(g); });
  expect_same(comba(decayed), gdn);
  // With p = k^ the two differ, unless there is no decay.
  EXPECT_GT(difference(run(comba(gdn.e)).o, run(gdn).o), 1e-2);
  TwoKey still = gdn;
  still.g = filled(sizes.gates(), 0.0);
  TwoKey undecayed = comba(gdn.e);
  undecayed.g = still.g;
  undecayed.e = gdn.e;  // exp(-0) = 1
  expect_bits(undecayed, still);
}

// S = diag(exp g) S + bb (aa^T S) + k v^T, written out.
Tensor direct_dplr(const TwoKey& in, const Tensor& aa, const Tensor& bb, const Sizes& s,
                   const Tensor& o) {
  Tensor S = in.initial_state.clone();
  std::vector<double> read(static_cast<std::size_t>(s.V));
  for (std::int64_t t = 0; t < s.R; ++t) {
    for (std::int64_t h = 0; h < s.H; ++h) {
      double* state = S.data<double>() + h * s.K * s.V;
      const std::int64_t key = (t * s.H + h) * s.K, value = (t * s.H + h) * s.V;
      for (std::int64_t j = 0; j < s.V; ++j) {
        double sum = 0.0;
        for (std::int64_t d = 0; d < s.K; ++d) {
          sum += aa.data<double>()[key + d] * state[d * s.V + j];
        }
        read[static_cast<std::size_t>(j)] = sum;
        o.data<double>()[value + j] = 0.0;
      }
      for (std::int64_t d = 0; d < s.K; ++d) {
        for (std::int64_t j = 0; j < s.V; ++j) {
          double& x = state[d * s.V + j];
          x = std::exp(in.g.data<double>()[key + d]) * x +
              bb.data<double>()[key + d] * read[static_cast<std::size_t>(j)] +
              in.w.data<double>()[key + d] * in.v.data<double>()[value + j];
          o.data<double>()[value + j] += in.scale * in.q.data<double>()[key + d] * x;
        }
      }
    }
  }
  return S;
}

TEST_F(Reductions, R11_DplrIsTwoSubSteps) {
  TwoKey in = random_delta(random, sizes);
  in.g = uniform(random, sizes.channel_gates(), -0.5, 0.0);
  in.w = times(normal(random, sizes.keys()), 0.3);  // k
  Tensor aa = unit_rows(normal(random, sizes.keys()));
  Tensor bb = times(unit_rows(normal(random, sizes.keys())), -0.5);
  const auto interleaved = [&](const Tensor& first, const Tensor& second) {
    Shape shape = first.shape();
    shape[0] *= 2;
    Tensor result = filled(shape, 0.0);
    const std::int64_t width = first.count() / first.dim(0);
    for (std::int64_t i = 0; i < first.count(); ++i) {
      const std::int64_t at = (i / width * 2) * width + i % width;
      result.data<double>()[at] = first.data<double>()[i];
      result.data<double>()[at + width] = second.data<double>()[i];
    }
    return result;
  };
  const auto two_steps = [&](const Tensor& k, const Tensor& o) {
    const Tensor none = filled(sizes.keys(), 0.0);
    TwoKey steps = in;
    steps.q = interleaved(none, in.q);
    steps.g = interleaved(in.g, none);
    steps.e = interleaved(map(aa, in.g, [](double a, double g) { return a * std::exp(-g); }), none);
    steps.w = interleaved(times(bb, -1.0), k);
    steps.v = interleaved(filled(sizes.values(), 0.0), in.v);
    steps.b = Tensor();
    const TwoKeyResult result = run_two_key(context, Sequences::dense(1, 2 * sizes.R), steps);
    o.copy_from(result.o.reshape({sizes.R, 2, sizes.HV, sizes.V})
                    .slice(1, 1, 2)
                    .clone()
                    .reshape(sizes.values()));
    return result.state;
  };
  const Tensor o = filled(sizes.values(), NAN), expected = filled(sizes.values(), NAN);
  const Tensor state = two_steps(in.w, o);
  EXPECT_LE(difference(state, direct_dplr(in, aa, bb, sizes, expected)), kExact);
  EXPECT_LE(difference(o, expected), kExact);

  // DPLR -> KDA: aa = exp(g) * k^, bb = -beta k^, k = beta k^.
  TwoKey kda = in;
  kda.w = in.e;
  aa = map(in.e, in.g, [](double k, double g) { return std::exp(g) * k; });
  bb = times(times(in.e, spread(in.b, sizes.K)), -1.0);
  const Tensor kda_state = two_steps(times(in.e, spread(in.b, sizes.K)), o);
  const TwoKeyResult result = run(kda);
  EXPECT_LE(difference(kda_state, result.state), kExact);
  EXPECT_LE(difference(o, result.o), kExact);
}

TEST_F(Reductions, R12_RetNetIsAConstantDecay) {
  TwoKey retnet = random_delta(random, sizes);
  retnet.e = retnet.b = Tensor();
  retnet.g = filled(sizes.gates(), NAN);
  Decay fixed;
  fixed.form = DecayForm::fixed;
  decay(context, fixed, {retnet.g, Tensor()});
  TwoKey constant = retnet;
  constant.g = filled(sizes.gates(), 0.0);
  for (std::int64_t i = 0; i < constant.g.count(); ++i) {
    constant.g.data<double>()[i] = std::log(1.0 - std::pow(2.0, -5.0 - static_cast<double>(i % 2)));
  }
  expect_same(retnet, constant);
}

TEST_F(Reductions, R14_ConstantPreconditionerIsASymmetricModel) {
  TwoKey pkda = random_delta(random, sizes);
  pkda.g = uniform(random, sizes.channel_gates(), -0.5, 0.0);
  const Tensor B = uniform(random, {sizes.K}, 0.7, 1.4);
  const auto by = [&](const Tensor& a, std::int64_t inner, double power) {
    Tensor result = a.clone();
    for (std::int64_t i = 0; i < a.count(); ++i) {
      result.data<double>()[i] *= std::pow(B.data<double>()[i / inner % sizes.K], power);
    }
    return result;
  };
  pkda.w = by(pkda.e, 1, 1.0);
  TwoKey symmetric = pkda;
  symmetric.e = symmetric.w = by(pkda.e, 1, 0.5);
  symmetric.q = by(pkda.q, 1, 0.5);
  symmetric.initial_state = by(pkda.initial_state, sizes.V, -0.5);
  const TwoKeyResult x = run(pkda), y = run(symmetric);
  EXPECT_LE(difference(x.o, y.o), kExact);
  EXPECT_LE(difference(by(x.state, sizes.V, -0.5), y.state), kExact);
}

TEST_F(Reductions, R15_OneHotKeysTurnThePreconditionerIntoAGain) {
  TwoKey pdn = random_delta(random, sizes);
  pdn.g = Tensor();
  pdn.e = one_hot_keys();
  pdn.w = preconditioned(random_atk(pdn.e));
  TwoKey deltanet = pdn;
  deltanet.w = pdn.e;
  deltanet.b = times(pdn.b, squares(pdn.e, pdn.w));  // e . w = B_i
  expect_same(pdn, deltanet);
}

// ---- Implicit steps ----------------------------------------------------------------------------

// (M + beta k k^T) S = M S_prev + beta k v^T for diagonal M, token by token by a dense solve.
Tensor implicit_steps(const TwoKey& in, const Tensor& beta, const Tensor& M, const Sizes& s) {
  Tensor S = in.initial_state.clone();
  const auto K = static_cast<int>(s.K), V = static_cast<int>(s.V);
  for (std::int64_t t = 0; t < s.R; ++t) {
    for (std::int64_t h = 0; h < s.H; ++h) {
      double* state = S.data<double>() + h * s.K * s.V;
      const double* k = in.e.data<double>() + (t * s.H + h) * s.K;
      const double* m = M.data<double>() + (t * s.H + h) * s.K;
      const double* v = in.v.data<double>() + (t * s.H + h) * s.V;
      const double b = beta.data<double>()[t * s.H + h];
      std::vector<double> A, B;
      for (int i = 0; i < K; ++i) {
        for (int j = 0; j < K; ++j) A.push_back((i == j ? m[i] : 0.0) + b * k[i] * k[j]);
        for (int j = 0; j < V; ++j) B.push_back(m[i] * state[i * V + j] + b * k[i] * v[j]);
      }
      const std::vector<double> X = dense_solve(A, B, K, V);
      std::copy(X.begin(), X.end(), state);
    }
  }
  return S;
}

TEST_F(Reductions, R16_LonghornIsTheImplicitStep) {
  TwoKey in = random_delta(random, sizes);
  in.g = in.b = Tensor();
  in.e = in.w = normal(random, sizes.keys());
  const Tensor beta = uniform(random, sizes.gates(), 0.01, 0.99);
  const TwoKeyResult longhorn_gain = run(with_gain(in, GainKind::longhorn, logit(beta), 1e-6));
  EXPECT_LE(
      difference(longhorn_gain.state, implicit_steps(in, beta, filled(sizes.keys(), 1.0), sizes)),
      kExact);
}

TEST_F(Reductions, R22_PreconditionedLonghornIsTheImplicitStepInThatNorm) {
  TwoKey in = random_delta(random, sizes);
  in.g = in.b = Tensor();
  in.e = normal(random, sizes.keys());
  const Tensor P = uniform(random, sizes.keys(), 0.5, 2.0);
  in.w = times(P, in.e);
  const Tensor beta = uniform(random, sizes.gates(), 0.01, 0.99);
  const TwoKeyResult result = run(with_gain(in, GainKind::longhorn, logit(beta), 1e-6));
  const Tensor inverse = map(P, [](double x) { return 1.0 / x; });
  EXPECT_LE(difference(result.state, implicit_steps(in, beta, inverse, sizes)), kExact);
}

TEST_F(Reductions, R17_EflaIsTheExactFlow) {
  TwoKey in = random_delta(random, sizes);
  in.g = in.b = Tensor();
  in.e = in.w = normal(random, sizes.keys());
  const Tensor beta = uniform(random, sizes.gates(), 0.01, 0.99);
  const TwoKeyResult efla = run(with_gain(in, GainKind::efla, logit(beta), 1e-6));
  // dS/ds = k (v - S^T k)^T over [0, beta]: along k alone, y = S^T k obeys dy/ds = N (v - y). RK4
  // on the whole state, 400 steps a token.
  Tensor S = in.initial_state.clone();
  const std::int64_t K = sizes.K, V = sizes.V;
  const auto slope = [&](const std::vector<double>& state, const double* k, const double* v) {
    std::vector<double> result(state.size());
    for (std::int64_t j = 0; j < V; ++j) {
      double r = v[j];
      for (std::int64_t d = 0; d < K; ++d) r -= state[static_cast<std::size_t>(d * V + j)] * k[d];
      for (std::int64_t d = 0; d < K; ++d) result[static_cast<std::size_t>(d * V + j)] = k[d] * r;
    }
    return result;
  };
  const auto moved = [](std::vector<double> x, const std::vector<double>& by, double h) {
    for (std::size_t i = 0; i < x.size(); ++i) x[i] += h * by[i];
    return x;
  };
  for (std::int64_t row = 0; row < sizes.R * sizes.H; ++row) {
    double* state = S.data<double>() + row % sizes.H * K * V;
    const double* k = in.e.data<double>() + row * K;
    const double* v = in.v.data<double>() + row * V;
    const double h = beta.data<double>()[row] / 400.0;
    std::vector<double> x(state, state + K * V);
    for (int step = 0; step < 400; ++step) {
      const auto k1 = slope(x, k, v), k2 = slope(moved(x, k1, h / 2), k, v),
                 k3 = slope(moved(x, k2, h / 2), k, v), k4 = slope(moved(x, k3, h), k, v);
      for (std::size_t i = 0; i < x.size(); ++i) {
        x[i] += h / 6.0 * (k1[i] + 2.0 * k2[i] + 2.0 * k3[i] + k4[i]);
      }
    }
    std::copy(x.begin(), x.end(), state);
  }
  EXPECT_LE(difference(efla.state, S), 1e-9);  // the error of RK4
}

// Limits are first order: ten times closer, ten times smaller.
TEST_F(Reductions, R18_LonghornAndEflaBetweenDeltaNetAndNlms) {
  TwoKey in = random_delta(random, sizes);
  in.g = in.b = in.initial_state = Tensor();  // the output is proportional to the writes
  const Tensor unit = unit_rows(normal(random, sizes.keys()));
  const Tensor beta = uniform(random, sizes.gates(), 0.5, 0.9);
  const auto distance = [&](GainKind kind, double length, bool to_nlms) {
    TwoKey raw = in;
    raw.e = raw.w = times(unit, length);
    TwoKey limit = raw;
    limit.b = beta;  // DeltaNet on the raw keys
    if (to_nlms) limit = with_gain(raw, GainKind::nlms, Tensor(), 1e-12);
    const TwoKeyResult a = run(with_gain(raw, kind, logit(beta), 1e-12)), b = run(limit);
    return difference(a.o, b.o) / largest(b.o);
  };
  for (const GainKind kind : {GainKind::longhorn, GainKind::efla}) {
    const double near = distance(kind, 1e-3, false),
                 nearer = distance(kind, 1e-3 / std::sqrt(10.0), false);
    EXPECT_LT(near, 1e-5);
    EXPECT_NEAR(near / nearer, 10.0, 0.5);
  }
  const double far = distance(GainKind::longhorn, 1e2, true),
               farther = distance(GainKind::longhorn, 1e2 * std::sqrt(10.0), true);
  EXPECT_LT(far, 1e-2);
  EXPECT_NEAR(far / farther, 10.0, 0.5);
  EXPECT_LT(distance(GainKind::efla, 10.0, true), 1e-10);  // exponentially close
}

TEST_F(Reductions, R19_DiagonalLonghornIsExactOnOneHotKeys) {
  for (const bool one_channel : {false, true}) {
    if (one_channel) sizes.K = 1;
    TwoKey in = random_delta(random, sizes);
    in.g = in.b = Tensor();
    in.scale = 1.0;
    in.e = in.w = one_channel ? normal(random, sizes.keys()) : one_hot_keys();
    const Tensor beta = uniform(random, sizes.gates(), 0.01, 0.99);
    const TwoKeyResult exact = run(with_gain(in, GainKind::longhorn, logit(beta), 1e-6));
    const LonghornOut out{filled(sizes.values(), NAN), filled(sizes.states(), NAN)};
    longhorn(context, sequences, {in.q, in.e, in.v, spread(beta, sizes.V), in.initial_state}, out);
    EXPECT_LE(difference(out.o, exact.o), kExact);
    EXPECT_LE(difference(out.final_state, exact.state), kExact);
  }
}

// ---- Least squares -----------------------------------------------------------------------------

TEST_F(Reductions, R20_R21_ExactPreconditionerOnEitherSide) {
  for (const bool decayed : {false, true}) {
    TwoKey in = random_delta(random, sizes);
    in.initial_state = Tensor();
    const Tensor alpha = decayed ? uniform(random, sizes.gates(), -0.1, 0.0) : Tensor();
    Precondition gram;
    gram.kind = PreconditionerKind::gram;
    gram.k = in.e;
    gram.g = alpha;
    gram.b = in.b;
    gram.ridge = filled({sizes.H, sizes.K}, 0.7);
    TwoKey on_key = in;  // ATK: the state is not decayed, the Gram matrix is
    on_key.g = Tensor();
    gram.target = in.e;
    on_key.w = preconditioned(gram);
    TwoKey on_query = in;  // ATQ, additive
    on_query.e = Tensor();
    on_query.g = alpha;
    gram.target = in.q;
    on_query.q = preconditioned(gram);
    const TwoKeyResult key = run(on_key), query = run(on_query);
    EXPECT_LE(difference(key.o, query.o), kExact);
    if (decayed) continue;
    Mesa cg;
    cg.q = times(in.q, in.scale);
    cg.k = in.e;
    cg.v = in.v;
    cg.b = in.b;
    cg.lambda = gram.ridge;
    const Tensor o = filled(sizes.values(), NAN);
    mesa(context, sequences, cg, {o, Tensor(), Tensor()});
    EXPECT_LE(difference(o, query.o), kExact);
  }
}

TEST_F(Reductions, R23_QueryPreconditionerOfOneIsNone) {
  TwoKey plain = random_delta(random, sizes);
  plain.e = plain.b = Tensor();
  Precondition atq;
  atq.kind = PreconditionerKind::atq;
  atq.k = plain.w;
  atq.target = plain.q;
  atq.b = filled(sizes.gates(), 0.0);  // A stays zero
  atq.ridge = filled({sizes.H, sizes.K}, 1.0);
  for (const bool channel : {false, true}) {
    if (channel) plain.g = uniform(random, sizes.channel_gates(), -0.5, 0.0);
    TwoKey divided = plain;
    divided.q = preconditioned(atq);
    expect_bits(plain, divided);
  }
  plain.g = Tensor();
  TwoKey divided = plain;
  divided.q = preconditioned(atq);
  expect_bits(plain, divided);
}

}  // namespace
}  // namespace rankone::test
