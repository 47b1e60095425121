// Inputs on which float32 itself is at its limit: absolute bounds on the relative error against
// float64, for outputs, states and gradients.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <string>

#include "core/isa.hpp"
#include "recurrence/recurrence.hpp"
#include "tests/cases/cases.hpp"
#include "tests/cases/compare.hpp"
#include "tests/cases/tensors.hpp"

namespace rankone::test {
namespace {

using recurrence::TwoKeyGrads;
using recurrence::TwoKeyOut;

struct Hard {
  Case c;
  double bound;
  double gradient_bound;
  std::function<void(Inputs&)> change = {};
};

// Every key 10 times a common direction plus noise of unit length: cosines of 0.99 and more.
void almost_one_key(Inputs& inputs) {
  Random random(17);
  Tensor keys = inputs.two_key.w;
  const std::int64_t size = keys.dim(-1);
  const Tensor common = unit_rows({1, size}, random);
  const Tensor noise = unit_rows(keys.shape(), random);
  for (std::int64_t i = 0; i < keys.count(); ++i) {
    keys.data<float>()[i] = 10.0F * common.data<float>()[i % size] + noise.data<float>()[i];
  }
  normalise_rows(keys, size);
}

// Norms from 1e-4 to 1e4, the gain such that each step still erases between nothing and all.
void wild_norms(Inputs& inputs) {
  Random random(18);
  const std::int64_t size = inputs.two_key.w.dim(-1);
  for (std::int64_t r = 0; r < inputs.two_key.b.count(); ++r) {
    const double norm = std::pow(10.0, random.uniform(-4, 4));
    for (std::int64_t i = 0; i < size; ++i) {
      inputs.two_key.w.data<float>()[r * size + i] *= static_cast<float>(norm);
    }
    inputs.two_key.b.data<float>()[r] = static_cast<float>(random.uniform() / (norm * norm));
  }
}

std::vector<Hard> list() {
  const auto make = [](const char* name, GateShape gate, GateValues values, Keys keys, Gains gains,
                       std::int64_t time) {
    Case c{.name = name, .gate = gate, .gates = values, .keys = keys, .gains = gains};
    c.time = time;
    c.d_k = 64;
    c.d_v = 16;
    return c;
  };
  using G = GateShape;
  using V = GateValues;
  return {
      {make("correlated", G::scalar, V::weak, Keys::correlated, Gains::up_to_two, 1024), 2e-5,
       2e-5},
      {make("correlated_channel", G::channel, V::weak, Keys::correlated, Gains::up_to_two, 1024),
       2e-5, 2e-5},
      {make("correlated_no_decay", G::none, V::zero, Keys::correlated, Gains::up_to_two, 1024),
       2e-5, 2e-5},
      {make("almost_one_key", G::none, V::zero, Keys::unit, Gains::two, 1024), 5e-5, 5e-5,
       almost_one_key},
      {make("almost_one_key_scalar", G::scalar, V::weak, Keys::unit, Gains::two, 1024), 5e-5, 5e-5,
       almost_one_key},
      {make("identical", G::none, V::zero, Keys::identical, Gains::two, 4096), 2e-3, 2e-3},
      {make("mixed", G::scalar, V::mixed, Keys::unit, Gains::uniform, 512), 2e-5, 2e-5},
      {make("mixed_channel", G::channel, V::mixed, Keys::unit, Gains::uniform, 512), 2e-5, 2e-5},
      {make("minus_5", G::scalar, V::minus_5, Keys::unit, Gains::uniform, 256), 2e-5, 2e-5},
      {make("minus_5_channel", G::channel, V::minus_5, Keys::unit, Gains::uniform, 256), 2e-5,
       2e-5},
      {make("minus_30", G::scalar, V::minus_30, Keys::unit, Gains::uniform, 256), 2e-5, 2e-5},
      {make("minus_30_channel", G::channel, V::minus_30, Keys::unit, Gains::uniform, 256), 2e-5,
       2e-5},
      {make("zero", G::scalar, V::zero, Keys::unit, Gains::uniform, 4096), 2e-5, 2e-5},
      {make("zero_channel", G::channel, V::zero, Keys::unit, Gains::uniform, 4096), 2e-5, 2e-5},
      {make("wild_norms", G::scalar, V::weak, Keys::unit, Gains::uniform, 1024), 2e-5, 2e-5,
       wild_norms},
      // Keys of entries +-1/8: all products of keys are exact.
      {make("squares", G::scalar, V::weak, Keys::squares, Gains::uniform, 1024), 2e-6, 2e-5},
  };
}

TEST(CpuConditioning, StaysWithinItsBounds) {
  Context cpu({.threads = 1, .precision = Precision::f32, .backends = {"cpu"}});
  Context reference({.threads = 1, .backends = {"reference"}});
  for (const Hard& hard : list()) {
    SCOPED_TRACE(hard.c.name);
    Inputs inputs = make_inputs(hard.c);
    if (hard.change) hard.change(inputs);
    const Inputs exact = widened(inputs);
    const TwoKeyOut out = make_out(inputs), expected = make_out(exact);
    recurrence::two_key(cpu, inputs.sequences, inputs.two_key, out);
    recurrence::two_key(reference, exact.sequences, exact.two_key, expected);
    EXPECT_LE(relative_error(out.o, expected.o), hard.bound);
    EXPECT_LE(relative_error(out.final_state, expected.final_state), hard.bound);
    const TwoKeyGrads grads = make_grads(inputs), exact_grads = make_grads(exact);
    recurrence::two_key_vjp(cpu, inputs.sequences, inputs.two_key, inputs.cotangents, grads);
    recurrence::two_key_vjp(reference, exact.sequences, exact.two_key, exact.cotangents,
                            exact_grads);
    const auto check = [&](const char* name, const Tensor& gradient, const Tensor& wanted) {
      if (!gradient.defined()) return;
      EXPECT_LE(relative_error(gradient, wanted), hard.gradient_bound) << name;
    };
    check("dq", grads.q, exact_grads.q);
    check("de", grads.e, exact_grads.e);
    check("dw", grads.w, exact_grads.w);
    check("dv", grads.v, exact_grads.v);
    check("dg", grads.g, exact_grads.g);
    check("db", grads.b, exact_grads.b);
    check("d initial_state", grads.initial_state, exact_grads.initial_state);
  }
}

TEST(CpuDispatch, RunsWhatTheEnvironmentAsksFor) {
  const char* set = std::getenv("RANKONE_ISA");
  const std::string wanted = set == nullptr ? "" : set;
  if (wanted != "baseline" && wanted != "avx2") GTEST_SKIP() << "RANKONE_ISA asks for no lower set";
  if (wanted == "avx2" && best_isa() == Isa::baseline) GTEST_SKIP() << "no avx2 here";
  EXPECT_EQ(name(best_isa()), wanted);
}

}  // namespace
}  // namespace rankone::test
