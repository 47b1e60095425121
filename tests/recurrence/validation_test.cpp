// Invalid calls of the recurrences: two_key, mesa, longhorn, and what is valid at the edges.

#include "recurrence/recurrence.hpp"
#include "support/invalid_calls.hpp"

namespace rankone::test {
namespace {

using namespace rankone::recurrence;

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
             c.in.initial_state = zeros({2, 4, 4, 3}, Dtype::bf16);
           },
           "[two_key] initial_state is bf16 (states of this call are f64)"},
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
                     {[](C& c) { c.in.damping = -1.0; }, "[mesa] damping is -1"},
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

}  // namespace
}  // namespace rankone::test
