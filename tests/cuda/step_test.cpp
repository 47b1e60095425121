// The decode step where two_key() does not reach it: states stored as bf16, updated in place; and
// a call beside its neighbours.

#include "recurrence/cuda/step.hpp"

#include "core/device.hpp"
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

}  // namespace
}  // namespace rankone::test
