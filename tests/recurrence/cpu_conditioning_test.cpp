// Inputs on which float32 itself is at its limit: absolute bounds on the relative error against
// float64, for outputs, states and gradients, in float32 and in bf16x3 on a tile unit.

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

struct Bounds {
  double outputs;  // and states
  double gradients;
};
constexpr Bounds kUsual = {2e-5, 2e-5};
constexpr Bounds kAlmostOneKey = {5e-5, 5e-5};
constexpr Bounds kUsualOnTiles = {2e-5, 4e-5};
constexpr Bounds kReflected = {2e-4, 2e-4};  // gains of 2, or keys at a cosine of 0.99
constexpr Bounds kOneKey = {2e-3, 2e-3};

struct Hard {
  Case c;
  Bounds f32, tiles;
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

void gains_to_1_9(Inputs& inputs) {
  for (float& gain : inputs.two_key.b.span<float>()) gain = std::min(gain, 1.9F);
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
  std::vector<Hard> hard;
  const auto usual = [&](const char* name, G gate, V values, Keys keys, Gains gains,
                         std::int64_t time, std::function<void(Inputs&)> change = {}) {
    hard.push_back(
        {make(name, gate, values, keys, gains, time), kUsual, kUsualOnTiles, std::move(change)});
  };
  usual("correlated", G::scalar, V::weak, Keys::correlated, Gains::up_to_two, 1024);
  usual("correlated_channel", G::channel, V::weak, Keys::correlated, Gains::up_to_two, 1024);
  usual("correlated_no_decay", G::none, V::zero, Keys::correlated, Gains::up_to_two, 1024);
  usual("correlated_near_two", G::none, V::zero, Keys::correlated, Gains::near_two, 1024);
  usual("near_two", G::none, V::zero, Keys::unit, Gains::near_two, 4096);
  usual("mixed", G::scalar, V::mixed, Keys::unit, Gains::uniform, 512);
  usual("mixed_channel", G::channel, V::mixed, Keys::unit, Gains::uniform, 512);
  usual("minus_5", G::scalar, V::minus_5, Keys::unit, Gains::uniform, 256);
  usual("minus_5_channel", G::channel, V::minus_5, Keys::unit, Gains::uniform, 256);
  usual("minus_30", G::scalar, V::minus_30, Keys::unit, Gains::uniform, 256);
  usual("minus_30_channel", G::channel, V::minus_30, Keys::unit, Gains::uniform, 256);
  usual("zero", G::scalar, V::zero, Keys::unit, Gains::uniform, 4096);
  usual("zero_channel", G::channel, V::zero, Keys::unit, Gains::uniform, 4096);
  usual("wild_norms", G::scalar, V::weak, Keys::unit, Gains::uniform, 1024, wild_norms);
  usual("wild_norms_channel", G::channel, V::weak, Keys::unit, Gains::uniform, 1024, wild_norms);
  for (const G gate : {G::none, G::scalar, G::channel}) {
    hard.push_back({make("almost_one_key", gate, V::weak, Keys::unit, Gains::two, 1024),
                    kAlmostOneKey, kReflected, almost_one_key});
  }
  hard.push_back(
      {make("reflection", G::none, V::zero, Keys::unit, Gains::two, 4096), kUsual, kReflected});
  hard.push_back({make("one_key_to_1_9", G::none, V::zero, Keys::identical, Gains::up_to_two, 4096),
                  kUsual,
                  {5e-4, 5e-4},
                  gains_to_1_9});
  hard.push_back(
      {make("identical", G::none, V::zero, Keys::identical, Gains::two, 4096), kOneKey, kOneKey});
  // Keys of entries +-1/8: all products of keys are exact.
  hard.push_back({make("squares", G::scalar, V::weak, Keys::squares, Gains::uniform, 1024),
                  {2e-6, 2e-5},
                  kUsualOnTiles});
  return hard;
}

void check(const Hard& hard, const Bounds& bounds, Context& cpu) {
  SCOPED_TRACE(hard.c.name + " " + std::to_string(static_cast<int>(hard.c.gate)));
  Context reference({.threads = 1, .backends = {"reference"}});
  Inputs inputs = make_inputs(hard.c);
  if (hard.change) hard.change(inputs);
  const Inputs exact = widened(inputs);
  const TwoKeyOut out = make_out(inputs), expected = make_out(exact);
  recurrence::two_key(cpu, inputs.sequences, inputs.two_key, out);
  recurrence::two_key(reference, exact.sequences, exact.two_key, expected);
  EXPECT_LE(relative_error(out.o, expected.o), bounds.outputs) << "o";
  EXPECT_LE(relative_error(out.final_state, expected.final_state), bounds.outputs) << "state";
  const TwoKeyGrads grads = make_grads(inputs), exact_grads = make_grads(exact);
  recurrence::two_key_vjp(cpu, inputs.sequences, inputs.two_key, inputs.cotangents, grads);
  recurrence::two_key_vjp(reference, exact.sequences, exact.two_key, exact.cotangents, exact_grads);
  const auto compare = [&](const char* name, const Tensor& gradient, const Tensor& wanted) {
    if (!gradient.defined()) return;
    EXPECT_LE(relative_error(gradient, wanted), bounds.gradients) << name;
  };
  compare("dq", grads.q, exact_grads.q);
  compare("de", grads.e, exact_grads.e);
  compare("dw", grads.w, exact_grads.w);
  compare("dv", grads.v, exact_grads.v);
  compare("dg", grads.g, exact_grads.g);
  compare("db", grads.b, exact_grads.b);
  compare("d initial_state", grads.initial_state, exact_grads.initial_state);
}

TEST(CpuConditioning, StaysWithinItsBounds) {
  Context cpu({.threads = 1, .precision = Precision::f32, .backends = {"cpu"}});
  for (const Hard& hard : list()) check(hard, hard.f32, cpu);
}

TEST(TileConditioning, StaysWithinItsBounds) {
  if (tile_unit() == TileUnit::none) GTEST_SKIP() << "no tile unit (RANKONE_ISA=amx-emulated)";
  Context cpu({.threads = 1, .precision = Precision::bf16x3, .backends = {"cpu"}});
  for (const Hard& hard : list()) check(hard, hard.tiles, cpu);
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
