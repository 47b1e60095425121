// Every case of the list in every format, forward and backward, against float64 on the same rounded
// inputs; outputs between guards and filled with NaN before (host_calls.hpp); and the same bits
// from the same call, on emulated threads in another order.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>

#include "core/status.hpp"
#include "formats.hpp"
#include "support.hpp"
#include "tests/cases/compare.hpp"
#include "tests/cases/plain.hpp"

namespace rankone::test {
namespace {

using recurrence::TwoKeyGrads;
using recurrence::TwoKeyOut;

struct FormatCase {
  Case c;
  Dtype format;
  std::string name() const { return c.name + "_" + std::string(rankone::name(format)); }
};
std::ostream& operator<<(std::ostream& out, const FormatCase& f) { return out << f.name(); }

// Emulated threads take long: there the largest cases are left out.
bool fits_emulation(const Case& c) {
  const std::int64_t work = sequences_of(c).rows() * c.value_heads * (c.d_k + 8) * (c.d_v + 8);
  return work <= std::int64_t{2000} * 40 * 40;
}

std::vector<FormatCase> format_cases() {
  std::vector<FormatCase> list;
  for (const Case& c : cases()) {
    for (const Dtype format : kFormats) {
      if (!kEmulated || fits_emulation(c)) list.push_back({c, format});
    }
  }
  return list;
}

// Whether a tensor of a draw keeps the rule.
struct Verdict {
  std::string tensor;
  testing::AssertionResult kept;
};
using Verdicts = std::vector<Verdict>;

// Where a row, or one number a head, is what a single product of a few numbers leaves, its error is
// one number too, and the plain implementation is now and then exact by luck, or the tensor is one
// such number under keys that expand. So a draw of the inputs that misses the rule is followed by
// this many others, of which at most so many may miss it: what a kernel does worse than it should
// misses in most of them.
constexpr int kDraws = 8, kMissed = 2;

class CudaCases : public testing::TestWithParam<FormatCase> {
 protected:
  void SetUp() override {
    RANKONE_NEEDS_CUDA();
    context_ = std::make_unique<Context>(host_context());
  }
  void TearDown() override { set_thread_order(0); }

  Dtype format() const { return GetParam().format; }
  Case drawn(int draw) const {
    Case c = GetParam().c;
    c.seed += static_cast<std::uint64_t>(draw);
    return c;
  }

  // `judge` takes a case and gives its verdicts, none where there is nothing to judge.
  template <class Judge>
  void expect_kept(Judge&& judge) const {
    const Verdicts first = judge(drawn(0));
    std::map<std::string, int> missed;
    for (const Verdict& verdict : first) {
      if (!verdict.kept) missed[verdict.tensor] = 0;
    }
    if (missed.empty()) return;
    for (int draw = 1; draw <= kDraws; ++draw) {
      for (const Verdict& verdict : judge(drawn(draw))) {
        const auto at = missed.find(verdict.tensor);
        if (at != missed.end() && !verdict.kept) ++at->second;
      }
    }
    for (const Verdict& verdict : first) {
      if (verdict.kept) continue;
      const int others = missed[verdict.tensor];
      std::printf("%s; and %d of %d other draws\n", verdict.kept.message(), others, kDraws);
      EXPECT_LE(others, kMissed) << verdict.kept.message();
    }
  }

  // f16 ends at 65504: what is larger there has no right result.
  bool representable(std::initializer_list<Tensor> expected) const {
    if (format() != Dtype::f16) return true;
    double largest = 0;
    for (const Tensor& tensor : expected) {
      if (!tensor.defined()) continue;
      for (const double x : tensor.span<double>()) largest = std::max(largest, std::abs(x));
    }
    return largest < 65000;
  }

  Tensor room_to_save(const Inputs& inputs) const {
    const std::int64_t numbers =
        recurrence::two_key_saved(*context_, inputs.sequences, inputs.two_key);
    return numbers > 0 ? Tensor::empty({numbers}, Dtype::f32) : Tensor();
  }

  void check(Verdicts& verdicts, const std::string& name, const Tensor& stored, const Tensor& plain,
             const Tensor& expected) const {
    if (!stored.defined()) return;
    const Tensor result = stored.to(Dtype::f32);
    const Case& c = GetParam().c;
    // As tests/recurrence/cases_two_key_test.cpp has it.
    constexpr std::int64_t kFew = 64;
    const bool few = result.count() < kFew || result.dim(-1) == 1;
    const auto at_most = [&](double allowed) {
      const double error = relative_error(result, expected);
      if (error <= allowed) return testing::AssertionSuccess();
      return testing::AssertionFailure()
             << name << ": relative error " << error << ", at most " << allowed;
    };
    if (format() != Dtype::f32 && few) {
      verdicts.push_back(
          {name, at_most(std::max(2 * relative_error(plain, expected), 0.5 * spacing(format())))});
    } else if (format() == Dtype::f32 && (c.bound > 0 || few)) {
      verdicts.push_back({name, at_most(std::max(c.bound, few ? 2e-5 : 0.0))});
    } else if (c.keys == Keys::identical && c.gains == Gains::two) {
      // Ill-conditioned: its rows scatter (up to 1.7 times over), its tensors do not.
      verdicts.push_back({name, at_most(2 * relative_error(plain, expected))});
    } else {
      verdicts.push_back({name, within_plain(name, result, plain, expected)});
    }
  }

  Context reference_{{.threads = 1, .backends = {"reference"}}};
  std::unique_ptr<Context> context_;
};

// The inputs of a draw in the format, and the same values in float32 and float64.
struct Draw {
  Draw(const Case& c, Dtype format)
      : inputs(in_format(make_inputs(c), format, gate_dtype(c, format))),
        floats(as_float(inputs)),
        wide(widened(floats)) {}
  Inputs inputs, floats, wide;
};

TEST_P(CudaCases, Forward) {
  if (GetParam().name() == "wild_keys_f16") {
    GTEST_SKIP() << "values beyond the range of f16 inside a chunk, though not in its results";
  }
  expect_kept([&](const Case& c) {
    const Draw draw(c, format());
    Verdicts verdicts;
    const TwoKeyOut expected = make_out(draw.wide);
    recurrence::two_key(reference_, draw.wide.sequences, draw.wide.two_key, expected);
    if (!representable({expected.o})) return verdicts;
    const TwoKeyOut plain = make_out(draw.floats);
    plain_two_key(format(), draw.floats, plain);
    const TwoKeyOut out = make_out(draw.inputs);
    set_thread_order(0);
    recurrence::two_key(*context_, draw.inputs.sequences, draw.inputs.two_key, out);
    check(verdicts, "o", out.o, plain.o, expected.o);
    check(verdicts, "final_state", out.final_state, plain.final_state, expected.final_state);

    set_thread_order(7);
    TwoKeyOut again = make_out(draw.inputs);
    again.saved = room_to_save(draw.inputs);
    recurrence::two_key(*context_, draw.inputs.sequences, draw.inputs.two_key, again);
    EXPECT_TRUE(same_bits("o", again.o, out.o));
    EXPECT_TRUE(same_bits("final_state", again.final_state, out.final_state));
    return verdicts;
  });
}

TEST_P(CudaCases, Backward) {
  expect_kept([&](const Case& c) {
    const Draw draw(c, format());
    const Inputs& inputs = draw.inputs;
    Verdicts verdicts;
    const TwoKeyGrads expected = make_grads(draw.wide);
    recurrence::two_key_vjp(reference_, draw.wide.sequences, draw.wide.two_key,
                            draw.wide.cotangents, expected);
    if (!representable({expected.q, expected.e, expected.w, expected.v, expected.g, expected.b})) {
      return verdicts;
    }
    const TwoKeyGrads plain = make_grads(draw.floats);
    plain_two_key_vjp(format(), draw.floats, plain);
    const TwoKeyGrads grads = make_grads(inputs);
    set_thread_order(0);
    recurrence::two_key_vjp(*context_, inputs.sequences, inputs.two_key, inputs.cotangents, grads);
    check(verdicts, "dq", grads.q, plain.q, expected.q);
    check(verdicts, "de", grads.e, plain.e, expected.e);
    check(verdicts, "dw", grads.w, plain.w, expected.w);
    check(verdicts, "dv", grads.v, plain.v, expected.v);
    if (c.gate == GateShape::channel) {
      check(verdicts, "dg", grads.g, plain.g, expected.g);
    } else {
      check(verdicts, "dg", by_head(grads.g), by_head(plain.g), by_head(expected.g));
    }
    check(verdicts, "db", by_head(grads.b), by_head(plain.b), by_head(expected.b));
    check(verdicts, "d initial_state", grads.initial_state, plain.initial_state,
          expected.initial_state);

    set_thread_order(11);
    // With what a forward pass leaves, where it leaves anything.
    TwoKeyOut out = make_out(inputs);
    recurrence::TwoKeyCotangents cotangents = inputs.cotangents;
    cotangents.saved = out.saved = room_to_save(inputs);
    if (out.saved.defined()) {
      recurrence::two_key(*context_, inputs.sequences, inputs.two_key, out);
    }
    const TwoKeyGrads again = make_grads(inputs);
    recurrence::two_key_vjp(*context_, inputs.sequences, inputs.two_key, cotangents, again);
    EXPECT_TRUE(same_bits("dq", again.q, grads.q));
    EXPECT_TRUE(same_bits("de", again.e, grads.e));
    EXPECT_TRUE(same_bits("dw", again.w, grads.w));
    EXPECT_TRUE(same_bits("dv", again.v, grads.v));
    EXPECT_TRUE(same_bits("dg", again.g, grads.g));
    EXPECT_TRUE(same_bits("db", again.b, grads.b));
    EXPECT_TRUE(same_bits("d initial_state", again.initial_state, grads.initial_state));
    return verdicts;
  });
}

INSTANTIATE_TEST_SUITE_P(TwoKey, CudaCases, testing::ValuesIn(format_cases()),
                         [](const auto& test) { return test.param.name(); });

}  // namespace
}  // namespace rankone::test
