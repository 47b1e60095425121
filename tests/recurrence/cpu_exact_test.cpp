// What the float32 chunk form must get exactly right, forward in blocks and backward at every chunk
// length: inputs whose results are representable, symmetries that cost no rounding, and the
// residual of the triangular solve.

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include "recurrence/cpu/kernels.hpp"
#include "recurrence/cpu/two_key.hpp"
#include "tests/cases/cases.hpp"
#include "tests/cases/compare.hpp"
#include "tests/cases/tensors.hpp"

namespace rankone::test {
namespace {

using recurrence::TwoKey;
using recurrence::TwoKeyOut;
using recurrence::cpu::kernels;
using recurrence::cpu::leading;

Context cpu_context(int threads = 1) {
  return Context({.threads = threads, .backends = {"cpu", "reference"}});
}

TwoKeyOut run(const Inputs& inputs) {
  Context context = cpu_context();
  const TwoKeyOut out = make_out(inputs);
  recurrence::cpu::two_key(context, inputs.sequences, inputs.two_key, out);
  return out;
}

class ChunkLengths : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Chunk, ChunkLengths, testing::Values(1, 16, 64));

// One-hot keys and gain 1: the state is a dictionary, written, overwritten and read.
TEST(CpuExact, OneHotKeysMakeADictionary) {
  constexpr std::int64_t kTime = 200, kKeys = 24, kValues = 20;
  Random random(2);
  for (const GateShape gate : {GateShape::none, GateShape::scalar, GateShape::channel}) {
    Case c{.name = "dictionary", .gate = gate, .gates = GateValues::zero};
    c.time = kTime;
    c.d_k = kKeys;
    c.d_v = kValues;
    c.initial = false;
    Inputs inputs = make_inputs(c);
    TwoKey& in = inputs.two_key;
    in.scale = 1.0;
    in.e.fill(0);
    in.q.fill(0);
    std::map<std::uint64_t, std::vector<float>> dictionary;
    Tensor expected = Tensor::zeros(inputs.cotangents.o.shape(), Dtype::f32);
    for (std::int64_t t = 0; t < kTime; ++t) {
      const std::uint64_t key = random.below(kKeys), query = random.below(kKeys);
      const bool writes = random.below(4) != 0;  // gain 0 leaves the state alone
      in.e.data<float>()[t * kKeys + static_cast<std::int64_t>(key)] = 1;
      in.q.data<float>()[t * kKeys + static_cast<std::int64_t>(query)] = 1;
      in.b.data<float>()[t] = writes ? 1.0F : 0.0F;
      float* value = in.v.data<float>() + t * kValues;
      for (std::int64_t i = 0; i < kValues; ++i) {
        value[i] = static_cast<float>(random.below(2000)) - 1000;
      }
      if (writes) dictionary[key].assign(value, value + kValues);
      const auto found = dictionary.find(query);
      if (found == dictionary.end()) continue;
      std::copy(found->second.begin(), found->second.end(), expected.data<float>() + t * kValues);
    }
    EXPECT_TRUE(same_bits("o", run(inputs).o, expected));
  }
}

// Decay 1/2 and integers: every sum is a number of float32.
TEST(CpuExact, HalvingIsExact) {
  constexpr std::int64_t kTime = 20, kSize = 16;
  Case c{.name = "halving", .gate = GateShape::scalar, .gains = Gains::none};
  c.time = kTime;
  c.d_k = c.d_v = kSize;
  c.delta = false;
  Inputs inputs = make_inputs(c);
  TwoKey& in = inputs.two_key;
  Random random(4);
  in.scale = 1.0;
  in.g.fill(std::log(0.5));
  for (const Tensor& tensor : {in.q, in.w, in.v}) {
    for (float& x : tensor.span<float>()) x = static_cast<float>(random.below(3)) - 1;
  }
  in.initial_state.fill(0);
  // In integers: 2^t S_t, which doubles what is new instead of halving what is old.
  std::vector<std::int64_t> state(kSize * kSize, 0);
  Tensor expected = nan_like(inputs.cotangents.o);
  for (std::int64_t t = 0; t < kTime; ++t) {
    for (std::int64_t j = 0; j < kSize; ++j) {
      std::int64_t out = 0;
      for (std::int64_t d = 0; d < kSize; ++d) {
        const auto at = [&](const Tensor& x, std::int64_t i) {
          return static_cast<std::int64_t>(x.data<float>()[t * kSize + i]);
        };
        state[static_cast<std::size_t>(d * kSize + j)] += (at(in.w, d) * at(in.v, j)) << t;
        out += at(in.q, d) * state[static_cast<std::size_t>(d * kSize + j)];
      }
      expected.data<float>()[t * kSize + j] =
          static_cast<float>(std::ldexp(static_cast<double>(out), -static_cast<int>(t)));
    }
  }
  EXPECT_TRUE(same_bits("o", run(inputs).o, expected));
}

TEST_P(ChunkLengths, AgreesWithFloat64) {
  Context reference({.threads = 1, .backends = {"reference"}});
  for (const GateShape gate : {GateShape::none, GateShape::scalar, GateShape::channel}) {
    for (const GateValues values : {GateValues::weak, GateValues::mixed}) {
      Case c{.name = "lengths", .gate = gate, .gates = values, .time = 150};
      c.two_keys = true;
      const Inputs inputs = make_inputs(c);
      const Inputs exact = widened(inputs);
      const TwoKeyOut expected = make_out(exact);
      recurrence::two_key(reference, exact.sequences, exact.two_key, expected);
      const TwoKeyOut out = run(inputs);
      EXPECT_LE(relative_error(out.o, expected.o), 3e-6);
      EXPECT_LE(relative_error(out.final_state, expected.final_state), 3e-6);
      const recurrence::TwoKeyGrads grads = make_grads(inputs), exact_grads = make_grads(exact);
      Context context = cpu_context();
      recurrence::cpu::two_key_vjp_chunked(context, inputs.sequences, inputs.two_key,
                                           inputs.cotangents, grads, GetParam());
      recurrence::two_key_vjp(reference, exact.sequences, exact.two_key, exact.cotangents,
                              exact_grads);
      EXPECT_LE(relative_error(grads.q, exact_grads.q), 3e-6);
      EXPECT_LE(relative_error(grads.e, exact_grads.e), 3e-6);
      EXPECT_LE(relative_error(grads.w, exact_grads.w), 3e-6);
      EXPECT_LE(relative_error(grads.v, exact_grads.v), 3e-6);
      EXPECT_LE(relative_error(grads.b, exact_grads.b), 3e-6);
      if (gate == GateShape::none) continue;
      EXPECT_LE(relative_error(grads.g, exact_grads.g), 3e-6);
    }
  }
}

TEST(CpuExact, ScalingTheValuesScalesTheOutputs) {
  Case c{.name = "scaling", .gate = GateShape::channel, .time = 150};
  const Inputs inputs = make_inputs(c);
  Inputs scaled = inputs;
  for (Tensor* tensor : {&scaled.two_key.v, &scaled.two_key.initial_state}) {
    *tensor = tensor->clone();
    for (float& x : tensor->span<float>()) x *= 1024;
  }
  const TwoKeyOut out = run(inputs);
  for (const Tensor& tensor : {out.o, out.final_state}) {
    for (float& x : tensor.span<float>()) x *= 1024;
  }
  const TwoKeyOut large = run(scaled);
  EXPECT_TRUE(same_bits("o", large.o, out.o));
  EXPECT_TRUE(same_bits("final_state", large.final_state, out.final_state));
}

// Elements of an axis in reversed order.
Tensor reversed(const Tensor& tensor, int axis) {
  if (!tensor.defined()) return {};
  const Tensor result = Tensor::empty(tensor.shape(), tensor.dtype());
  for (std::int64_t i = 0; i < tensor.dim(axis); ++i) {
    const std::int64_t other = tensor.dim(axis) - 1 - i;
    result.slice(axis, i, i + 1).copy_from(tensor.slice(axis, other, other + 1));
  }
  return result;
}

TEST(CpuExact, PermutedHeadsAndSequencesPermuteTheOutputs) {
  Case c{.name = "permuted", .gate = GateShape::scalar, .batch = 3, .time = 70};
  c.heads = c.value_heads = 4;
  Inputs inputs = make_inputs(c);
  const TwoKeyOut out = run(inputs);
  const auto with = [&](auto&& change) {
    TwoKey in = inputs.two_key;
    for (Tensor* tensor : {&in.q, &in.e, &in.w, &in.v, &in.g, &in.b}) *tensor = change(*tensor);
    return in;
  };
  Inputs heads = inputs;
  heads.two_key = with([](const Tensor& t) { return reversed(t, 1); });
  heads.two_key.initial_state = reversed(inputs.two_key.initial_state, 1);
  EXPECT_TRUE(same_bits("heads", run(heads).o, reversed(out.o, 1)));

  const auto batch_reversed = [&](const Tensor& tensor) {
    std::vector<std::int64_t> axes{c.batch, c.time};
    for (int i = 1; i < tensor.rank(); ++i) axes.push_back(tensor.dim(i));
    return reversed(tensor.reshape(Shape(axes)), 0).reshape(tensor.shape());
  };
  Inputs batch = inputs;
  batch.two_key = with(batch_reversed);
  batch.two_key.initial_state = reversed(inputs.two_key.initial_state, 0);
  EXPECT_TRUE(same_bits("batch", run(batch).o, batch_reversed(out.o)));
}

// T8: a sequence cut anywhere, the state and its gradient passed on.
TEST(CpuExact, CutAnywhere) {
  Case c{.name = "cut", .gate = GateShape::scalar, .time = 512};
  const Inputs whole = make_inputs(c);
  Context context = cpu_context();
  const TwoKeyOut expected = run(whole);
  const recurrence::TwoKeyGrads grads = make_grads(whole);
  recurrence::two_key_vjp(context, whole.sequences, whole.two_key, whole.cotangents, grads);
  const auto rows = [&](const Tensor& t, std::int64_t begin, std::int64_t end) {
    return t.slice(0, begin, end).to(Dtype::f64);
  };
  for (const std::int64_t cut : {1, 15, 63, 64, 65, 300}) {
    std::array<Inputs, 2> parts{whole, whole};
    for (int i = 0; i < 2; ++i) {
      const std::int64_t begin = i == 0 ? 0 : cut, end = i == 0 ? cut : c.time;
      TwoKey& in = parts[static_cast<std::size_t>(i)].two_key;
      for (Tensor* t : {&in.q, &in.e, &in.w, &in.v, &in.g, &in.b,
                        &parts[static_cast<std::size_t>(i)].cotangents.o}) {
        *t = t->slice(0, begin, end).clone();
      }
      parts[static_cast<std::size_t>(i)].sequences = Sequences::dense(1, end - begin);
    }
    const TwoKeyOut left = run(parts[0]);
    parts[1].two_key.initial_state = left.final_state;
    const TwoKeyOut right = run(parts[1]);
    const recurrence::TwoKeyGrads d_right = make_grads(parts[1]), d_left = make_grads(parts[0]);
    recurrence::two_key_vjp(context, parts[1].sequences, parts[1].two_key, parts[1].cotangents,
                            d_right);
    parts[0].cotangents.final_state = d_right.initial_state;
    recurrence::two_key_vjp(context, parts[0].sequences, parts[0].two_key, parts[0].cotangents,
                            d_left);
    EXPECT_LE(relative_error(left.o, rows(expected.o, 0, cut)), 1e-6) << cut;
    EXPECT_LE(relative_error(right.o, rows(expected.o, cut, c.time)), 1e-6) << cut;
    EXPECT_LE(relative_error(right.final_state, wide(expected.final_state)), 1e-6) << cut;
    EXPECT_LE(relative_error(d_left.e, rows(grads.e, 0, cut)), 2e-6) << cut;
    EXPECT_LE(relative_error(d_left.v, rows(grads.v, 0, cut)), 2e-6) << cut;
    EXPECT_LE(relative_error(d_left.g, rows(grads.g, 0, cut)), 5e-6) << cut;
    EXPECT_LE(relative_error(d_left.initial_state, wide(grads.initial_state)), 2e-6) << cut;
  }
}

// A NaN stays in its sequence, in its head, and behind its token.
TEST(CpuExact, NaNDoesNotLeak) {
  for (const GateShape gate : {GateShape::scalar, GateShape::channel}) {
    Case c{.name = "nan", .gate = gate, .batch = 2, .time = 130};
    c.heads = c.value_heads = 2;
    const Inputs inputs = make_inputs(c);
    const TwoKeyOut clean = run(inputs);
    constexpr std::int64_t kToken = 69;
    for (int which = 0; which < 4; ++which) {
      Inputs dirty = inputs;
      TwoKey& in = dirty.two_key;
      Tensor* tensor = std::array{&in.q, &in.v, &in.g, &in.e}[static_cast<std::size_t>(which)];
      *tensor = tensor->clone();
      tensor->slice(0, kToken, kToken + 1)
          .slice(1, 1, 2)
          .fill(std::numeric_limits<double>::quiet_NaN());
      if (which == 3) in.w = in.e;
      const TwoKeyOut out = run(dirty);
      EXPECT_TRUE(same_bits("before", out.o.slice(0, 0, kToken).clone(),
                            clean.o.slice(0, 0, kToken).clone()));
      EXPECT_TRUE(
          same_bits("head 0", out.o.slice(1, 0, 1).clone(), clean.o.slice(1, 0, 1).clone()));
      EXPECT_TRUE(same_bits("sequence 1", out.o.slice(0, c.time, 2 * c.time).clone(),
                            clean.o.slice(0, c.time, 2 * c.time).clone()));
      EXPECT_TRUE(std::isnan(out.o.slice(0, kToken, kToken + 1).slice(1, 1, 2).data<float>()[0]));
    }
  }
}

// T3 and the residual test of LAPACK: ||(I + L) X - B|| / (||I + L|| ||X|| n eps) below 10, on a
// random triangle whose inverse reaches 1e10 and on the triangle of identical keys at gain 2.
TEST(CpuExact, SolveHasASmallResidual) {
  constexpr int kSize = 64;
  const std::int64_t row = leading(kSize);
  Random random(6);
  for (const bool identical : {false, true}) {
    for (const bool transposed : {false, true}) {
      const Tensor lower = Tensor::zeros({kSize, row}, Dtype::f32);
      const Tensor right = Tensor::zeros({kSize, row}, Dtype::f32);
      for (int i = 0; i < kSize; ++i) {
        for (int j = 0; j < i; ++j) {
          lower.data<float>()[i * row + j] =
              identical ? -2.0F : static_cast<float>(random.normal());
        }
        for (int j = 0; j < kSize; ++j) {
          right.data<float>()[i * row + j] = static_cast<float>(random.normal());
        }
      }
      const Tensor x = right.clone();
      const auto solve = transposed ? kernels().solve_lower_transposed : kernels().solve_lower;
      solve({lower.data<float>(), row, x.data<float>(), row, x.data<float>(), row, kSize, kSize});
      double residual = 0, norm_x = 0, norm_l = kSize;
      for (int i = 0; i < kSize; ++i) {
        for (int j = 0; j < kSize; ++j) {
          double sum = x.data<float>()[i * row + j];
          for (int m = 0; m < kSize; ++m) {
            const std::int64_t at = transposed ? m * row + i : i * row + m;
            if (transposed ? m > i : m < i) {
              sum -= static_cast<double>(lower.data<float>()[at]) * x.data<float>()[m * row + j];
            }
          }
          residual += std::pow(sum - right.data<float>()[i * row + j], 2);
          norm_x += std::pow(static_cast<double>(x.data<float>()[i * row + j]), 2);
          norm_l += std::pow(static_cast<double>(lower.data<float>()[i * row + j]), 2);
        }
      }
      const double scaled = std::sqrt(residual) / (std::sqrt(norm_l * norm_x) * kSize * 0x1p-23);
      EXPECT_LT(scaled, 10.0) << identical << transposed;
      EXPECT_TRUE(std::isfinite(norm_x));
      if (!identical) {
        EXPECT_GT(norm_x, 1e16);  // the input is as bad as it is meant to be
      }
    }
  }
}

// T6: suffix sums are sums of the suffix, not a total minus a prefix.
TEST(CpuExact, SuffixSumsDoNotSubtract) {
  constexpr int kRows = 64, kChannels = 16;
  const std::int64_t row = leading(kChannels);
  const Tensor zero = Tensor::zeros({kRows, row}, Dtype::f32);
  const Tensor inner = Tensor::zeros({kRows, row}, Dtype::f32);
  const Tensor out = nan_like(inner);
  for (int i = 0; i < kRows; ++i) inner.slice(0, i, i + 1).fill(i < 32 ? 1e8 : 1.0);
  const float* none = zero.data<float>();
  kernels().channel_decay_grad({.query = none,
                                .query_back = none,
                                .erase = none,
                                .erase_back = none,
                                .write = none,
                                .write_back = none,
                                .row = row,
                                .whole = none,
                                .inner = inner.data<float>(),
                                .inner_row = row,
                                .out = out.data<float>(),
                                .out_row = row,
                                .n = kRows,
                                .channels = kChannels});
  EXPECT_EQ(out.data<float>()[32 * row], 32.0F);
  EXPECT_EQ(out.data<float>()[63 * row], 1.0F);
}

// T11: elements behind offset 2^31. One mapping of zero pages serves as every key; only the last
// rows hold anything.
TEST(CpuExact, LargeOffsetsDoNotWrap) {
  constexpr std::int64_t kKeys = 256, kRows = (std::int64_t{1} << 31) / kKeys + 200;
  constexpr std::size_t kBytes = static_cast<std::size_t>(kRows * kKeys) * sizeof(float);
  void* memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) GTEST_SKIP() << "no address space of 8 GiB";
  TwoKey in;
  in.q = in.e = in.w = Tensor::view(memory, {kRows, 1, kKeys}, Dtype::f32);
  in.v = Tensor::zeros({kRows, 1, 1}, Dtype::f32);
  const TwoKeyOut out{nan_like(in.v), Tensor()};
  Random random(8);
  for (std::int64_t t = kRows - 100; t < kRows; ++t) {
    const auto key = static_cast<std::int64_t>(random.below(kKeys));
    in.q.data<float>()[t * kKeys + key] = 1;
    in.v.data<float>()[t] = static_cast<float>(t % 1000) + 1;
  }
  Context context = cpu_context(2);
  recurrence::two_key(context, Sequences::dense(1, kRows), in, out);
  // One-hot keys: what is written is what is read.
  EXPECT_EQ(out.o.data<float>()[0], 0.0F);
  for (std::int64_t t = kRows - 100; t < kRows; ++t) {
    ASSERT_EQ(out.o.data<float>()[t], in.v.data<float>()[t]) << t;
  }
  munmap(memory, kBytes);
}

// Long sequences: the error of the state does not grow with the number of tokens.
TEST(CpuExact, NoDriftOverALongSequence) {
  constexpr std::int64_t kTime = 100000;
  for (const GateShape gate : {GateShape::none, GateShape::scalar, GateShape::channel}) {
    Case c{.name = "drift", .gate = gate, .gates = GateValues::weak, .time = kTime};
    c.d_k = c.d_v = 8;
    const Inputs inputs = make_inputs(c);
    const Inputs exact = widened(inputs);
    Context reference({.threads = 1, .backends = {"reference"}});
    const TwoKeyOut expected = make_out(exact);
    recurrence::two_key(reference, exact.sequences, exact.two_key, expected);
    const TwoKeyOut out = run(inputs);
    EXPECT_LE(relative_error(out.final_state, expected.final_state), 2e-6);
    EXPECT_LE(relative_error(out.o, expected.o), 2e-6);
  }
}

}  // namespace
}  // namespace rankone::test
