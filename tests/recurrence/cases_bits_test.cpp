// Every case of the list again, for what must hold bit for bit: the same result for any number of
// threads and any contents of the scratch memory, nothing written or read outside the tensors, a
// packed sequence as if it were alone, a sequence cut at a chunk as if it were whole.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "core/isa.hpp"
#include "recurrence/backend.hpp"
#include "tests/cases/cases.hpp"
#include "tests/cases/compare.hpp"

namespace rankone::test {
namespace {

using recurrence::TwoKey;
using recurrence::TwoKeyGrads;
using recurrence::TwoKeyOut;

constexpr std::int64_t kChunk = 64;
constexpr std::int64_t kGuard = 64;  // floats before and behind a guarded tensor

struct Results {
  TwoKeyOut out;
  TwoKeyGrads grads;
};

Results empty_results(const Inputs& inputs) { return {make_out(inputs), make_grads(inputs)}; }

Context cpu_context(int threads, Precision precision = Precision::automatic) {
  return Context({.threads = threads, .precision = precision, .backends = {"cpu"}});
}

// The kernels that this process may run.
std::vector<Precision> precisions() {
  if (tile_unit() == TileUnit::none) return {Precision::f32};
  return {Precision::f32, Precision::bf16x3, Precision::bf16};
}

Results run(Context& context, const Inputs& inputs) {
  const Results results = empty_results(inputs);
  recurrence::two_key(context, inputs.sequences, inputs.two_key, results.out);
  recurrence::two_key_vjp(context, inputs.sequences, inputs.two_key, inputs.cotangents,
                          results.grads);
  return results;
}

void expect_same(const Results& a, const Results& b) {
  EXPECT_TRUE(same_bits("o", a.out.o, b.out.o));
  EXPECT_TRUE(same_bits("final_state", a.out.final_state, b.out.final_state));
  EXPECT_TRUE(same_bits("dq", a.grads.q, b.grads.q));
  EXPECT_TRUE(same_bits("de", a.grads.e, b.grads.e));
  EXPECT_TRUE(same_bits("dw", a.grads.w, b.grads.w));
  EXPECT_TRUE(same_bits("dv", a.grads.v, b.grads.v));
  EXPECT_TRUE(same_bits("dg", a.grads.g, b.grads.g));
  EXPECT_TRUE(same_bits("db", a.grads.b, b.grads.b));
  EXPECT_TRUE(same_bits("d initial_state", a.grads.initial_state, b.grads.initial_state));
}

// A copy of a tensor with guards around it, all bits set (NaN): a read outside poisons the result,
// a write outside breaks a guard.
class Guarded {
 public:
  Tensor around(const Tensor& tensor) {
    if (!tensor.defined()) return {};
    for (const auto& known : blocks_) {
      if (known.original == tensor.raw()) return known.inner;  // w may be the memory of e
    }
    const std::int64_t count = tensor.count();
    Block block;
    block.original = tensor.raw();
    block.whole = Tensor::empty({count + 2 * kGuard}, Dtype::f32);
    std::memset(block.whole.raw(), 0xff, block.whole.bytes());
    block.inner = Tensor::view(block.whole.data<float>() + kGuard, tensor.shape(), Dtype::f32);
    block.inner.copy_from(tensor);
    blocks_.push_back(block);
    return block.inner;
  }

  void expect_intact() const {
    for (const Block& block : blocks_) {
      const auto* bits = static_cast<const std::uint32_t*>(block.whole.raw());
      const std::int64_t count = block.whole.count();
      for (std::int64_t i = 0; i < kGuard; ++i) {
        ASSERT_EQ(bits[i], 0xffffffffU);
        ASSERT_EQ(bits[count - 1 - i], 0xffffffffU);
      }
    }
  }

 private:
  struct Block {
    const void* original = nullptr;
    Tensor whole, inner;
  };
  std::vector<Block> blocks_;
};

Inputs guarded(const Inputs& inputs, Guarded& guards) {
  const TwoKey& in = inputs.two_key;
  Inputs result = inputs;
  result.two_key = {guards.around(in.q),
                    guards.around(in.e),
                    guards.around(in.w),
                    guards.around(in.v),
                    guards.around(in.g),
                    guards.around(in.b),
                    guards.around(in.initial_state),
                    in.scale};
  result.cotangents = {guards.around(inputs.cotangents.o),
                       guards.around(inputs.cotangents.final_state)};
  return result;
}

Results guarded(const Results& results, Guarded& guards) {
  const TwoKeyGrads& g = results.grads;
  return {{guards.around(results.out.o), guards.around(results.out.final_state)},
          {guards.around(g.q), guards.around(g.e), guards.around(g.w), guards.around(g.v),
           guards.around(g.g), guards.around(g.b), guards.around(g.initial_state)}};
}

// Gives the arena what a planning pass asks for, in one piece.
void plan(Context& context, const Inputs& inputs) {
  context.arena().set_planning(true);
  run(context, inputs);
  const std::size_t peak = context.arena().peak();
  context.arena().set_planning(false);
  context.arena().reserve(peak);
}

// Fills a planned arena with a byte.
void poison(Context& context, int byte) {
  const std::size_t size = context.arena().capacity();
  const ArenaScope scope(context.arena());
  std::memset(context.arena().allocate(size), byte, size);
}

class Bits : public testing::TestWithParam<Case> {
 protected:
  void TearDown() override { print_repeat(); }

  const Inputs inputs_ = make_inputs(GetParam());
};

TEST_P(Bits, AnyThreadsAndAnyScratch) {
  for (const Precision precision : precisions()) {
    Context one = cpu_context(1, precision);
    const Results first = run(one, inputs_);
    for (const int threads : {1, 2, 3, 4}) {
      Context context = cpu_context(threads, precision);
      plan(context, inputs_);
      const std::size_t planned = context.arena().capacity();
      for (const int byte : {0xff, 0x7f}) {  // NaN, and 3.4e38
        poison(context, byte);
        expect_same(run(context, inputs_), first);
      }
      EXPECT_EQ(context.arena().capacity(), planned) << "more scratch than the planning pass saw";
      if (HasFailure()) return;
    }
  }
}

TEST_P(Bits, GradientOfTiedKeysIsTheSum) {
  const TwoKeyGrads apart = make_grads(inputs_);
  if (!apart.e.defined()) GTEST_SKIP() << "no erase keys";
  for (const Precision precision : precisions()) {
    Context context = cpu_context(2, precision);
    recurrence::two_key_vjp(context, inputs_.sequences, inputs_.two_key, inputs_.cotangents, apart);
    TwoKeyGrads joined = make_grads(inputs_);
    joined.w = joined.e;
    recurrence::two_key_vjp(context, inputs_.sequences, inputs_.two_key, inputs_.cotangents,
                            joined);
    const Tensor sum = apart.e.clone();
    for (std::int64_t i = 0; i < sum.count(); ++i) {
      sum.data<float>()[i] += apart.w.data<float>()[i];
    }
    if (GetParam().value_heads == GetParam().heads) {
      EXPECT_TRUE(same_bits("de + dw", joined.e, sum));
    } else {  // value heads are added in another order
      EXPECT_LE(relative_error(joined.e, sum.to(Dtype::f64)), 1e-6);
    }
    EXPECT_TRUE(same_bits("dq", joined.q, apart.q));
    EXPECT_TRUE(same_bits("dv", joined.v, apart.v));
  }
}

TEST_P(Bits, NothingOutsideTheTensors) {
  Context context = cpu_context(2);
  const Results expected = run(context, inputs_);
  Guarded read;
  Guarded written;
  const Inputs inputs = guarded(inputs_, read);
  const Results results = guarded(empty_results(inputs_), written);
  recurrence::two_key(context, inputs.sequences, inputs.two_key, results.out);
  recurrence::two_key_vjp(context, inputs.sequences, inputs.two_key, inputs.cotangents,
                          results.grads);
  expect_same(results, expected);
  read.expect_intact();
  written.expect_intact();
  // The inputs themselves are only read.
  EXPECT_TRUE(same_bits("q", inputs.two_key.q, inputs_.two_key.q));
  EXPECT_TRUE(same_bits("e", inputs.two_key.e, inputs_.two_key.e));
  EXPECT_TRUE(same_bits("w", inputs.two_key.w, inputs_.two_key.w));
  EXPECT_TRUE(same_bits("v", inputs.two_key.v, inputs_.two_key.v));
  EXPECT_TRUE(same_bits("g", inputs.two_key.g, inputs_.two_key.g));
  EXPECT_TRUE(same_bits("b", inputs.two_key.b, inputs_.two_key.b));
  EXPECT_TRUE(same_bits("state", inputs.two_key.initial_state, inputs_.two_key.initial_state));
}

TEST_P(Bits, StateUpdatedInPlace) {
  if (!inputs_.two_key.initial_state.defined()) return;
  Context context = cpu_context(2);
  const TwoKeyOut expected = make_out(inputs_);
  recurrence::two_key(context, inputs_.sequences, inputs_.two_key, expected);
  TwoKey in = inputs_.two_key;
  in.initial_state = in.initial_state.clone();
  const TwoKeyOut out{make_out(inputs_).o, in.initial_state};
  recurrence::two_key(context, inputs_.sequences, in, out);
  EXPECT_TRUE(same_bits("o", out.o, expected.o));
  EXPECT_TRUE(same_bits("final_state", out.final_state, expected.final_state));
}

// Rows [begin, end) and the state of one sequence as a call of its own.
Inputs piece(const Inputs& inputs, std::int64_t sequence, std::int64_t begin, std::int64_t end) {
  const TwoKey& in = inputs.two_key;
  const auto rows = [&](const Tensor& tensor) {
    return tensor.defined() ? tensor.slice(0, begin, end).clone() : Tensor();
  };
  const auto state = [&](const Tensor& tensor) {
    return tensor.defined() ? tensor.slice(0, sequence, sequence + 1).clone() : Tensor();
  };
  Inputs result{Sequences::dense(1, end - begin), {}, {}};
  result.two_key = {rows(in.q),
                    rows(in.e),
                    rows(in.w),
                    rows(in.v),
                    rows(in.g),
                    rows(in.b),
                    state(in.initial_state),
                    in.scale};
  result.cotangents = {rows(inputs.cotangents.o), state(inputs.cotangents.final_state)};
  return result;
}

Results part_of(const Results& whole, std::int64_t sequence, std::int64_t begin, std::int64_t end) {
  const auto rows = [&](const Tensor& tensor) {
    return tensor.defined() ? tensor.slice(0, begin, end).clone() : Tensor();
  };
  const auto state = [&](const Tensor& tensor) {
    return tensor.defined() ? tensor.slice(0, sequence, sequence + 1).clone() : Tensor();
  };
  const TwoKeyGrads& g = whole.grads;
  return {
      {rows(whole.out.o), state(whole.out.final_state)},
      {rows(g.q), rows(g.e), rows(g.w), rows(g.v), rows(g.g), rows(g.b), state(g.initial_state)}};
}

TEST_P(Bits, EverySequenceAsIfAlone) {
  for (const Precision precision : precisions()) {
    Context context = cpu_context(2, precision);
    const Results together = run(context, inputs_);
    const std::int64_t count = std::min<std::int64_t>(inputs_.sequences.count(), 50);
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t begin = inputs_.sequences.begin(i), end = inputs_.sequences.end(i);
      expect_same(run(context, piece(inputs_, i, begin, end)), part_of(together, i, begin, end));
      if (HasFailure()) return;
    }
  }
}

// One sequence in two calls, the state and its gradient handed over, against one call.
void expect_cut_as_whole(Context& context, const Inputs& whole, const Results& expected,
                         std::int64_t cut) {
  const std::int64_t end = whole.sequences.rows();
  Inputs first = piece(whole, 0, 0, cut);
  Inputs second = piece(whole, 0, cut, end);
  Results left = empty_results(first);
  Results right = empty_results(second);
  recurrence::two_key(context, first.sequences, first.two_key, left.out);
  second.two_key.initial_state = left.out.final_state;
  right.grads.initial_state = make_out(first).final_state;
  recurrence::two_key(context, second.sequences, second.two_key, right.out);
  recurrence::two_key_vjp(context, second.sequences, second.two_key, second.cotangents,
                          right.grads);
  first.cotangents.final_state = right.grads.initial_state;
  recurrence::two_key_vjp(context, first.sequences, first.two_key, first.cotangents, left.grads);

  const Results head = part_of(expected, 0, 0, cut);
  const Results tail = part_of(expected, 0, cut, end);
  left.out.final_state = head.out.final_state;  // of the cut, which the whole run never shows
  right.grads.initial_state = tail.grads.initial_state;
  expect_same(left, head);
  expect_same(right, tail);
}

TEST_P(Bits, CutAtAChunkAsIfWhole) {
  if (inputs_.sequences.count() == 0) return;
  const Inputs whole = piece(inputs_, 0, inputs_.sequences.begin(0), inputs_.sequences.end(0));
  const std::int64_t end = whole.sequences.rows();
  for (const Precision precision : precisions()) {
    if (end <= kChunk) return;
    Context context = cpu_context(1, precision);
    const Results expected = run(context, whole);
    expect_cut_as_whole(context, whole, expected, kChunk);
    const std::int64_t last = (end - 1) / kChunk * kChunk;
    if (last > kChunk) expect_cut_as_whole(context, whole, expected, last);
    if (HasFailure()) return;
  }
}

// Every number of rows behind the last chunk: which kernels take them does not depend on the cut.
TEST(BitsOfACut, AnyRestAsIfWhole) {
  for (const GateShape gate : {GateShape::none, GateShape::scalar, GateShape::channel}) {
    for (const std::int64_t rest : {1, 2, 3, 31, 32, 33, 63, 64}) {
      for (const std::int64_t d_v : {40, 3}) {
        Case c{.name = "cut", .gate = gate, .time = 2 * kChunk + rest, .d_k = 24, .d_v = d_v};
        c.value_heads = 2;
        const Inputs inputs = make_inputs(c);
        for (const Precision precision : precisions()) {
          SCOPED_TRACE(std::to_string(rest) + " rows, precision " +
                       std::to_string(static_cast<int>(precision)));
          Context context = cpu_context(1, precision);
          const Results expected = run(context, inputs);
          expect_cut_as_whole(context, inputs, expected, kChunk);
          expect_cut_as_whole(context, inputs, expected, 2 * kChunk);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(TwoKey, Bits, testing::ValuesIn(cases()),
                         [](const auto& test) { return test.param.name; });

// A NaN in one sequence, whatever tensor it is in: the others have their bits, forward and
// backward, though they follow it in the same scratch.
TEST(BitsOfNaN, StaysInItsSequence) {
  for (const GateShape gate : {GateShape::none, GateShape::scalar, GateShape::channel}) {
    Case c{.name = "nan", .gate = gate, .heads = 2, .value_heads = 4};
    c.d_k = 24;
    c.d_v = 40;
    c.cu_seqlens = {0, 70, 140, 143, 250};
    const Inputs clean = make_inputs(c);
    for (const Precision precision : precisions()) {
      Context context = cpu_context(1, precision);
      const Results expected = run(context, clean);
      for (int which = 0; which < 8; ++which) {
        Inputs dirty = clean;
        TwoKey& in = dirty.two_key;
        Tensor* const tensors[] = {
            &in.q, &in.e, &in.w, &in.v, &in.g, &in.b, &in.initial_state, &dirty.cotangents.o};
        Tensor& tensor = *tensors[which];
        if (!tensor.defined()) continue;
        tensor = tensor.clone();
        const std::int64_t row = which == 6 ? 1 : 75;
        tensor.slice(0, row, row + 1).fill(NAN);
        const Results results = run(context, dirty);
        for (const std::int64_t i : {0, 2, 3}) {
          SCOPED_TRACE("tensor " + std::to_string(which) + ", sequence " + std::to_string(i));
          const std::int64_t begin = c.cu_seqlens[static_cast<std::size_t>(i)];
          const std::int64_t end = c.cu_seqlens[static_cast<std::size_t>(i) + 1];
          expect_same(part_of(results, i, begin, end), part_of(expected, i, begin, end));
        }
      }
      if (testing::Test::HasFailure()) return;
    }
  }
}

// T12: the same call thirty times, the scratch poisoned differently each time.
TEST(BitsRepeated, ThirtyCallsOneResult) {
  Case c{.name = "repeated", .gate = GateShape::scalar, .batch = 4, .time = 512};
  c.heads = c.value_heads = 4;
  const Inputs inputs = make_inputs(c);
  Context context = cpu_context(4);
  plan(context, inputs);
  const Results first = run(context, inputs);
  for (int i = 0; i < 30; ++i) {
    poison(context, i * 8 + 5);
    expect_same(run(context, inputs), first);
    if (HasFailure()) return;
  }
}

// Results of more than the second cache holds are written past it.
TEST(BitsOfLargeResults, EverySequenceAsIfAlone) {
  Case c{.name = "large", .gate = GateShape::scalar, .batch = 2, .time = 1064};
  c.heads = c.value_heads = 4;
  c.d_k = c.d_v = 128;
  const Inputs inputs = make_inputs(c);
  Context context = cpu_context(2, precisions().back());
  const Results together = run(context, inputs);
  for (const std::int64_t i : {0, 1}) {
    const std::int64_t begin = inputs.sequences.begin(i), end = inputs.sequences.end(i);
    expect_same(run(context, piece(inputs, i, begin, end)), part_of(together, i, begin, end));
  }
  TwoKeyGrads joined = make_grads(inputs);
  joined.w = joined.e;
  recurrence::two_key_vjp(context, inputs.sequences, inputs.two_key, inputs.cotangents, joined);
  const Tensor sum = together.grads.e.clone();
  for (std::int64_t i = 0; i < sum.count(); ++i) {
    sum.data<float>()[i] += together.grads.w.data<float>()[i];
  }
  EXPECT_TRUE(same_bits("de + dw", joined.e, sum));
}

}  // namespace
}  // namespace rankone::test
