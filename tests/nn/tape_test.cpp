// The tape and the differentiable functions: finite differences in float64, sharing, checkpoints.

#include "nn/tape.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <vector>

#include "core/random.hpp"
#include "nn/functions.hpp"

namespace rankone::test {
namespace {

using nn::Tape;
using nn::Var;

Tensor normal(const Shape& shape, std::uint64_t seed) {
  Random random(seed);
  const Tensor result = Tensor::empty(shape, Dtype::f64);
  for (double& value : result.span<double>()) value = random.normal();
  return result;
}

Context reference() { return Context({.threads = 1, .backends = {"reference"}}); }

double dot(const Tensor& a, const Tensor& b) {
  double sum = 0;
  for (std::int64_t i = 0; i < a.count(); ++i) sum += a.data<double>()[i] * b.data<double>()[i];
  return sum;
}

using Function = std::function<Var(Tape&, const std::vector<Var>&)>;

// Central differences of <f(inputs), cotangent> in every element of every input.
void check_gradients(const Function& function, const std::vector<Tensor>& inputs,
                     double tolerance = 1e-7) {
  Context context = reference();
  Tensor cotangent;
  const auto loss = [&] {
    const ArenaScope scope(context.arena());
    Tape tape(context, Tape::Mode::inference);
    std::vector<Var> vars;
    for (const Tensor& input : inputs) vars.push_back(tape.constant(input));
    const Var y = function(tape, vars);
    if (!cotangent.defined()) cotangent = normal(tape.value(y).shape(), 99);
    return dot(tape.value(y), cotangent);
  };
  loss();
  const ArenaScope scope(context.arena());
  Tape tape(context, Tape::Mode::training);
  std::vector<Var> vars;
  for (const Tensor& input : inputs) vars.push_back(tape.leaf(input));
  tape.backward(function(tape, vars), cotangent);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    ASSERT_TRUE(tape.grad(vars[i]).defined()) << "input " << i;
    const Tensor gradient = tape.grad(vars[i]).clone();
    for (std::int64_t j = 0; j < inputs[i].count(); ++j) {
      double& element = inputs[i].data<double>()[j];
      const double kept = element;
      element = kept + 1e-5;
      const double above = loss();
      element = kept - 1e-5;
      const double below = loss();
      element = kept;
      const double expected = (above - below) / 2e-5;
      EXPECT_NEAR(gradient.data<double>()[j], expected, tolerance * (1 + std::abs(expected)))
          << "input " << i << " element " << j;
    }
  }
}

TEST(Tape, ElementwiseAndLayoutFunctions) {
  const Tensor x = normal({3, 4}, 1), y = normal({3, 4}, 2);
  check_gradients([](Tape& t, const auto& v) { return nn::add(t, v[0], v[1]); }, {x, y});
  check_gradients([](Tape& t, const auto& v) { return nn::multiply(t, v[0], v[1]); }, {x, y});
  check_gradients([](Tape& t, const auto& v) { return nn::swiglu(t, v[0], v[1]); }, {x, y});
  check_gradients([](Tape& t, const auto& v) { return nn::scale(t, v[0], -2.5); }, {x});
  check_gradients([](Tape& t, const auto& v) { return nn::softplus(t, v[0], 0.25); }, {x});
  for (const auto activation :
       {nn::Activation::silu, nn::Activation::sigmoid, nn::Activation::elu1}) {
    check_gradients([=](Tape& t, const auto& v) { return nn::activate(t, v[0], activation); }, {x});
  }
  check_gradients([](Tape& t, const auto& v) { return nn::columns(t, v[0], 1, 2); }, {x});
  check_gradients([](Tape& t, const auto& v) { return nn::pad_columns(t, v[0], 7); }, {x});
  check_gradients(
      [](Tape& t, const auto& v) {
        return nn::repeat_heads(t, nn::reshape(t, v[0], {3, 2, 2}), 3);
      },
      {x});
  for (const auto map : {nn::FeatureMap::hedgehog, nn::FeatureMap::dpfp}) {
    check_gradients([=](Tape& t, const auto& v) { return nn::feature_map(t, v[0], map); }, {x});
  }
}

TEST(Tape, ProjectionsNormsAndConvolution) {
  const Tensor x = normal({5, 4}, 1), weight = normal({3, 4}, 2), bias = normal({3}, 3);
  check_gradients([](Tape& t, const auto& v) { return nn::linear(t, v[0], v[1], v[2]); },
                  {x, weight, bias});
  const Tensor gate = normal({5, 4}, 4), scale = normal({4}, 5);
  for (const bool first : {false, true}) {
    check_gradients(
        [=](Tape& t, const auto& v) {
          return nn::rms_norm(t, v[0], v[1], 1e-3, {v[2], nn::Activation::silu, first});
        },
        {x, scale, gate});
  }
  check_gradients(
      [](Tape& t, const auto& v) {
        return nn::vector_norm(t, v[0], nn::VectorNormForm::rsqrt, 1e-3);
      },
      {x});
  const std::vector<std::int64_t> boundaries{0, 2, 2, 5};
  const Sequences sequences = Sequences::packed(boundaries);
  check_gradients(
      [&](Tape& t, const auto& v) {
        return nn::short_conv(t, sequences, v[0], v[1], v[2], nn::Activation::silu);
      },
      {x, normal({4, 3}, 6), normal({4}, 7)});
}

TEST(Tape, ScalesByHead) {
  const Tensor x = normal({3, 2, 4}, 1), o = normal({3, 2, 4}, 2), skip = normal({2}, 3);
  check_gradients([](Tape& t, const auto& v) { return nn::head_skip(t, v[0], v[1], v[2]); },
                  {o, x, skip});
  const Tensor per_head = normal({3, 2}, 4), per_channel = normal({3, 2, 4}, 5);
  for (const Tensor& g : {per_head, per_channel}) {
    check_gradients([](Tape& t, const auto& v) { return nn::exp_scale(t, v[0], v[1], -1.0); },
                    {x, g});
  }
}

TEST(Tape, ExponentsAreBoundedAndTheBoundHasNoGradient) {
  Context context = reference();
  const Tensor x = normal({1, 1, 2}, 1), g = Tensor::empty({1, 1}, Dtype::f64);
  g.fill(-1000.0);
  Tape tape(context, Tape::Mode::training);
  const Var gate = tape.leaf(g);
  const Var y = nn::exp_scale(tape, tape.leaf(x), gate, -1.0);
  EXPECT_DOUBLE_EQ(tape.value(y).data<double>()[0], x.data<double>()[0] * std::exp(80.0));
  tape.backward(y, normal({1, 1, 2}, 2));
  EXPECT_EQ(tape.grad(gate).data<double>()[0], 0.0);
}

TEST(Tape, AttentionAndRotaryPositions) {
  const std::vector<std::int64_t> boundaries{0, 3, 4};
  const Sequences sequences = Sequences::packed(boundaries);
  check_gradients(
      [&](Tape& t, const auto& v) {
        nn::AttentionArgs args;
        args.q = nn::rope(t, sequences, v[0], 100.0);
        args.k = nn::rope(t, sequences, v[1], 100.0);
        args.v = v[2];
        args.window = 2;
        args.scale = 0.5;
        return nn::attention(t, sequences, args);
      },
      {normal({4, 2, 4}, 1), normal({4, 1, 4}, 2), normal({4, 1, 4}, 3)});
}

// Gradients that reach a value on several ways add up, also where one of them was only lent.
TEST(Tape, SharedGradientsAreNeverWrittenTo) {
  check_gradients(
      [](Tape& t, const auto& v) {
        const Var f = nn::scale(t, v[0], 3.0);
        const Var h = nn::multiply(t, v[0], v[0]);
        const Var sum = nn::add(t, nn::add(t, f, v[0]), nn::add(t, v[0], h));
        return nn::add(t, nn::reshape(t, sum, {6}), nn::reshape(t, v[0], {6}));
      },
      {normal({2, 3}, 1)});
}

TEST(Tape, ParametersAccumulateAndFrozenOnesAreLeftAlone) {
  Context context = reference();
  nn::Parameter weight{"weight", normal({2, 3}, 1), Tensor::zeros({2, 3}, Dtype::f64)};
  const nn::Parameter frozen{"frozen", normal({2}, 2), {}};
  const Tensor x = normal({4, 3}, 3), cotangent = normal({4, 2}, 4);
  const auto run = [&] {
    Tape tape(context, Tape::Mode::training);
    tape.backward(
        nn::linear(tape, tape.constant(x), tape.parameter(weight), tape.parameter(frozen)),
        cotangent);
  };
  run();
  const Tensor once = weight.grad.clone();
  run();
  for (std::int64_t i = 0; i < once.count(); ++i) {
    EXPECT_DOUBLE_EQ(weight.grad.data<double>()[i], 2 * once.data<double>()[i]);
  }
  EXPECT_FALSE(frozen.grad.defined());
}

TEST(Tape, InferenceNotesNothing) {
  Context context = reference();
  Tape tape(context, Tape::Mode::inference);
  const Var x = tape.leaf(normal({2, 2}, 1));
  EXPECT_FALSE(tape.wants_grad(x));
  EXPECT_FALSE(tape.wants_grad(nn::scale(tape, x, 2.0)));
  EXPECT_FALSE(tape.wants_grad(Var()));
}

Var block(Tape& tape, Var x) {
  return nn::add(tape, x, nn::multiply(tape, x, nn::activate(tape, x, nn::Activation::silu)));
}

TEST(Tape, CheckpointsGiveTheGradientsOfTheBlock) {
  for (const bool recompute : {false, true}) {
    check_gradients(
        [=](Tape& t, const auto& v) {
          Var x = nn::scale(t, v[0], 0.5);
          for (int i = 0; i < 3; ++i) x = t.checkpoint(x, block, recompute);
          return x;
        },
        {normal({2, 3}, 1)});
  }
}

TEST(Tape, RecomputationTakesLessMemoryAndInferenceAConstantAmount) {
  const Tensor x = normal({64, 64}, 1), cotangent = normal({64, 64}, 2);
  const auto peak = [&](Tape::Mode mode, bool recompute, int blocks) {
    Context context = reference();
    context.arena().set_planning(true);
    Tape tape(context, mode);
    const Tensor copied = context.empty(x.shape(), Dtype::f64);
    nn::copy(context, x, copied);
    Var y = tape.leaf(copied);
    for (int i = 0; i < blocks; ++i) y = tape.checkpoint(y, block, recompute);
    if (mode == Tape::Mode::training) tape.backward(y, cotangent);
    return context.arena().peak();
  };
  using enum Tape::Mode;
  EXPECT_LT(peak(training, true, 16), peak(training, false, 16) * 6 / 10);
  EXPECT_EQ(peak(inference, false, 2), peak(inference, false, 16));
}

}  // namespace
}  // namespace rankone::test
