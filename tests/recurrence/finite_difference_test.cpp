// Every vjp of the recurrence and the preconditioner against finite differences, with all optional
// inputs on and off.

#include "support/finite_difference.hpp"

#include <gtest/gtest-spi.h>

#include "recurrence/recurrence.hpp"

namespace rankone::test {
namespace {

using namespace rankone::recurrence;

Tensor like(const Tensor& tensor) {
  return tensor.defined() ? filled(tensor.shape(), NAN) : Tensor();
}

// Appends what is defined.
void add(std::vector<GradientCase::Input>& inputs, const char* name, const Tensor& tensor,
         bool symmetric = false) {
  if (tensor.defined()) inputs.push_back({name, tensor, symmetric});
}
std::vector<Tensor> defined(std::initializer_list<Tensor> tensors) {
  std::vector<Tensor> result;
  for (const Tensor& tensor : tensors) {
    if (tensor.defined()) result.push_back(tensor);
  }
  return result;
}

// Packed: lengths 0, 4, 1, 0, 1; dense: 2 sequences of 3.
Sequences sequences_for(bool packed) {
  const std::vector<std::int64_t> cu_seqlens = {0, 0, 4, 5, 5, 6};
  return packed ? Sequences::packed(cu_seqlens) : Sequences::dense(2, 3);
}

struct TwoKeyOptions {
  bool delta, initial, gain, final_cotangent, grouped, packed;
  int decay;  // 0 none, 1 scalar, 2 channel
};

void check_two_key(const TwoKeyOptions& options, Random& random) {
  Context context = make_context();
  const Sequences sequences = sequences_for(options.packed);
  const Sizes sizes{6, 2, options.grouped ? 4 : 2, 3, 2};
  TwoKey in;
  in.q = normal(random, sizes.keys());
  if (options.delta) in.e = uniform(random, sizes.keys(), -0.8, 0.8);
  in.w = uniform(random, sizes.keys(), -0.8, 0.8);
  in.v = normal(random, sizes.values());
  if (options.decay == 1) in.g = uniform(random, sizes.gates(), -1.0, 0.0);
  if (options.decay == 2) in.g = uniform(random, sizes.channel_gates(), -1.0, 0.0);
  if (options.gain) in.b = uniform(random, sizes.gates(), 0.0, 1.0);
  if (options.initial) in.initial_state = normal(random, sizes.states(sequences.count()));
  in.scale = 0.7;

  GradientCase test;
  add(test.inputs, "q", in.q);
  add(test.inputs, "e", in.e);
  add(test.inputs, "w", in.w);
  add(test.inputs, "v", in.v);
  add(test.inputs, "g", in.g);
  add(test.inputs, "b", in.b);
  add(test.inputs, "initial_state", in.initial_state);
  test.forward = [&] {
    const TwoKeyResult result = run_two_key(context, sequences, in);
    return options.final_cotangent ? std::vector<Tensor>{result.o, result.state}
                                   : std::vector<Tensor>{result.o};
  };
  test.vjp = [&](const std::vector<Tensor>& cot) {
    const TwoKeyGrads grads{like(in.q),
                            like(in.e),
                            like(in.w),
                            like(in.v),
                            like(in.g),
                            like(in.b),
                            like(in.initial_state)};
    two_key_vjp(context, sequences, in, {cot[0], options.final_cotangent ? cot[1] : Tensor()},
                grads);
    return defined({grads.q, grads.e, grads.w, grads.v, grads.g, grads.b, grads.initial_state});
  };
  test.name = "delta " + std::to_string(options.delta) + " decay " + std::to_string(options.decay) +
              " gain " + std::to_string(options.gain) + " initial " +
              std::to_string(options.initial) + " final " +
              std::to_string(options.final_cotangent) + " grouped " +
              std::to_string(options.grouped) + " packed " + std::to_string(options.packed);
  check_gradients(test, random);
}

TEST(FiniteDifference, TwoKeyWithEveryOption) {
  Random random(1);
  for (int bits = 0; bits < 64; ++bits) {
    for (int decay = 0; decay < 3; ++decay) {
      check_two_key({(bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0, (bits & 8) != 0,
                     (bits & 16) != 0, (bits & 32) != 0, decay},
                    random);
    }
  }
}

// Longer than the segments in which the reference keeps its states.
TEST(FiniteDifference, TwoKeyOverManySegments) {
  Random random(2);
  Context context = make_context();
  const std::vector<std::int64_t> cu_seqlens = {0, 130, 194};
  const Sequences sequences = Sequences::packed(cu_seqlens);
  const Sizes sizes{194, 1, 1, 3, 2};
  TwoKey in = random_delta(random, sizes);
  in.w = in.e.clone();
  in.g = uniform(random, sizes.gates(), -0.05, 0.0);
  in.initial_state = normal(random, sizes.states(2));
  GradientCase test;
  test.name = "many segments";
  test.inputs = {{"q", in.q}, {"e", in.e}, {"w", in.w},
                 {"v", in.v}, {"g", in.g}, {"initial_state", in.initial_state}};
  test.forward = [&] {
    const TwoKeyResult result = run_two_key(context, sequences, in);
    return std::vector<Tensor>{result.o, result.state};
  };
  test.vjp = [&](const std::vector<Tensor>& cot) {
    const TwoKeyGrads grads{like(in.q),
                            like(in.e),
                            like(in.w),
                            like(in.v),
                            like(in.g),
                            Tensor(),
                            like(in.initial_state)};
    two_key_vjp(context, sequences, in, {cot[0], cot[1]}, grads);
    return defined({grads.q, grads.e, grads.w, grads.v, grads.g, grads.initial_state});
  };
  check_gradients(test, random);
}

// An input of `rows` symmetric positive definite matrices: M M^T + I.
Tensor positive_definite(Random& random, const Shape& shape) {
  const Tensor m = normal(random, shape);
  Tensor result = Tensor::zeros(shape, Dtype::f64);
  const std::int64_t K = shape[-1];
  for (std::int64_t at = 0; at < m.count(); at += K * K) {
    for (std::int64_t i = 0; i < K; ++i) {
      for (std::int64_t j = 0; j < K; ++j) {
        double sum = i == j ? 1.0 : 0.0;
        for (std::int64_t l = 0; l < K; ++l) {
          sum += 0.3 * m.data<double>()[at + i * K + l] * m.data<double>()[at + j * K + l];
        }
        result.data<double>()[at + i * K + j] = sum;
      }
    }
  }
  return result;
}

void check_precondition(PreconditionerKind kind, int bits, Random& random) {
  Context context = make_context();
  const Sequences sequences = sequences_for((bits & 1) != 0);
  const Sizes sizes{6, 2, 2, 3, 2};
  const bool initial = (bits & 2) != 0, gates = (bits & 4) != 0, final_cotangent = (bits & 8) != 0;
  const std::int64_t N = sequences.count();
  Precondition in;
  in.kind = kind;
  in.normalize = (bits & 16) != 0;
  in.k = normal(random, sizes.keys(), 0.4);
  in.target = normal(random, sizes.keys());
  if (gates) {
    in.g = uniform(random, sizes.gates(), -1.0, 0.0);
    in.b = uniform(random, sizes.gates(), 0.5, 1.0);
  }
  const bool gram = kind == PreconditionerKind::gram;
  if (kind == PreconditionerKind::atk) {
    in.center = uniform(random, {2}, -6.0, -5.0);
  } else {
    in.ridge = uniform(random, {2, 3}, 0.5, 1.5);
  }
  if (initial) {
    in.initial =
        gram ? positive_definite(random, {N, 2, 3, 3}) : uniform(random, {N, 2, 3}, 0.3, 1.0);
  }
  GradientCase test;
  test.name = "kind " + std::to_string(static_cast<int>(kind)) + " bits " + std::to_string(bits);
  add(test.inputs, "k", in.k);
  add(test.inputs, "target", in.target);
  add(test.inputs, "g", in.g);
  add(test.inputs, "b", in.b);
  add(test.inputs, "center", in.center);
  if (!(gram && initial)) add(test.inputs, "ridge", in.ridge);
  add(test.inputs, "initial", in.initial, gram);
  const Shape state = gram ? Shape{N, 2, 3, 3} : Shape{N, 2, 3};
  test.forward = [&, state] {
    const PreconditionOut out{filled(sizes.keys(), NAN), filled(state, NAN)};
    precondition(context, sequences, in, out);
    return final_cotangent ? std::vector<Tensor>{out.out, out.final} : std::vector<Tensor>{out.out};
  };
  test.vjp = [&](const std::vector<Tensor>& cot) {
    const PreconditionGrads grads{like(in.k),      like(in.target),
                                  like(in.g),      like(in.b),
                                  like(in.center), gram && initial ? Tensor() : like(in.ridge),
                                  like(in.initial)};
    precondition_vjp(context, sequences, in, {cot[0], final_cotangent ? cot[1] : Tensor()}, grads);
    return defined(
        {grads.k, grads.target, grads.g, grads.b, grads.center, grads.ridge, grads.initial});
  };
  check_gradients(test, random);
}

TEST(FiniteDifference, PreconditionersWithEveryOption) {
  Random random(3);
  for (const auto kind :
       {PreconditionerKind::atk, PreconditionerKind::atq, PreconditionerKind::gram}) {
    for (int bits = 0; bits < 32; ++bits) check_precondition(kind, bits, random);
  }
}

// The squash on both sides of its center, where r / (1 + |r|) has its kink.
TEST(FiniteDifference, SquashAroundItsCenter) {
  for (const double center : {-3.0, -0.2, 1.0}) {
    Random random(4);
    Context context = make_context();
    const Sequences sequences = Sequences::dense(1, 5);
    Precondition in;
    in.k = normal(random, {5, 1, 4}, 0.3);
    in.target = in.k;
    in.center = filled({1}, center);
    in.x = 1.5;
    GradientCase test;
    test.name = "center " + std::to_string(center);
    test.inputs = {{"k", in.k}, {"center", in.center}};
    test.forward = [&] {
      const PreconditionOut out{filled({5, 1, 4}, NAN), Tensor()};
      precondition(context, sequences, in, out);
      return std::vector<Tensor>{out.out};
    };
    test.vjp = [&](const std::vector<Tensor>& cot) {
      PreconditionGrads grads;
      grads.k = grads.target = like(in.k);
      grads.center = like(in.center);
      precondition_vjp(context, sequences, in, {cot[0], Tensor()}, grads);
      return std::vector<Tensor>{grads.k, grads.center};
    };
    check_gradients(test, random);
  }
}

void check_mesa(int bits, Random& random) {
  Context context = make_context();
  const Sequences sequences = sequences_for((bits & 1) != 0);
  const std::int64_t N = sequences.count();
  const Sizes sizes{6, 2, 2, 3, 2};
  const bool final_cotangent = (bits & 8) != 0;
  Mesa in;
  in.q = normal(random, sizes.keys());
  in.k = normal(random, sizes.keys());
  in.v = normal(random, sizes.values());
  in.lambda = uniform(random, {2, 3}, 0.5, 1.5);
  if ((bits & 2) != 0) {
    in.initial_hkk = positive_definite(random, {N, 2, 3, 3});
    in.initial_hkv = normal(random, {N, 2, 3, 2});
  }
  if ((bits & 4) != 0) {
    in.g = uniform(random, sizes.gates(), -1.0, 0.0);
    in.b = uniform(random, sizes.gates(), 0.2, 1.0);
  }
  GradientCase test;
  test.name = "mesa bits " + std::to_string(bits);
  add(test.inputs, "q", in.q);
  add(test.inputs, "k", in.k);
  add(test.inputs, "v", in.v);
  add(test.inputs, "g", in.g);
  add(test.inputs, "b", in.b);
  add(test.inputs, "lambda", in.lambda);
  add(test.inputs, "initial_hkk", in.initial_hkk, true);
  add(test.inputs, "initial_hkv", in.initial_hkv);
  test.forward = [&] {
    const MesaOut out{filled(sizes.values(), NAN), filled({N, 2, 3, 3}, NAN),
                      filled({N, 2, 3, 2}, NAN)};
    mesa(context, sequences, in, out);
    return final_cotangent ? std::vector<Tensor>{out.o, out.final_hkk, out.final_hkv}
                           : std::vector<Tensor>{out.o};
  };
  test.vjp = [&](const std::vector<Tensor>& cot) {
    const MesaGrads grads{like(in.q), like(in.k),      like(in.v),           like(in.g),
                          like(in.b), like(in.lambda), like(in.initial_hkk), like(in.initial_hkv)};
    MesaCotangents cotangents{cot[0], Tensor(), Tensor()};
    if (final_cotangent) cotangents = {cot[0], cot[1], cot[2]};
    mesa_vjp(context, sequences, in, cotangents, grads);
    return defined({grads.q, grads.k, grads.v, grads.g, grads.b, grads.lambda, grads.initial_hkk,
                    grads.initial_hkv});
  };
  check_gradients(test, random);
}

TEST(FiniteDifference, MesaWithEveryOption) {
  Random random(5);
  for (int bits = 0; bits < 16; ++bits) check_mesa(bits, random);
}

void check_longhorn(int bits, Random& random) {
  Context context = make_context();
  const Sequences sequences = sequences_for((bits & 1) != 0);
  const Sizes sizes{6, 2, (bits & 2) != 0 ? 4 : 2, 3, 2};
  const bool final_cotangent = (bits & 8) != 0;
  Longhorn in;
  in.q = normal(random, sizes.keys());
  in.k = normal(random, sizes.keys());
  in.v = normal(random, sizes.values());
  in.beta = uniform(random, sizes.values(), 0.1, 2.0);
  if ((bits & 4) != 0) in.initial_state = normal(random, sizes.states(sequences.count()));
  GradientCase test;
  test.name = "longhorn bits " + std::to_string(bits);
  add(test.inputs, "q", in.q);
  add(test.inputs, "k", in.k);
  add(test.inputs, "v", in.v);
  add(test.inputs, "beta", in.beta);
  add(test.inputs, "initial_state", in.initial_state);
  test.forward = [&] {
    const LonghornOut out{filled(sizes.values(), NAN),
                          filled(sizes.states(sequences.count()), NAN)};
    longhorn(context, sequences, in, out);
    return final_cotangent ? std::vector<Tensor>{out.o, out.final_state}
                           : std::vector<Tensor>{out.o};
  };
  test.vjp = [&](const std::vector<Tensor>& cot) {
    const LonghornGrads grads{like(in.q), like(in.k), like(in.v), like(in.beta),
                              like(in.initial_state)};
    longhorn_vjp(context, sequences, in, {cot[0], final_cotangent ? cot[1] : Tensor()}, grads);
    return defined({grads.q, grads.k, grads.v, grads.beta, grads.initial_state});
  };
  check_gradients(test, random);
}

TEST(FiniteDifference, LonghornWithEveryOption) {
  Random random(6);
  for (int bits = 0; bits < 16; ++bits) check_longhorn(bits, random);
}

// The check itself must be able to fail: a gradient that is wrong by 1e-6 is seen.
TEST(FiniteDifference, SeesAWrongGradient) {
  Random random(7);
  const Tensor x = normal(random, {4});
  double error = 0.0;
  GradientCase test;
  test.inputs = {{"x", x}};
  test.forward = [&] {
    return std::vector<Tensor>{map(x, [](double value) { return std::sin(value); })};
  };
  test.vjp = [&](const std::vector<Tensor>& cot) {
    const Tensor slope = map(x, [&](double value) { return std::cos(value) + error; });
    return std::vector<Tensor>{times(cot[0], slope)};
  };
  check_gradients(test, random);
  error = 1e-6;
  testing::TestPartResultArray failures;
  {
    testing::ScopedFakeTestPartResultReporter reporter(
        testing::ScopedFakeTestPartResultReporter::INTERCEPT_ONLY_CURRENT_THREAD, &failures);
    check_gradients(test, random);
  }
  EXPECT_GT(failures.size(), 0);
}

}  // namespace
}  // namespace rankone::test
