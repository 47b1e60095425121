// The decay and the gain: what the axes make of a layer's logits before the recurrence.

#include "capi/call.hpp"
#include "recurrence/recurrence.hpp"

namespace rankone::capi {
namespace {

recurrence::Decay inputs_of(Call& call, const rankone_decay_inputs* pointer) {
  const auto& in = call.given("inputs", pointer);
  recurrence::Decay result;
  result.form = call.choice<recurrence::DecayForm>("form", in.form, 3);
  result.channel = call.choice<int>("channel", in.channel, 2) != 0;
  result.x = call.in("x", in.x);
  result.a_log = call.in("a_log", in.a_log);
  result.dt_bias = call.in("dt_bias", in.dt_bias);
  // Only the numbers of the chosen form are read; a zeroed struct is refused, not misread.
  switch (result.form) {
    case recurrence::DecayForm::softplus:
      call.that(in.dt_max > in.dt_min, "the limits of dt are {} and {} (0 <= dt_min < dt_max)",
                in.dt_min, in.dt_max);
      result.dt_min = in.dt_min;
      result.dt_max = in.dt_max;
      break;
    case recurrence::DecayForm::lower_bound:
      result.bound = in.bound;
      break;
    case recurrence::DecayForm::logsigmoid:
    case recurrence::DecayForm::fixed:
      call.that(in.clamp < 0, "clamp is {} (below 0; -INFINITY for no limit)", in.clamp);
      result.normalizer = in.normalizer;
      result.clamp = in.clamp;
      break;
  }
  return result;
}

recurrence::Gain inputs_of(Call& call, const rankone_gain_inputs* pointer) {
  const auto& in = call.given("inputs", pointer);
  recurrence::Gain result;
  result.kind = call.choice<recurrence::GainKind>("kind", in.kind, 10);
  result.time_factor = call.choice<recurrence::TimeFactor>("time_factor", in.time_factor, 4);
  call.that(!recurrence::is_key_norm(result.kind) || in.eps > 0, "eps is {} (above 0)", in.eps);
  result.x = call.in("x", in.x);
  result.x_v = call.in("x_v", in.x_v);
  result.theta = call.in("theta", in.theta);
  result.e = call.in("e", in.e);
  result.w = call.in("w", in.w);
  result.v = call.in("v", in.v);
  result.positions = call.in("positions", in.positions);
  result.eps = in.eps;
  return result;
}

}  // namespace
}  // namespace rankone::capi

using rankone::capi::Call;
using rankone::capi::inputs_of;
using rankone::capi::run;
namespace recurrence = rankone::recurrence;

rankone_status rankone_decay(rankone_context* context, const rankone_decay_inputs* inputs,
                             const rankone_decay_outputs* outputs, const rankone_call* how) {
  return run(context, "rankone_decay", how, [&](Call& call) {
    const auto& out = call.given("outputs", outputs);
    recurrence::decay(call.context(), inputs_of(call, inputs),
                      {.g = call.out("g", out.g), .dt = call.out("dt", out.dt)});
  });
}

rankone_status rankone_decay_vjp(rankone_context* context, const rankone_decay_inputs* inputs,
                                 const rankone_decay_outputs* cotangents,
                                 const rankone_decay_grads* grads, const rankone_call* how) {
  return run(context, "rankone_decay_vjp", how, [&](Call& call) {
    const auto& from = call.given("cotangents", cotangents);
    const auto& to = call.given("grads", grads);
    recurrence::decay_vjp(
        call.context(), inputs_of(call, inputs),
        {.g = call.in("the cotangent of g", from.g), .dt = call.in("the cotangent of dt", from.dt)},
        {.x = call.out("the gradient of x", to.x),
         .a_log = call.out("the gradient of a_log", to.a_log),
         .dt_bias = call.out("the gradient of dt_bias", to.dt_bias)});
  });
}

rankone_status rankone_gain(rankone_context* context, const rankone_sequences* sequences,
                            const rankone_gain_inputs* inputs, const rankone_gain_outputs* outputs,
                            const rankone_call* how) {
  return run(context, "rankone_gain", how, [&](Call& call) {
    const auto& cut = call.given("sequences", sequences).sequences;
    const auto& out = call.given("outputs", outputs);
    recurrence::gain(call.context(), cut, inputs_of(call, inputs),
                     {.b = call.out("b", out.b),
                      .e = call.out("e", out.e),
                      .w = call.out("w", out.w),
                      .v = call.out("v", out.v)});
  });
}

rankone_status rankone_gain_vjp(rankone_context* context, const rankone_sequences* sequences,
                                const rankone_gain_inputs* inputs,
                                const rankone_gain_outputs* cotangents,
                                const rankone_gain_grads* grads, const rankone_call* how) {
  return run(context, "rankone_gain_vjp", how, [&](Call& call) {
    const auto& cut = call.given("sequences", sequences).sequences;
    const auto& from = call.given("cotangents", cotangents);
    const auto& to = call.given("grads", grads);
    recurrence::gain_vjp(call.context(), cut, inputs_of(call, inputs),
                         {.b = call.in("the cotangent of b", from.b),
                          .e = call.in("the cotangent of e", from.e),
                          .w = call.in("the cotangent of w", from.w),
                          .v = call.in("the cotangent of v", from.v)},
                         {.x = call.out("the gradient of x", to.x),
                          .x_v = call.out("the gradient of x_v", to.x_v),
                          .theta = call.out("the gradient of theta", to.theta),
                          .e = call.out("the gradient of e", to.e),
                          .w = call.out("the gradient of w", to.w),
                          .v = call.out("the gradient of v", to.v)});
  });
}
