// The decode step: states stored as float32 and bf16, updated in place, by its kernel and through
// the recurrence; and a call beside its neighbours.

#include "recurrence/cuda/step.hpp"

#include <cstring>

#include "core/device.hpp"
#include "core/status.hpp"
#include "formats.hpp"
#include "recurrence/cuda/convert.hpp"
#include "support.hpp"
#include "tests/cases/cases.hpp"
#include "tests/cases/compare.hpp"

namespace rankone::test {
namespace {

namespace kernels = recurrence::cuda;

std::vector<Case> step_cases() {
  using enum GateShape;
  return {
      {.name = "one", .gate = scalar, .batch = 3, .time = 1, .d_k = 128, .d_v = 128},
      {.name = "eight_channel", .gate = channel, .time = 8, .d_k = 96, .d_v = 72},
      {.name = "additive", .gate = none, .time = 3, .d_k = 64, .d_v = 64, .delta = false},
      {.name = "grouped",
       .gate = scalar,
       .heads = 2,
       .value_heads = 4,
       .d_k = 20,
       .d_v = 36,
       .cu_seqlens = {0, 3, 3, 5, 12, 13},
       .two_keys = true},
      {.name = "odd", .gate = channel, .batch = 2, .time = 5, .d_k = 7, .d_v = 13},
      {.name = "wide", .gate = scalar, .batch = 2, .time = 1, .d_k = 256, .d_v = 1024},
      // Enough blocks that one takes several column tiles.
      {.name = "many",
       .gate = scalar,
       .batch = 700,
       .time = 2,
       .heads = 2,
       .value_heads = 2,
       .d_k = 8,
       .d_v = 100},
  };
}

struct Decoded {
  Tensor o, state;
};

// The states of `inputs` in `dtype`, updated in place.
Decoded decode(const Inputs& inputs, Dtype dtype, std::uint64_t order) {
  Context context = cuda_context();
  recurrence::TwoKey on_device = inputs.two_key;
  for (Tensor* tensor :
       {&on_device.q, &on_device.e, &on_device.w, &on_device.v, &on_device.g, &on_device.b}) {
    if (tensor->defined()) *tensor = to_device(*tensor, context);
  }
  if (inputs.two_key.e.defined() && inputs.two_key.e.raw() == inputs.two_key.w.raw()) {
    on_device.w = on_device.e;
  }
  on_device.initial_state = {};
  const Tensor state = to_device(inputs.two_key.initial_state.to(dtype), context);
  const Tensor o = empty_on(context, inputs.two_key.v.shape(), Dtype::f32);
  fill_bytes(context, o.raw(), 0xff, o.bytes());
  kernels::TwoKeyCall call =
      kernels::two_key_call(context, inputs.sequences, on_device, {o, {}}, 64);
  call.state_dtype = dtype;
  call.initial_state = static_cast<const float*>(state.raw());
  call.final_state = static_cast<float*>(state.raw());
  set_thread_order(order);
  kernels::launch_step(call, context.stream());
  set_thread_order(0);
  return {to_host(o, context), to_host(state, context)};
}

// Full of NaN, like `tensor`.
Tensor in_nan(const Tensor& tensor) {
  const Tensor result = Tensor::empty(tensor.shape(), tensor.dtype());
  std::memset(result.raw(), 0xff, result.bytes());
  return result;
}

TEST(Step, UpdatesStatesOfBothDtypesInPlace) {
  RANKONE_NEEDS_CUDA();
  Context reference({.threads = 1, .backends = {"reference"}});
  for (const Case& c : step_cases()) {
    for (const Dtype dtype : {Dtype::f32, Dtype::bf16}) {
      SCOPED_TRACE(c.name + " " + std::string(name(dtype)));
      Inputs inputs = make_inputs(c);
      inputs.two_key.initial_state = inputs.two_key.initial_state.to(dtype).to(Dtype::f32);
      const Inputs wide = widened(inputs);
      const recurrence::TwoKeyOut expected = make_out(wide);
      recurrence::two_key(reference, wide.sequences, wide.two_key, expected);
      const Decoded result = decode(inputs, dtype, 0), again = decode(inputs, dtype, 5);
      EXPECT_LE(relative_error(result.o, expected.o), 1e-6);
      // Rounding to bf16 once: at most 2^-9 of each number.
      const Tensor state = result.state.to(Dtype::f32);
      EXPECT_LE(relative_error(state, expected.final_state), dtype == Dtype::bf16 ? 0x1p-9 : 1e-6);
      EXPECT_TRUE(same_bits("o", again.o, result.o));
      EXPECT_TRUE(same_bits("state", again.state, result.state));
    }
  }
}

// Through the recurrence, as a caller has it (guards around every tensor, results full of NaN
// before, host_calls.hpp): 1 to 8 rows with bf16 states, in place and apart.
TEST(Step, NarrowStatesAreRoundedAtTheEndAndNowhereElse) {
  RANKONE_NEEDS_CUDA();
  Context context = host_context();
  for (std::int64_t time = 1; time <= 8; ++time) {
    for (const Dtype format : kFormats) {
      const bool channel = time % 2 == 0;
      const Case c{.name = "narrow",
                   .gate = channel ? GateShape::channel : GateShape::scalar,
                   .batch = 3,
                   .time = time,
                   .heads = 2,
                   .value_heads = time % 3 == 0 ? 4 : 2,
                   .d_k = 64,
                   .d_v = time < 5 ? 128 : 40};
      SCOPED_TRACE(std::to_string(time) + " rows, " + std::string(name(format)));
      Inputs whole = in_format(make_inputs(c), format, Dtype::f32);
      Inputs narrow = whole;
      narrow.two_key.initial_state = whole.two_key.initial_state.to(Dtype::bf16);
      whole.two_key.initial_state = narrow.two_key.initial_state.to(Dtype::f32);
      const recurrence::TwoKeyOut expected = make_out(whole);
      recurrence::two_key(context, whole.sequences, whole.two_key, expected);
      const Tensor state = expected.final_state.to(Dtype::bf16);

      const recurrence::TwoKeyOut apart{make_out(narrow).o, in_nan(state)};
      recurrence::two_key(context, narrow.sequences, narrow.two_key, apart);
      EXPECT_TRUE(same_bits("o", apart.o, expected.o));
      EXPECT_TRUE(same_bits("final_state", apart.final_state, state));

      recurrence::TwoKey in = narrow.two_key;
      in.initial_state = in.initial_state.clone();
      const recurrence::TwoKeyOut in_place{make_out(narrow).o, in.initial_state};
      recurrence::two_key(context, narrow.sequences, in, in_place);
      EXPECT_TRUE(same_bits("o", in_place.o, expected.o));
      EXPECT_TRUE(same_bits("state", in_place.final_state, state));

      // Each sequence alone.
      for (std::int64_t i = 0; i < c.batch; ++i) {
        const auto rows = [&](const Tensor& tensor) {
          return tensor.defined() ? tensor.slice(0, i * time, (i + 1) * time).clone() : tensor;
        };
        recurrence::TwoKey one{rows(in.q), rows(in.e), rows(in.w), rows(in.v),
                               rows(in.g), rows(in.b), {},         in.scale};
        if (in.e.raw() == in.w.raw()) one.e = one.w;
        one.initial_state = narrow.two_key.initial_state.slice(0, i, i + 1).clone();
        const recurrence::TwoKeyOut alone{in_nan(rows(apart.o)), one.initial_state};
        recurrence::two_key(context, Sequences::dense(1, time), one, alone);
        EXPECT_TRUE(same_bits("o alone", alone.o, rows(apart.o)));
        EXPECT_TRUE(same_bits("state alone", alone.final_state, state.slice(0, i, i + 1).clone()));
      }
    }
  }
}

TEST(Step, LongerSequencesWithNarrowStatesAreRefused) {
  RANKONE_NEEDS_CUDA();
  Context context = host_context();
  Inputs inputs = make_inputs({.name = "long", .time = 9});
  inputs.two_key.initial_state = inputs.two_key.initial_state.to(Dtype::bf16);
  const recurrence::TwoKeyOut out{make_out(inputs).o, in_nan(inputs.two_key.initial_state)};
  try {
    recurrence::two_key(context, inputs.sequences, inputs.two_key, out);
    FAIL() << "it ran";
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), Status::unsupported);
    EXPECT_STREQ(error.what(),
                 "[two_key] the states are bf16 and a sequence has 9 rows (on cuda at most 8)");
  }
}

}  // namespace
}  // namespace rankone::test
