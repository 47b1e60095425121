// Theorem 1 of Preconditioned DeltaNet (arXiv 2604.21100): the delta rule whose write key is P_t
// k_t, P_t the inverse of the regularised Gram matrix, holds the least-squares state, so it reads
// the same as linear attention with the query P_t q_t. Any approximation of P breaks it.

#include "recurrence/recurrence.hpp"
#include "support/dense_solve.hpp"
#include "support/recurrence_support.hpp"

namespace rankone::test {
namespace {

using namespace rankone::recurrence;

constexpr int kKey = 6, kValue = 4, kTokens = 30;

struct Problem {
  Tensor q, k, v;
  std::vector<double> gram = std::vector<double>(kKey * kKey, 0.0);     // G_T
  std::vector<double> cross = std::vector<double>(kKey * kValue, 0.0);  // C_T^T

  explicit Problem(std::uint64_t seed, double lambda) {
    Random random(seed);
    q = unit_rows(normal(random, {kTokens, 1, kKey}));
    k = unit_rows(normal(random, {kTokens, 1, kKey}));
    v = normal(random, {kTokens, 1, kValue});
    for (int d = 0; d < kKey; ++d) gram[static_cast<std::size_t>(d * kKey + d)] = lambda;
    for (int t = 0; t < kTokens; ++t) {
      const double* key = k.data<double>() + t * kKey;
      for (int i = 0; i < kKey; ++i) {
        for (int j = 0; j < kKey; ++j) {
          gram[static_cast<std::size_t>(i * kKey + j)] += key[i] * key[j];
        }
        for (int j = 0; j < kValue; ++j) {
          cross[static_cast<std::size_t>(i * kValue + j)] +=
              key[i] * v.data<double>()[t * kValue + j];
        }
      }
    }
  }
  // The largest element of S G - C: zero where the state solves the normal equations.
  double residual(const Tensor& state) const {
    double most = 0.0;
    for (int i = 0; i < kKey; ++i) {
      for (int j = 0; j < kValue; ++j) {
        double sum = -cross[static_cast<std::size_t>(i * kValue + j)];
        for (int d = 0; d < kKey; ++d) {
          sum +=
              gram[static_cast<std::size_t>(i * kKey + d)] * state.data<double>()[d * kValue + j];
        }
        most = std::max(most, std::abs(sum));
      }
    }
    return most;
  }
};

Precondition exact(const Tensor& k, const Tensor& target, double lambda) {
  Precondition in;
  in.kind = PreconditionerKind::gram;
  in.k = k;
  in.target = target;
  in.ridge = filled({1, k.dim(-1)}, lambda);
  return in;
}

Tensor apply(Context& context, const Sequences& sequences, const Precondition& in) {
  const Tensor out = filled(in.k.shape(), NAN);
  precondition(context, sequences, in, {out, Tensor()});
  return out;
}

class TheoremOne : public testing::TestWithParam<std::uint64_t> {};

TEST_P(TheoremOne, HoldsForTheExactPreconditioner) {
  Context context = make_context();
  const Sequences sequences = Sequences::dense(1, kTokens);
  const Problem problem(GetParam(), 1.0);
  TwoKey atk;
  atk.q = problem.q;
  atk.e = problem.k;
  atk.w = apply(context, sequences, exact(problem.k, problem.k, 1.0));
  atk.v = problem.v;
  const TwoKeyResult online = run_two_key(context, sequences, atk);
  EXPECT_LE(problem.residual(online.state), 1e-12);

  const std::vector<double> solved = dense_solve(problem.gram, problem.cross, kKey, kValue);
  EXPECT_LE(difference(online.state, Tensor::of<double>(solved, {1, 1, kKey, kValue})), 1e-12);

  TwoKey atq = atk;
  atq.e = Tensor();
  atq.w = problem.k;
  atq.q = apply(context, sequences, exact(problem.k, problem.q, 1.0));
  EXPECT_LE(difference(run_two_key(context, sequences, atq).o, online.o), 1e-12);
}

// The negative control: the diagonal of P_t in place of P_t.
TEST_P(TheoremOne, FailsForItsDiagonal) {
  Context context = make_context();
  const Sequences sequences = Sequences::dense(1, kTokens);
  const Problem problem(GetParam(), 1.0);
  TwoKey atk;
  atk.q = problem.q;
  atk.e = problem.k;
  atk.w = filled(problem.k.shape(), 0.0);
  atk.v = problem.v;
  // P_t e_i by one call per channel: the diagonal, channel by channel.
  for (int d = 0; d < kKey; ++d) {
    Tensor unit = filled(problem.k.shape(), 0.0);
    for (int t = 0; t < kTokens; ++t) unit.data<double>()[t * kKey + d] = 1.0;
    const Tensor column = apply(context, sequences, exact(problem.k, unit, 1.0));
    for (int t = 0; t < kTokens; ++t) {
      const int at = t * kKey + d;
      atk.w.data<double>()[at] = column.data<double>()[at] * problem.k.data<double>()[at];
    }
  }
  EXPECT_GT(problem.residual(run_two_key(context, sequences, atk).state), 0.1);
}

INSTANTIATE_TEST_SUITE_P(Seeds, TheoremOne, testing::Values(17, 29, 43, 71, 101));

// The counterexample of the paper, d = 2, lambda = 1, k = v = (1, 1): P_1 k = k / 3; the diagonal
// of P_0 with the Sherman-Morrison denominator gives k / 3, the offline state is C P = 11^T / 3,
// but the diagonal ATQ reads 11^T / 2.
TEST(TheoremOneCounterexample, DiagonalFormsDisagree) {
  Context context = make_context();
  const Sequences sequences = Sequences::dense(1, 1);
  const Tensor ones = filled({1, 1, 2}, 1.0);
  TwoKey online;
  online.q = online.e = online.v = ones;
  online.w = times(ones, 1.0 / 3.0);
  const Tensor state = run_two_key(context, sequences, online).state;
  for (const double element : state.span<double>()) EXPECT_NEAR(element, 1.0 / 3.0, 1e-16);

  Precondition atq;  // q / (A + ridge) with A = k * k: the diagonal of G
  atq.kind = PreconditionerKind::atq;
  atq.k = ones;
  atq.target = ones;
  atq.ridge = filled({1, 2}, 1.0);
  const Tensor q = apply(context, sequences, atq);
  for (const double element : q.span<double>()) EXPECT_NEAR(element, 0.5, 1e-16);
  EXPECT_LE(difference(apply(context, sequences, exact(ones, ones, 1.0)), online.w), 1e-15);
}

// With gain and decay the theorem holds where the decay stands in P alone (pdn notes, section 1).
TEST(TheoremOneDecayed, HoldsWithGainAndDecayInTheGramMatrix) {
  Random random(5);
  Context context = make_context();
  constexpr std::int64_t T = 200;
  const Sequences sequences = Sequences::dense(1, T);
  Precondition gram = exact(unit_rows(normal(random, {T, 1, 6})), Tensor(), 0.7);
  gram.target = gram.k;
  gram.g = map(uniform(random, {T, 1}, 0.9, 1.0), [](double a) { return std::log(a); });
  gram.b = uniform(random, {T, 1}, 0.0, 1.0);
  TwoKey in;
  in.q = in.e = gram.k;
  in.w = apply(context, sequences, gram);
  in.v = normal(random, {T, 1, 4});
  in.b = gram.b;
  const TwoKeyResult online = run_two_key(context, sequences, in);
  TwoKey offline = in;
  offline.e = Tensor();
  offline.w = gram.k;
  offline.g = gram.g;
  offline.q = in.w;  // G^{-1} q with q = k
  EXPECT_LE(difference(run_two_key(context, sequences, offline).o, online.o), 1e-11);
}

}  // namespace
}  // namespace rankone::test
