// Invalid calls of every public function: each fails with invalid_argument and a message that names
// the function and the tensor.

#include "recurrence/backend.hpp"
#include "recurrence/recurrence.hpp"
#include "support/recurrence_support.hpp"

namespace rankone::test {
namespace {

using namespace rankone::recurrence;

void expect_error(const std::function<void()>& call, const std::string& message) {
  try {
    call();
    ADD_FAILURE() << "no error where '" << message << "' is expected";
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), Status::invalid_argument) << error.what();
    EXPECT_NE(std::string(error.what()).find(message), std::string::npos)
        << "'" << error.what() << "' lacks '" << message << "'";
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
  }
}

Tensor zeros(const Shape& shape, Dtype dtype = Dtype::f64) {
  Tensor tensor = Tensor::empty(shape, dtype);
  tensor.fill(0.0);
  return tensor;
}

// A tensor with the right shape whose rows do not follow each other.
Tensor strided(const Shape& shape) {
  Shape wide = shape;
  wide[-1] += 1;
  return zeros(wide).slice(-1 + wide.rank(), 0, shape[-1]);
}

Tensor integers(const Shape& shape) { return Tensor::zeros(shape, Dtype::i64); }

// A valid call with its outputs, to be spoiled in one place.
template <class In, class Out, class Cot, class Grads>
struct Call {
  Sequences sequences = Sequences::dense(2, 3);
  In in;
  Out out;
  Cot cot;
  Grads grads;
};

template <class C>
struct Invalid {
  std::function<void(C&)> spoil;
  std::string message;
};

template <class C>
void check_table(const C& valid, const std::vector<Invalid<C>>& table,
                 void (*run)(Context&, const C&)) {
  Context context = make_context();
  EXPECT_NO_THROW(run(context, valid));
  for (const Invalid<C>& row : table) {
    C call = valid;
    row.spoil(call);
    expect_error([&] { run(context, call); }, row.message);
  }
}

// ---- two_key -----------------------------------------------------------------------------------

using TwoKeyCall = Call<TwoKey, TwoKeyOut, TwoKeyCotangents, TwoKeyGrads>;

TwoKeyCall valid_two_key() {
  TwoKeyCall call;
  call.in = {zeros({6, 2, 4}), zeros({6, 2, 4}), zeros({6, 2, 4}),    zeros({6, 4, 3}),
             zeros({6, 4}),    zeros({6, 4}),    zeros({2, 4, 4, 3}), 1.0};
  call.out = {zeros({6, 4, 3}), zeros({2, 4, 4, 3})};
  call.cot = {zeros({6, 4, 3}), zeros({2, 4, 4, 3})};
  call.grads = {zeros({6, 2, 4}), zeros({6, 2, 4}), zeros({6, 2, 4}),   zeros({6, 4, 3}),
                zeros({6, 4}),    zeros({6, 4}),    zeros({2, 4, 4, 3})};
  return call;
}

TEST(InvalidCall, TwoKey) {
  using C = TwoKeyCall;
  check_table<C>(
      valid_two_key(),
      {
          {[](C& c) { c.in.q = Tensor(); }, "[two_key] q is undefined (it is [R, H, K])"},
          {[](C& c) {
             c.in.q = zeros({6, 8});
           },
           "[two_key] q has shape [6, 8]"},
          {[](C& c) {
             c.in.q = integers({6, 2, 4});
           },
           "[two_key] q is i64"},
          {[](C& c) {
             c.in.q = zeros({7, 2, 4});
           },
           "[two_key] q has shape [7, 2, 4]"},
          {[](C& c) {
             c.in.q = strided({6, 2, 4});
           },
           "[two_key] q is not contiguous"},
          {[](C& c) {
             c.in.q = zeros({6, 0, 4});
           },
           "[two_key] H is 0"},
          {[](C& c) {
             c.in.q = zeros({6, 2, 0});
           },
           "[two_key] d_k is 0 (1 to 256)"},
          {[](C& c) {
             c.in.q = zeros({6, 2, 257});
           },
           "[two_key] d_k is 257 (1 to 256)"},
          {[](C& c) { c.in.w = Tensor(); }, "[two_key] w is undefined"},
          {[](C& c) {
             c.in.w = zeros({6, 2, 5});
           },
           "[two_key] w has shape [6, 2, 5]"},
          {[](C& c) {
             c.in.w = zeros({6, 2, 4}, Dtype::f32);
           },
           "[two_key] w is f32, the call is f64 (one dtype per call)"},
          {[](C& c) {
             c.in.e = zeros({6, 4, 4});
           },
           "[two_key] e has shape [6, 4, 4]"},
          {[](C& c) {
             c.in.e = strided({6, 2, 4});
           },
           "[two_key] e is not contiguous"},
          {[](C& c) { c.in.v = Tensor(); }, "[two_key] v is undefined (it is [R, HV, V])"},
          {[](C& c) {
             c.in.v = zeros({6, 3, 3});
           },
           "[two_key] HV is 3 (a multiple of H = 2)"},
          {[](C& c) {
             c.in.v = zeros({6, 4, 1025});
           },
           "[two_key] d_v is 1025 (1 to 1024)"},
          {[](C& c) {
             c.in.v = zeros({5, 4, 3});
           },
           "[two_key] v has shape [5, 4, 3]"},
          {[](C& c) {
             c.in.g = zeros({6, 2});
           },
           "[two_key] g has shape [6, 2]"},
          {[](C& c) {
             c.in.g = zeros({6, 4, 5});
           },
           "[two_key] g has shape [6, 4, 5]"},
          {[](C& c) {
             c.in.g = zeros({6, 4}, Dtype::bf16);
           },
           "[two_key] g is bf16"},
          {[](C& c) {
             c.in.b = zeros({6, 2});
           },
           "[two_key] b has shape [6, 2] (it is [6, 4]"},
          {[](C& c) {
             c.in.initial_state = zeros({1, 4, 4, 3});
           },
           "[two_key] initial_state has shape [1, 4, 4, 3] (it is [2, 4, 4, 3])"},
          {[](C& c) {
             c.in.initial_state = zeros({2, 4, 4, 3}, Dtype::f32);
           },
           "[two_key] initial_state is f32 (states of this call are f64)"},
          {[](C& c) {
             c.out.o = zeros({6, 4, 4});
           },
           "[two_key] o has shape [6, 4, 4]"},
          {[](C& c) {
             c.out.final_state = zeros({2, 4, 3, 4});
           },
           "[two_key] final_state has shape [2, 4, 3, 4]"},
          {[](C& c) {
             c.in.v = Tensor::view(nullptr, {6, 4, 3}, Dtype::f64);
           },
           "[two_key] v has no memory"},
      },
      [](Context& context, const C& c) { two_key(context, c.sequences, c.in, c.out); });
}

TEST(InvalidCall, TwoKeyVjp) {
  using C = TwoKeyCall;
  check_table<C>(
      valid_two_key(),
      {
          {[](C& c) { c.in.q = Tensor(); }, "[two_key_vjp] q is undefined"},
          {[](C& c) { c.cot.o = Tensor(); }, "[two_key_vjp] the cotangent of o is undefined"},
          {[](C& c) {
             c.cot.o = zeros({6, 2, 3});
           },
           "[two_key_vjp] the cotangent of o has shape"},
          {[](C& c) {
             c.cot.final_state = zeros({4, 4, 3});
           },
           "[two_key_vjp] the cotangent of final_state has shape"},
          {[](C& c) { c.in.e = Tensor(); },
           "[two_key_vjp] the gradient of e is wanted, but the call has no e"},
          {[](C& c) { c.in.g = Tensor(); }, "the gradient of g is wanted"},
          {[](C& c) { c.in.b = Tensor(); }, "the gradient of b is wanted"},
          {[](C& c) {
             c.grads.q = zeros({6, 2, 3});
           },
           "the gradient of q has shape [6, 2, 3]"},
          {[](C& c) {
             c.grads.v = strided({6, 4, 3});
           },
           "the gradient of v is not contiguous"},
          {[](C& c) {
             c.grads.g = zeros({6, 4, 4});
           },
           "the gradient of g has shape [6, 4, 4]"},
          {[](C& c) {
             c.grads.initial_state = zeros({2, 4, 4, 3}, Dtype::f32);
           },
           "the gradient of initial_state is f32"},
      },
      [](Context& context, const C& c) {
        two_key_vjp(context, c.sequences, c.in, c.cot, c.grads);
      });
}

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

// ---- mesa and longhorn -------------------------------------------------------------------------

using MesaCall = Call<Mesa, MesaOut, MesaCotangents, MesaGrads>;

MesaCall valid_mesa() {
  MesaCall call;
  call.in.q = call.in.k = zeros({6, 2, 4});
  call.in.v = zeros({6, 2, 3});
  call.in.lambda = filled({2, 4}, 1.0);
  call.in.initial_hkk = zeros({2, 2, 4, 4});
  call.in.initial_hkv = zeros({2, 2, 4, 3});
  call.out = {zeros({6, 2, 3}), zeros({2, 2, 4, 4}), zeros({2, 2, 4, 3})};
  call.cot = {zeros({6, 2, 3}), zeros({2, 2, 4, 4}), zeros({2, 2, 4, 3})};
  call.grads.q = zeros({6, 2, 4});
  return call;
}

TEST(InvalidCall, Mesa) {
  using C = MesaCall;
  check_table<C>(valid_mesa(),
                 {
                     {[](C& c) { c.in.q = zeros({8}); }, "[mesa] q has shape [8]"},
                     {[](C& c) { c.in.k = Tensor(); }, "[mesa] k is undefined"},
                     {[](C& c) {
                        c.in.v = zeros({6, 4, 3});
                      },
                      "[mesa] v has 4 heads, q has 2"},
                     {[](C& c) { c.in.lambda = Tensor(); }, "[mesa] lambda is undefined"},
                     {[](C& c) { c.in.lambda = zeros({2}); }, "[mesa] lambda has shape [2]"},
                     {[](C& c) { c.in.max_iterations = 0; }, "[mesa] max_iterations is 0"},
                     {[](C& c) { c.in.tolerance = -1.0; }, "[mesa] tolerance is -1"},
                     {[](C& c) {
                        c.in.initial_hkk = zeros({2, 2, 4, 3});
                      },
                      "[mesa] initial_hkk has shape"},
                     {[](C& c) {
                        c.out.final_hkv = zeros({2, 2, 3, 4});
                      },
                      "[mesa] final_hkv has shape"},
                 },
                 [](Context& context, const C& c) { mesa(context, c.sequences, c.in, c.out); });
  check_table<C>(
      valid_mesa(),
      {
          {[](C& c) { c.cot.o = Tensor(); }, "[mesa_vjp] the cotangent of o is undefined"},
          {[](C& c) {
             c.cot.final_hkk = zeros({2, 2});
           },
           "the cotangent of final_hkk has shape"},
          {[](C& c) {
             c.grads.g = zeros({6, 2});
           },
           "the gradient of g is wanted"},
          {[](C& c) { c.grads.lambda = zeros({4}); }, "the gradient of lambda has shape [4]"},
      },
      [](Context& context, const C& c) { mesa_vjp(context, c.sequences, c.in, c.cot, c.grads); });
}

using LonghornCall = Call<Longhorn, LonghornOut, LonghornCotangents, LonghornGrads>;

LonghornCall valid_longhorn() {
  LonghornCall call;
  call.in = {zeros({6, 2, 4}), zeros({6, 2, 4}), zeros({6, 4, 3}), zeros({6, 4, 3}),
             zeros({2, 4, 4, 3})};
  call.out = {zeros({6, 4, 3}), zeros({2, 4, 4, 3})};
  call.cot = {zeros({6, 4, 3}), zeros({2, 4, 4, 3})};
  call.grads.q = zeros({6, 2, 4});
  return call;
}

TEST(InvalidCall, Longhorn) {
  using C = LonghornCall;
  check_table<C>(valid_longhorn(),
                 {
                     {[](C& c) { c.in.q = Tensor(); }, "[longhorn] q is undefined"},
                     {[](C& c) {
                        c.in.k = zeros({6, 2, 5});
                      },
                      "[longhorn] k has shape"},
                     {[](C& c) {
                        c.in.v = zeros({6, 3, 3});
                      },
                      "[longhorn] HV is 3"},
                     {[](C& c) { c.in.beta = Tensor(); }, "[longhorn] beta is undefined"},
                     {[](C& c) {
                        c.in.beta = zeros({6, 4});
                      },
                      "[longhorn] beta has shape [6, 4]"},
                     {[](C& c) {
                        c.in.initial_state = zeros({2, 4, 3, 4});
                      },
                      "[longhorn] initial_state has"},
                     {[](C& c) {
                        c.out.o = zeros({6, 2, 3});
                      },
                      "[longhorn] o has shape"},
                 },
                 [](Context& context, const C& c) { longhorn(context, c.sequences, c.in, c.out); });
  check_table<C>(
      valid_longhorn(),
      {
          {[](C& c) { c.cot.o = Tensor(); }, "[longhorn_vjp] the cotangent of o is undefined"},
          {[](C& c) {
             c.grads.beta = zeros({6, 4});
           },
           "the gradient of beta has shape"},
          {[](C& c) {
             c.grads.q = integers({6, 2, 4});
           },
           "the gradient of q is i64"},
      },
      [](Context& context, const C& c) {
        longhorn_vjp(context, c.sequences, c.in, c.cot, c.grads);
      });
}

// ---- what is valid -----------------------------------------------------------------------------

TEST(ValidCall, RowsMayBeSeveralAxes) {
  Context context = make_context();
  TwoKeyCall call = valid_two_key();
  for (Tensor* tensor : {&call.in.q, &call.in.e, &call.in.w}) {
    *tensor = tensor->reshape({2, 3, 2, 4});
  }
  call.in.g = call.in.g.reshape({2, 3, 4});
  EXPECT_NO_THROW(two_key(context, call.sequences, call.in, call.out));
  call.in.g = zeros({2, 3, 4, 4});  // per channel
  EXPECT_NO_THROW(two_key(context, call.sequences, call.in, call.out));
}

TEST(ValidCall, LargestSizesAndNoRows) {
  Context context = make_context();
  for (const std::int64_t R : {0, 1}) {
    TwoKey in;
    in.q = in.e = in.w = zeros({R, 1, 256});
    in.v = zeros({R, 2, 1024});
    const TwoKeyResult result = run_two_key(context, Sequences::dense(1, R), in);
    EXPECT_EQ(largest(result.state), 0.0);
  }
  const TwoKeyResult nothing =
      run_two_key(context, Sequences::dense(0, 4),
                  {zeros({0, 1, 2}), Tensor(), zeros({0, 1, 2}), zeros({0, 1, 3}), Tensor(),
                   Tensor(), zeros({0, 1, 2, 3}), 1.0});
  EXPECT_EQ(nothing.o.count(), 0);
}

// ---- the choice of a backend -------------------------------------------------------------------

TEST(BackendChoice, FollowsTheList) {
  const CallShape f32{Dtype::f32, Device::cpu, false};
  EXPECT_EQ(select_backend(make_context("cpu"), f32).name(), "cpu");
  EXPECT_EQ(select_backend(make_context("reference"), f32).name(), "reference");
  EXPECT_EQ(select_backend(make_context("cuda"), f32).name(), "reference");
  EXPECT_EQ(select_backend(make_context("cpu"), {Dtype::f64, Device::cpu, false}).name(),
            "reference");
  EXPECT_EQ(select_backend(make_context("cpu"), {Dtype::f32, Device::cpu, true}).name(),
            "reference");
  EXPECT_THROW(select_backend(make_context(), {Dtype::f32, Device::cuda, false}), Error);
}

TEST(BackendChoice, ARegisteredBackendComesFirst) {
  const CallShape f32{Dtype::f32, Device::cpu, false};
  Context context = make_context("reference");
  {
    // Another backend under a name of the list; the same one twice is taken off once at a time.
    const RegisteredBackend outer(reference_backend());
    const RegisteredBackend inner(reference_backend());
    EXPECT_EQ(&select_backend(context, f32), &reference_backend());
  }
  EXPECT_EQ(&select_backend(context, f32), &reference_backend());
}

}  // namespace
}  // namespace rankone::test
