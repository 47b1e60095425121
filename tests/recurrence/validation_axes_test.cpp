// Invalid calls of the functions before the recurrence: precondition, decay, gain.

#include "recurrence/recurrence.hpp"
#include "support/invalid_calls.hpp"

namespace rankone::test {
namespace {

using namespace rankone::recurrence;

// ---- precondition ------------------------------------------------------------------------------

using PreconditionCall =
    Call<Precondition, PreconditionOut, PreconditionCotangents, PreconditionGrads>;

PreconditionCall valid_precondition() {
  PreconditionCall call;
  call.in.k = call.in.target = zeros({6, 2, 4});
  call.in.g = zeros({6, 2});
  call.in.b = zeros({6, 2});
  call.in.center = zeros({2});
  call.in.initial = zeros({2, 2, 4});
  call.out = {zeros({6, 2, 4}), zeros({2, 2, 4})};
  call.cot = {zeros({6, 2, 4}), zeros({2, 2, 4})};
  call.grads.k = zeros({6, 2, 4});
  call.grads.center = zeros({2});
  return call;
}

TEST(InvalidCall, Precondition) {
  using C = PreconditionCall;
  const auto as_atq = [](C& c) {
    c.in.kind = PreconditionerKind::atq;
    c.in.center = Tensor();
    c.in.ridge = filled({2, 4}, 1.0);
  };
  check_table<C>(
      valid_precondition(),
      {
          {[](C& c) { c.in.k = Tensor(); }, "[precondition] k is undefined"},
          {[](C& c) {
             c.in.k = zeros({6, 2, 300});
           },
           "[precondition] d_k is 300"},
          {[](C& c) { c.in.target = Tensor(); }, "[precondition] target is undefined"},
          {[](C& c) {
             c.in.target = zeros({6, 2, 5});
           },
           "[precondition] target has shape"},
          {[](C& c) { c.in.center = Tensor(); }, "[precondition] center is undefined"},
          {[](C& c) { c.in.center = zeros({3}); }, "[precondition] center has shape [3]"},
          {[](C& c) {
             c.in.ridge = zeros({2, 4});
           },
           "[precondition] ridge is given, but atk"},
          {[](C& c) { c.in.x = 0.5; }, "[precondition] x is 0.5 (at least 1)"},
          {[](C& c) { c.in.x = NAN; }, "[precondition] x is nan"},
          {[](C& c) { c.in.eps = 0.0; }, "[precondition] eps is 0"},
          {[](C& c) {
             c.in.g = zeros({6, 2, 4});
           },
           "[precondition] g has shape [6, 2, 4]"},
          {[](C& c) {
             c.in.initial = zeros({2, 2, 4, 4});
           },
           "[precondition] initial has shape"},
          {[](C& c) {
             c.out.final = zeros({1, 2, 4});
           },
           "[precondition] final has shape"},
          {[&](C& c) {
             as_atq(c);
             c.in.center = zeros({2});
           },
           "[precondition] center is given, but only atk has one"},
          {[&](C& c) {
             as_atq(c);
             c.in.ridge = Tensor();
           },
           "[precondition] ridge is undefined"},
          {[&](C& c) {
             as_atq(c);
             c.in.kind = PreconditionerKind::gram;
           },
           "[precondition] initial has shape [2, 2, 4] (it is [2, 2, 4, 4])"},
      },
      [](Context& context, const C& c) { precondition(context, c.sequences, c.in, c.out); });
  check_table<C>(
      valid_precondition(),
      {
          {[](C& c) { c.cot.out = Tensor(); }, "[precondition_vjp] the cotangent of out is undef"},
          {[](C& c) {
             c.cot.final = zeros({2, 4});
           },
           "the cotangent of final has shape [2, 4]"},
          {[](C& c) {
             c.cot.k = zeros({6, 8});
           },
           "the cotangent of k has shape [6, 8]"},
          {[](C& c) {
             c.grads.ridge = zeros({2, 4});
           },
           "the gradient of ridge is wanted"},
          {[](C& c) {
             c.grads.k = zeros({6, 8});
           },
           "the gradient of k has shape [6, 8]"},
          {[](C& c) {
             c.grads.center = zeros({2, 1});
           },
           "the gradient of center has shape [2, 1]"},
      },
      [](Context& context, const C& c) {
        precondition_vjp(context, c.sequences, c.in, c.cot, c.grads);
      });
}

// ---- decay -------------------------------------------------------------------------------------

using DecayCall = Call<Decay, DecayOut, DecayCotangents, DecayGrads>;

DecayCall valid_decay() {
  DecayCall call;
  call.in.channel = true;
  call.in.x = zeros({6, 2, 4});
  call.in.a_log = zeros({2});
  call.in.dt_bias = zeros({2, 4});
  call.out = {zeros({6, 2, 4}), zeros({6, 2, 4})};
  call.cot = {zeros({6, 2, 4}), zeros({6, 2, 4})};
  call.grads = {zeros({6, 2, 4}), zeros({2}), zeros({2, 4})};
  return call;
}

TEST(InvalidCall, Decay) {
  using C = DecayCall;
  check_table<C>(
      valid_decay(),
      {
          {[](C& c) { c.in.x = Tensor(); }, "[decay] x is undefined (it is [R, HV, K])"},
          {[](C& c) {
             c.in.x = integers({6, 2, 4});
           },
           "[decay] x is i64"},
          {[](C& c) { c.in.channel = false; }, "[decay] a_log has shape [2] (it is [4])"},
          {[](C& c) { c.in.a_log = zeros({3}); }, "[decay] a_log has shape [3] (it is [2])"},
          {[](C& c) { c.in.dt_bias = zeros({8}); }, "[decay] dt_bias has shape [8]"},
          {[](C& c) {
             c.in.dt_bias = zeros({2, 4}, Dtype::f32);
           },
           "[decay] dt_bias is f32"},
          {[](C& c) {
             c.out.g = zeros({6, 2});
           },
           "[decay] g has shape [6, 2]"},
          {[](C& c) {
             c.out.dt = zeros({6, 2});
           },
           "[decay] dt has shape [6, 2]"},
          {[](C& c) { c.in.dt_min = 2e30; }, "[decay] the limits of dt"},
          {[](C& c) { c.in.form = DecayForm::lower_bound; }, "[decay] dt is given, but only"},
          {[](C& c) {
             c.in.form = DecayForm::lower_bound;
             c.in.bound = 0.0;
           },
           "[decay] bound is 0 (below 0)"},
          {[](C& c) { c.in.form = DecayForm::logsigmoid; }, "[decay] a_log is given, but logsig"},
          {[](C& c) {
             c.in.form = DecayForm::logsigmoid;
             c.in.a_log = Tensor();
             c.in.normalizer = 0.0;
           },
           "[decay] normalizer is 0"},
          {[](C& c) { c.in.form = DecayForm::fixed; }, "[decay] x is given, but the fixed decay"},
          {[](C& c) {
             c.in = Decay{};
             c.in.form = DecayForm::fixed;
             c.out = {};
           },
           "[decay] g is undefined (it is [R, HV])"},
          {[](C& c) {
             c.in = Decay{};
             c.in.form = DecayForm::fixed;
             c.in.channel = true;
           },
           "[decay] the fixed decay is one per head"},
      },
      [](Context& context, const C& c) { decay(context, c.in, c.out); });
  check_table<C>(
      valid_decay(),
      {
          {[](C& c) { c.cot = {}; }, "[decay_vjp] no cotangent is given"},
          {[](C& c) {
             c.cot.g = zeros({6, 2});
           },
           "[decay_vjp] the cotangent of g has shape"},
          {[](C& c) { c.in.form = DecayForm::lower_bound; }, "the cotangent of dt is given"},
          {[](C& c) { c.in.a_log = Tensor(); }, "the gradient of a_log is wanted"},
          {[](C& c) { c.grads.dt_bias = zeros({2}); }, "the gradient of dt_bias has shape [2]"},
          {[](C& c) {
             c.grads.x = strided({6, 2, 4});
           },
           "the gradient of x is not contiguous"},
      },
      [](Context& context, const C& c) { decay_vjp(context, c.in, c.cot, c.grads); });
}

// ---- gain --------------------------------------------------------------------------------------

using GainCall = Call<Gain, GainOut, GainCotangents, GainGrads>;

GainCall valid_gain() {
  GainCall call;
  call.in.kind = GainKind::kaczmarz;
  call.in.x = zeros({6, 4});
  call.in.e = call.in.w = zeros({6, 2, 4});
  call.in.v = zeros({6, 4, 3});
  call.in.positions = integers({2});
  call.out = {zeros({6, 4}), zeros({6, 2, 4}), zeros({6, 2, 4}), zeros({6, 4, 3})};
  call.cot = {zeros({6, 4}), zeros({6, 2, 4}), zeros({6, 2, 4}), zeros({6, 4, 3})};
  call.grads.x = zeros({6, 4});
  call.grads.e = zeros({6, 2, 4});
  return call;
}

TEST(InvalidCall, Gain) {
  using C = GainCall;
  const auto as_vector = [](C& c) {
    c.in.kind = GainKind::vector;
    c.in.w = Tensor();
    c.in.x = zeros({6, 2, 4});
    c.in.x_v = zeros({6, 4, 3});
    c.out.w = Tensor();
  };
  check_table<C>(
      valid_gain(),
      {
          {[](C& c) { c.in.v = Tensor(); }, "[gain] v is undefined (it is [R, HV, V])"},
          {[](C& c) { c.in.x = Tensor(); }, "[gain] x is undefined (this call needs it)"},
          {[](C& c) {
             c.in.x = zeros({6, 2});
           },
           "[gain] x has shape [6, 2]"},
          {[](C& c) { c.in.e = Tensor(); }, "[gain] e is undefined"},
          {[](C& c) { c.in.w = Tensor(); }, "[gain] w is undefined"},
          {[](C& c) {
             c.in.w = zeros({6, 2, 3});
           },
           "[gain] w has shape [6, 2, 3]"},
          {[](C& c) {
             c.in.v = zeros({6, 3, 3});
           },
           "[gain] HV is 3"},
          {[](C& c) { c.in.eps = -1.0; }, "[gain] eps is -1"},
          {[](C& c) { c.in.positions = integers({3}); }, "[gain] positions is i64 [3]"},
          {[](C& c) { c.in.positions = zeros({2}); }, "[gain] positions is f64 [2]"},
          {[](C& c) { c.in.theta = zeros({1}); }, "[gain] theta is given, but only"},
          {[](C& c) {
             c.in.x_v = zeros({6, 4, 3});
           },
           "[gain] x_v is given, but only"},
          {[](C& c) { c.in.kind = GainKind::learned_scalar; }, "[gain] theta is undefined"},
          {[](C& c) { c.in.kind = GainKind::nlms; }, "[gain] x is given, but this gain has no"},
          {[](C& c) { c.in.kind = GainKind::sigmoid; }, "[gain] e is given, but this gain looks"},
          {[](C& c) {
             c.out.b = zeros({6, 2});
           },
           "[gain] b has shape [6, 2]"},
          {[](C& c) {
             c.out.v = zeros({6, 4, 4});
           },
           "[gain] v has shape [6, 4, 4]"},
          {[](C& c) {
             c.in = Gain{};
             c.in.x = zeros({6, 4});
             c.out.e = zeros({6, 2, 4});
           },
           "[gain] w is given, but only a key-norm gain scales w"},
          {[](C& c) {
             c.in = Gain{};
             c.in.kind = GainKind::one;
             c.out = {};
           },
           "[gain] b is undefined (it is [R, HV])"},
          {[&](C& c) {
             as_vector(c);
             c.in.x_v = Tensor();
           },
           "[gain] x_v is undefined"},
          {[&](C& c) {
             as_vector(c);
             c.in.x = Tensor();
           },
           "[gain] e and x are not both given"},
          {[&](C& c) {
             as_vector(c);
             c.in.e = c.in.x = Tensor();
           },
           "[gain] e is wanted, but the call has no e"},
      },
      [](Context& context, const C& c) { gain(context, c.sequences, c.in, c.out); });
  check_table<C>(
      valid_gain(),
      {
          {[](C& c) { c.cot = {}; }, "[gain_vjp] no cotangent is given"},
          {[](C& c) {
             c.cot.b = zeros({6, 3});
           },
           "[gain_vjp] the cotangent of b has shape"},
          {[](C& c) { c.grads.theta = zeros({1}); }, "the gradient of theta is wanted"},
          {[](C& c) {
             c.grads.e = zeros({6, 8});
           },
           "the gradient of e has shape [6, 8]"},
          {[](C& c) {
             c.grads.x = zeros({6, 4}, Dtype::f32);
           },
           "the gradient of x is f32"},
      },
      [](Context& context, const C& c) { gain_vjp(context, c.sequences, c.in, c.cot, c.grads); });
}

}  // namespace
}  // namespace rankone::test
