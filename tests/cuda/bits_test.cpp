// What must hold bit for bit: a sequence is what it is whatever its neighbours in the batch, a
// state may be updated in place, a captured call repeats itself, and the boundaries of a packed
// call stay its own.

#include <optional>
#include <vector>

#include "formats.hpp"
#include "support.hpp"
#include "tests/cases/compare.hpp"

namespace rankone::test {
namespace {

using recurrence::TwoKey;
using recurrence::TwoKeyGrads;
using recurrence::TwoKeyOut;

struct Results {
  TwoKeyOut out;
  TwoKeyGrads grads;
};

Results run(Context& context, const Inputs& inputs) {
  const Results results{make_out(inputs), make_grads(inputs)};
  recurrence::two_key(context, inputs.sequences, inputs.two_key, results.out);
  recurrence::two_key_vjp(context, inputs.sequences, inputs.two_key, inputs.cotangents,
                          results.grads);
  return results;
}

Tensor rows_of(const Tensor& tensor, const Sequences& sequences, std::int64_t i) {
  if (!tensor.defined()) return tensor;
  return tensor.slice(0, sequences.begin(i), sequences.end(i)).clone();
}
Tensor state_of(const Tensor& tensor, std::int64_t i) {
  return tensor.defined() ? tensor.slice(0, i, i + 1).clone() : tensor;
}

// One sequence as a call of its own.
Inputs alone(const Inputs& inputs, std::int64_t i) {
  const TwoKey& in = inputs.two_key;
  const auto rows = [&](const Tensor& tensor) { return rows_of(tensor, inputs.sequences, i); };
  Inputs result{Sequences::dense(1, inputs.sequences.length(i)), {}, {}};
  TwoKey& to = result.two_key;
  to = {rows(in.q),
        rows(in.e),
        rows(in.w),
        rows(in.v),
        rows(in.g),
        rows(in.b),
        state_of(in.initial_state, i),
        in.scale};
  if (in.e.defined() && in.e.raw() == in.w.raw()) to.e = to.w;
  result.cotangents = {rows(inputs.cotangents.o), state_of(inputs.cotangents.final_state, i)};
  return result;
}

void expect_part(const Results& part, const Results& whole, const Sequences& sequences,
                 std::int64_t i) {
  const auto rows = [&](const char* name, const Tensor& mine, const Tensor& all) {
    EXPECT_TRUE(same_bits(name, mine, rows_of(all, sequences, i))) << "sequence " << i;
  };
  rows("o", part.out.o, whole.out.o);
  rows("dq", part.grads.q, whole.grads.q);
  rows("de", part.grads.e, whole.grads.e);
  rows("dw", part.grads.w, whole.grads.w);
  rows("dv", part.grads.v, whole.grads.v);
  rows("dg", part.grads.g, whole.grads.g);
  rows("db", part.grads.b, whole.grads.b);
  EXPECT_TRUE(same_bits("final_state", part.out.final_state, state_of(whole.out.final_state, i)));
  EXPECT_TRUE(same_bits("d initial_state", part.grads.initial_state,
                        state_of(whole.grads.initial_state, i)));
}

struct Neighbours {
  Case c;
  Dtype format;
};

std::vector<Neighbours> neighbours() {
  std::vector<Neighbours> list;
  for (const Case& c : cases()) {
    if (c.name != "packed" && c.name != "packed_channel" && c.name != "scalar" &&
        c.name != "channel" && c.name != "t10_empty_sequences") {
      continue;
    }
    for (const Dtype format : kFormats) list.push_back({c, format});
  }
  return list;
}

class CudaBits : public testing::TestWithParam<Neighbours> {
 protected:
  const Case& c() const { return GetParam().c; }
  const Inputs inputs_ =
      in_format(make_inputs(c()), GetParam().format, gate_dtype(c(), GetParam().format));
};

TEST_P(CudaBits, EverySequenceAsIfAlone) {
  RANKONE_NEEDS_CUDA();
  Context context = host_context();
  const Results together = run(context, inputs_);
  for (std::int64_t i = 0; i < inputs_.sequences.count(); ++i) {
    expect_part(run(context, alone(inputs_, i)), together, inputs_.sequences, i);
    if (HasFailure()) return;
  }
}

TEST_P(CudaBits, GradientOfTiedKeysIsTheSum) {
  RANKONE_NEEDS_CUDA();
  Context context = host_context();
  const TwoKeyGrads apart = make_grads(inputs_);
  TwoKeyGrads joined = make_grads(inputs_);
  joined.w = joined.e;
  for (const TwoKeyGrads& grads : {apart, joined}) {
    recurrence::two_key_vjp(context, inputs_.sequences, inputs_.two_key, inputs_.cotangents, grads);
  }
  const Tensor sum = apart.e.to(Dtype::f32), write = apart.w.to(Dtype::f32);
  for (std::int64_t i = 0; i < sum.count(); ++i) sum.data<float>()[i] += write.data<float>()[i];
  // Added before they are rounded.
  EXPECT_LE(relative_error(joined.e.to(Dtype::f32), sum.to(Dtype::f64)),
            GetParam().format == Dtype::f32 ? 1e-6 : spacing(GetParam().format));
  EXPECT_TRUE(same_bits("dq", joined.q, apart.q));
  EXPECT_TRUE(same_bits("dv", joined.v, apart.v));
}

TEST_P(CudaBits, StateUpdatedInPlace) {
  RANKONE_NEEDS_CUDA();
  if (!inputs_.two_key.initial_state.defined()) return;
  Context context = host_context();
  const TwoKeyOut expected = make_out(inputs_);
  recurrence::two_key(context, inputs_.sequences, inputs_.two_key, expected);
  TwoKey in = inputs_.two_key;
  in.initial_state = in.initial_state.clone();
  const TwoKeyOut out{make_out(inputs_).o, in.initial_state};
  recurrence::two_key(context, inputs_.sequences, in, out);
  EXPECT_TRUE(same_bits("o", out.o, expected.o));
  EXPECT_TRUE(same_bits("final_state", out.final_state, expected.final_state));
}

INSTANTIATE_TEST_SUITE_P(TwoKey, CudaBits, testing::ValuesIn(neighbours()), [](const auto& test) {
  return test.param.c.name + "_" + std::string(name(test.param.format));
});

#if !defined(RANKONE_CUDA_EMULATION)

// The inputs on the GPU.
Inputs placed(const Inputs& inputs, Context& context) {
  Inputs result = inputs;
  TwoKey& to = result.two_key;
  const bool tied = to.e.defined() && to.e.raw() == to.w.raw();
  for (Tensor* tensor : {&to.q, &to.w, &to.v, &to.g, &to.b, &to.initial_state, &result.cotangents.o,
                         &result.cotangents.final_state}) {
    *tensor = to_device(*tensor, context);
  }
  to.e = tied ? to.w : to_device(to.e, context);
  return result;
}

// Forward and backward of a packed call in a graph, then other calls in the same scratch, then the
// graph again: what it was captured from is all its own.
TEST(CudaGraph, RepeatsThePackedCallItWasCapturedFrom) {
  RANKONE_NEEDS_CUDA();
  const GpuStream stream;
  ContextOptions options = device_options();
  options.stream = stream.get();
  Context context(options);
  for (const Dtype format : kFormats) {
    const Case c{.name = "graph",
                 .heads = 2,
                 .value_heads = 2,
                 .d_k = 64,
                 .d_v = 64,
                 .cu_seqlens = {0, 1, 65, 65, 330, 333, 460}};
    const Inputs host = in_format(make_inputs(c), format, Dtype::f32);
    std::optional<Inputs> inputs = placed(host, context);
    TwoKeyOut out{to_device(make_out(host).o, context),
                  to_device(make_out(host).final_state, context)};
    TwoKeyGrads grads = make_grads(host);
    for (Tensor* tensor :
         {&grads.q, &grads.e, &grads.w, &grads.v, &grads.g, &grads.b, &grads.initial_state}) {
      *tensor = to_device(*tensor, context);
    }
    const auto work = [&] {
      recurrence::two_key(context, inputs->sequences, inputs->two_key, out);
      recurrence::two_key_vjp(context, inputs->sequences, inputs->two_key, inputs->cotangents,
                              grads);
    };
    work();  // grows the arena
    const Tensor o = to_host(out.o, context), d_w = to_host(grads.w, context);
    std::optional<GpuGraph> graph;
    graph.emplace(context, work);
    const TwoKey kept = inputs->two_key;
    const recurrence::TwoKeyCotangents cotangents = inputs->cotangents;
    inputs.reset();  // the Sequences too
    const Inputs other = placed(
        in_format(make_inputs({.name = "other", .batch = 3, .time = 70}), format, Dtype::f32),
        context);
    const TwoKeyOut other_out{empty_on(context, other.two_key.v.shape(), format), Tensor()};
    recurrence::two_key(context, other.sequences, other.two_key, other_out);
    for (int i = 0; i < 3; ++i) {
      fill_bytes(context, out.o.raw(), 0xff, out.o.bytes());
      fill_bytes(context, grads.w.raw(), 0xff, grads.w.bytes());
      graph->launch(context);
      EXPECT_TRUE(same_bits("o", to_host(out.o, context), o));
      EXPECT_TRUE(same_bits("dw", to_host(grads.w, context), d_w));
    }
  }
}

#endif

}  // namespace
}  // namespace rankone::test
