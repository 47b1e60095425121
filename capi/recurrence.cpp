// The recurrences and the preconditioner, each function as the one of its name in
// recurrence/recurrence.hpp.

#include "recurrence/recurrence.hpp"

#include "capi/call.hpp"

namespace rankone::capi {
namespace {

constexpr std::int64_t kMostStepRows = 8;

recurrence::TwoKey inputs_of(Call& call, const rankone_two_key_inputs* pointer) {
  const auto& in = call.given("inputs", pointer);
  call.that(in.scale != 0, "scale is 0 (1 for an unscaled output)");
  recurrence::TwoKey result;
  result.q = call.in("q", in.q);
  result.e = call.in("e", in.e);
  result.w = call.in("w", in.w);
  result.v = call.in("v", in.v);
  result.g = call.in("g", in.g);
  result.b = call.in("b", in.b);
  result.initial_state = call.in("initial_state", in.initial_state);
  result.scale = in.scale;
  return result;
}

recurrence::Precondition inputs_of(Call& call, const rankone_precondition_inputs* pointer) {
  const auto& in = call.given("inputs", pointer);
  recurrence::Precondition result;
  result.kind = call.choice<recurrence::PreconditionerKind>("kind", in.kind, 2);
  result.normalize = call.choice<int>("normalize", in.normalize, 2) != 0;
  result.k = call.in("k", in.k);
  result.target = call.in("target", in.target);
  result.g = call.in("g", in.g);
  result.b = call.in("b", in.b);
  result.center = call.in("center", in.center);
  result.ridge = call.in("ridge", in.ridge);
  result.initial = call.in("initial", in.initial);
  result.x = in.x;
  result.eps = in.eps;
  return result;
}

recurrence::Mesa inputs_of(Call& call, const rankone_mesa_inputs* pointer) {
  const auto& in = call.given("inputs", pointer);
  recurrence::Mesa result;
  result.q = call.in("q", in.q);
  result.k = call.in("k", in.k);
  result.v = call.in("v", in.v);
  result.g = call.in("g", in.g);
  result.b = call.in("b", in.b);
  result.lambda = call.in("lambda", in.lambda);
  result.initial_hkk = call.in("initial_hkk", in.initial_hkk);
  result.initial_hkv = call.in("initial_hkv", in.initial_hkv);
  result.max_iterations = in.max_iterations;
  result.tolerance = in.tolerance;
  return result;
}

recurrence::Longhorn inputs_of(Call& call, const rankone_longhorn_inputs* pointer) {
  const auto& in = call.given("inputs", pointer);
  recurrence::Longhorn result;
  result.q = call.in("q", in.q);
  result.k = call.in("k", in.k);
  result.v = call.in("v", in.v);
  result.beta = call.in("beta", in.beta);
  result.initial_state = call.in("initial_state", in.initial_state);
  return result;
}

// How many numbers a forward call of these inputs can leave to its vjp, by `function`.
template <class Inputs, class Function>
rankone_status count_saved(rankone_context* context, const char* name,
                           const rankone_sequences* sequences, const Inputs* inputs,
                           int64_t* numbers, Function&& function) {
  size_t workspace_bytes = 0;  // nothing is computed
  const rankone_call how{nullptr, nullptr, 0, &workspace_bytes};
  return run(context, name, &how, [&](Call& call) {
    const auto& cut = call.given("sequences", sequences).sequences;
    call.given("numbers", numbers);
    *numbers = function(call.context(), cut, inputs_of(call, inputs));
  });
}

}  // namespace
}  // namespace rankone::capi

using rankone::capi::Call;
using rankone::capi::count_saved;
using rankone::capi::inputs_of;
using rankone::capi::run;
namespace recurrence = rankone::recurrence;

rankone_status rankone_two_key(rankone_context* context, const rankone_sequences* sequences,
                               const rankone_two_key_inputs* inputs,
                               const rankone_two_key_outputs* outputs, const rankone_call* how) {
  return run(context, "rankone_two_key", how, [&](Call& call) {
    const auto& cut = call.given("sequences", sequences).sequences;
    const auto& out = call.given("outputs", outputs);
    recurrence::two_key(call.context(), cut, inputs_of(call, inputs),
                        {.o = call.out("o", out.o),
                         .final_state = call.out("final_state", out.final_state),
                         .saved = call.out("saved", out.saved)});
  });
}

rankone_status rankone_two_key_saved(rankone_context* context, const rankone_sequences* sequences,
                                     const rankone_two_key_inputs* inputs, int64_t* numbers) {
  return count_saved(context, "rankone_two_key_saved", sequences, inputs, numbers,
                     recurrence::two_key_saved);
}

rankone_status rankone_two_key_vjp(rankone_context* context, const rankone_sequences* sequences,
                                   const rankone_two_key_inputs* inputs,
                                   const rankone_two_key_cotangents* cotangents,
                                   const rankone_two_key_grads* grads, const rankone_call* how) {
  return run(context, "rankone_two_key_vjp", how, [&](Call& call) {
    const auto& cut = call.given("sequences", sequences).sequences;
    const auto& from = call.given("cotangents", cotangents);
    const auto& to = call.given("grads", grads);
    recurrence::two_key_vjp(
        call.context(), cut, inputs_of(call, inputs),
        {.o = call.in("the cotangent of o", from.o),
         .final_state = call.in("the cotangent of final_state", from.final_state),
         .saved = call.in("saved", from.saved)},
        {.q = call.out("the gradient of q", to.q),
         .e = call.out("the gradient of e", to.e),
         .w = call.out("the gradient of w", to.w),
         .v = call.out("the gradient of v", to.v),
         .g = call.out("the gradient of g", to.g),
         .b = call.out("the gradient of b", to.b),
         .initial_state = call.out("the gradient of initial_state", to.initial_state)});
  });
}

rankone_status rankone_two_key_step(rankone_context* context, const rankone_sequences* sequences,
                                    const rankone_two_key_inputs* inputs, const rankone_tensor* o,
                                    const rankone_call* how) {
  return run(context, "rankone_two_key_step", how, [&](Call& call) {
    const auto& cut = call.given("sequences", sequences).sequences;
    call.that(cut.longest() <= rankone::capi::kMostStepRows,
              "a sequence has {} rows (at most {} a step)", cut.longest(),
              rankone::capi::kMostStepRows);
    const auto& in = call.given("inputs", inputs);
    call.that(in.initial_state.rank != 0, "initial_state is absent (a step updates it in place)");
    // The state is read and written: where it is not row-major, both go through one copy.
    recurrence::TwoKey step = inputs_of(call, inputs);
    const rankone::Tensor state = call.out("initial_state", in.initial_state);
    if (!call.context().planning() && state.raw() != step.initial_state.raw()) {
      state.copy_from(step.initial_state);
    }
    step.initial_state = state;
    recurrence::two_key(call.context(), cut, step,
                        {.o = call.out("o", call.given("o", o)), .final_state = state});
  });
}

rankone_status rankone_precondition(rankone_context* context, const rankone_sequences* sequences,
                                    const rankone_precondition_inputs* inputs,
                                    const rankone_precondition_outputs* outputs,
                                    const rankone_call* how) {
  return run(context, "rankone_precondition", how, [&](Call& call) {
    const auto& cut = call.given("sequences", sequences).sequences;
    const auto& out = call.given("outputs", outputs);
    recurrence::precondition(call.context(), cut, inputs_of(call, inputs),
                             {.out = call.out("out", out.out),
                              .final = call.out("final_state", out.final_state),
                              .saved = call.out("saved", out.saved)});
  });
}

rankone_status rankone_precondition_saved(rankone_context* context,
                                          const rankone_sequences* sequences,
                                          const rankone_precondition_inputs* inputs,
                                          int64_t* numbers) {
  return count_saved(context, "rankone_precondition_saved", sequences, inputs, numbers,
                     recurrence::precondition_saved);
}

rankone_status rankone_precondition_vjp(rankone_context* context,
                                        const rankone_sequences* sequences,
                                        const rankone_precondition_inputs* inputs,
                                        const rankone_precondition_cotangents* cotangents,
                                        const rankone_precondition_grads* grads,
                                        const rankone_call* how) {
  return run(context, "rankone_precondition_vjp", how, [&](Call& call) {
    const auto& cut = call.given("sequences", sequences).sequences;
    const auto& from = call.given("cotangents", cotangents);
    const auto& to = call.given("grads", grads);
    recurrence::precondition_vjp(
        call.context(), cut, inputs_of(call, inputs),
        {.out = call.in("the cotangent of out", from.out),
         .final = call.in("the cotangent of final_state", from.final_state),
         .saved = call.in("saved", from.saved),
         .k = call.in("the cotangent of k", from.k)},
        {.k = call.out("the gradient of k", to.k),
         .target = call.out("the gradient of target", to.target),
         .g = call.out("the gradient of g", to.g),
         .b = call.out("the gradient of b", to.b),
         .center = call.out("the gradient of center", to.center),
         .ridge = call.out("the gradient of ridge", to.ridge),
         .initial = call.out("the gradient of initial", to.initial)});
  });
}

rankone_status rankone_mesa(rankone_context* context, const rankone_sequences* sequences,
                            const rankone_mesa_inputs* inputs, const rankone_mesa_outputs* outputs,
                            const rankone_call* how) {
  return run(context, "rankone_mesa", how, [&](Call& call) {
    const auto& cut = call.given("sequences", sequences).sequences;
    const auto& out = call.given("outputs", outputs);
    recurrence::mesa(call.context(), cut, inputs_of(call, inputs),
                     {.o = call.out("o", out.o),
                      .final_hkk = call.out("final_hkk", out.final_hkk),
                      .final_hkv = call.out("final_hkv", out.final_hkv)});
  });
}

rankone_status rankone_mesa_vjp(rankone_context* context, const rankone_sequences* sequences,
                                const rankone_mesa_inputs* inputs,
                                const rankone_mesa_outputs* cotangents,
                                const rankone_mesa_grads* grads, const rankone_call* how) {
  return run(context, "rankone_mesa_vjp", how, [&](Call& call) {
    const auto& cut = call.given("sequences", sequences).sequences;
    const auto& from = call.given("cotangents", cotangents);
    const auto& to = call.given("grads", grads);
    recurrence::mesa_vjp(call.context(), cut, inputs_of(call, inputs),
                         {.o = call.in("the cotangent of o", from.o),
                          .final_hkk = call.in("the cotangent of final_hkk", from.final_hkk),
                          .final_hkv = call.in("the cotangent of final_hkv", from.final_hkv)},
                         {.q = call.out("the gradient of q", to.q),
                          .k = call.out("the gradient of k", to.k),
                          .v = call.out("the gradient of v", to.v),
                          .g = call.out("the gradient of g", to.g),
                          .b = call.out("the gradient of b", to.b),
                          .lambda = call.out("the gradient of lambda", to.lambda),
                          .initial_hkk = call.out("the gradient of initial_hkk", to.initial_hkk),
                          .initial_hkv = call.out("the gradient of initial_hkv", to.initial_hkv)});
  });
}

rankone_status rankone_longhorn(rankone_context* context, const rankone_sequences* sequences,
                                const rankone_longhorn_inputs* inputs,
                                const rankone_longhorn_outputs* outputs, const rankone_call* how) {
  return run(context, "rankone_longhorn", how, [&](Call& call) {
    const auto& cut = call.given("sequences", sequences).sequences;
    const auto& out = call.given("outputs", outputs);
    recurrence::longhorn(
        call.context(), cut, inputs_of(call, inputs),
        {.o = call.out("o", out.o), .final_state = call.out("final_state", out.final_state)});
  });
}

rankone_status rankone_longhorn_vjp(rankone_context* context, const rankone_sequences* sequences,
                                    const rankone_longhorn_inputs* inputs,
                                    const rankone_longhorn_outputs* cotangents,
                                    const rankone_longhorn_grads* grads, const rankone_call* how) {
  return run(context, "rankone_longhorn_vjp", how, [&](Call& call) {
    const auto& cut = call.given("sequences", sequences).sequences;
    const auto& from = call.given("cotangents", cotangents);
    const auto& to = call.given("grads", grads);
    recurrence::longhorn_vjp(
        call.context(), cut, inputs_of(call, inputs),
        {.o = call.in("the cotangent of o", from.o),
         .final_state = call.in("the cotangent of final_state", from.final_state)},
        {.q = call.out("the gradient of q", to.q),
         .k = call.out("the gradient of k", to.k),
         .v = call.out("the gradient of v", to.v),
         .beta = call.out("the gradient of beta", to.beta),
         .initial_state = call.out("the gradient of initial_state", to.initial_state)});
  });
}
