// Every function of the C interface gives the bits of the C++ function behind it: packed calls with
// empty sequences, row-major and strided tensors, f32 and f64.

#include <cmath>
#include <vector>

#include "capi/support.hpp"
#include "recurrence/recurrence.hpp"

namespace rankone::test {
namespace {

namespace rec = rankone::recurrence;

constexpr std::int64_t kH = 2;
constexpr std::int64_t kHV = 4;
constexpr std::int64_t kK = 20;
constexpr std::int64_t kV = 24;

const Sequences& packing() {
  static const std::int64_t kBoundaries[] = {0, 5, 5, 70, 71, 71};
  static const Sequences kSequences = Sequences::packed(kBoundaries);
  return kSequences;
}

struct Case {
  Dtype dtype;
  bool strided;
};

class SameBits : public CInterface, public ::testing::WithParamInterface<Case> {
 protected:
  std::int64_t rows() const { return packing().rows(); }
  std::int64_t count() const { return packing().count(); }

  // An input, laid out as the case says.
  Tensor random(const Shape& shape, double low, double high) {
    const Tensor values = uniform(shape, GetParam().dtype, low, high, ++seed_);
    memory_.push_back(values);
    return GetParam().strided ? spread(values, memory_) : values;
  }
  // The C++ functions take row-major tensors.
  static Tensor plain(const Tensor& tensor) { return tensor ? tensor.clone() : tensor; }
  // Where the C side writes what the C++ side wrote to `like`.
  Tensor twin(const Tensor& like) {
    const Tensor result = unwritten(like);
    return GetParam().strided ? spread(result, memory_) : result;
  }
  Tensor output(const Shape& shape) const {
    return unwritten(Tensor::zeros(shape, GetParam().dtype));
  }

  Context reference_;
  std::uint64_t seed_ = 0;
  std::vector<Tensor> memory_;
};

INSTANTIATE_TEST_SUITE_P(Layouts, SameBits,
                         ::testing::Values(Case{Dtype::f32, false}, Case{Dtype::f32, true},
                                           Case{Dtype::f64, false}, Case{Dtype::f64, true}),
                         [](const auto& layout) {
                           return std::string(name(layout.param.dtype)) +
                                  (layout.param.strided ? "_strided" : "_row_major");
                         });

struct TwoKeyData {
  rec::TwoKey cpp;           // row-major
  rankone_two_key_inputs c;  // as the case says
};

template <class Make>
TwoKeyData two_key_data(std::int64_t rows, std::int64_t count, bool channel, Make&& make) {
  const auto key = [&] { return make(Shape{rows, kH, kK}, -0.3, 0.3); };
  const Tensor q = key();
  const Tensor e = key();
  const Tensor w = key();
  const Tensor v = make(Shape{rows, kHV, kV}, -1.0, 1.0);
  const Tensor g =
      channel ? make(Shape{rows, kHV, kK}, -0.3, 0.0) : make(Shape{rows, kHV}, -0.3, 0.0);
  const Tensor b = make(Shape{rows, kHV}, 0.0, 1.0);
  const Tensor state = make(Shape{count, kHV, kK, kV}, -1.0, 1.0);
  TwoKeyData data;
  data.cpp = {q.clone(), e.clone(), w.clone(),     v.clone(),
              g.clone(), b.clone(), state.clone(), 0.25};
  data.c = {c_tensor(q), c_tensor(e), c_tensor(w),     c_tensor(v),
            c_tensor(g), c_tensor(b), c_tensor(state), 0.25};
  return data;
}

TEST_P(SameBits, TwoKeyForward) {
  for (const bool channel : {false, true}) {
    const TwoKeyData data =
        two_key_data(rows(), count(), channel, [&](auto&&... a) { return random(a...); });
    const Tensor o = output({rows(), kHV, kV});
    const Tensor state = output({count(), kHV, kK, kV});
    rec::two_key(reference_, packing(), data.cpp, {o, state});
    const Tensor c_o = twin(o);
    const Tensor c_state = twin(state);
    const rankone_two_key_outputs outputs{c_tensor(c_o), c_tensor(c_state), {}};
    const auto* sequences = cut(packing());
    expect_done([&](const rankone_call* call) {
      return rankone_two_key(context_, sequences, &data.c, &outputs, call);
    });
    expect_same_bits(o, c_o, "o");
    expect_same_bits(state, c_state, "final_state");
    // An empty sequence returns its initial state.
    expect_same_bits(data.cpp.initial_state.slice(0, 1, 2), c_state.slice(0, 1, 2), "empty");
  }
}

TEST_P(SameBits, TwoKeyVjp) {
  for (const bool channel : {false, true}) {
    const TwoKeyData data =
        two_key_data(rows(), count(), channel, [&](auto&&... a) { return random(a...); });
    const Tensor o = random({rows(), kHV, kV}, -1.0, 1.0);
    const Tensor state = random({count(), kHV, kK, kV}, -1.0, 1.0);
    const rec::TwoKey& in = data.cpp;
    const rec::TwoKeyGrads grads = {unwritten(in.q),
                                    unwritten(in.e),
                                    unwritten(in.w),
                                    unwritten(in.v),
                                    unwritten(in.g),
                                    unwritten(in.b),
                                    unwritten(in.initial_state)};
    rec::two_key_vjp(reference_, packing(), in, {plain(o), plain(state)}, grads);
    const rec::TwoKeyGrads twins = {twin(grads.q),
                                    twin(grads.e),
                                    twin(grads.w),
                                    twin(grads.v),
                                    twin(grads.g),
                                    twin(grads.b),
                                    twin(grads.initial_state)};
    const rankone_two_key_cotangents cotangents{c_tensor(o), c_tensor(state), {}};
    const rankone_two_key_grads c_grads{c_tensor(twins.q),
                                        c_tensor(twins.e),
                                        c_tensor(twins.w),
                                        c_tensor(twins.v),
                                        c_tensor(twins.g),
                                        c_tensor(twins.b),
                                        c_tensor(twins.initial_state)};
    const auto* sequences = cut(packing());
    expect_done([&](const rankone_call* call) {
      return rankone_two_key_vjp(context_, sequences, &data.c, &cotangents, &c_grads, call);
    });
    expect_same_bits(grads.q, twins.q, "q");
    expect_same_bits(grads.e, twins.e, "e");
    expect_same_bits(grads.w, twins.w, "w");
    expect_same_bits(grads.v, twins.v, "v");
    expect_same_bits(grads.g, twins.g, "g");
    expect_same_bits(grads.b, twins.b, "b");
    expect_same_bits(grads.initial_state, twins.initial_state, "initial_state");
  }
}

TEST_P(SameBits, TwoKeyStepUpdatesTheStateInPlace) {
  for (const std::int64_t time : {1, 3, 8}) {
    const Sequences batch = Sequences::dense(2, time);
    TwoKeyData data =
        two_key_data(batch.rows(), 2, false, [&](auto&&... a) { return random(a...); });
    const Tensor o = output({batch.rows(), kHV, kV});
    const Tensor state = output({2, kHV, kK, kV});
    rec::two_key(reference_, batch, data.cpp, {o, state});
    const Tensor c_o = twin(o);
    const Tensor c_state = twin(state);
    c_state.copy_from(data.cpp.initial_state);
    data.c.initial_state = c_tensor(c_state);
    const rankone_tensor out = c_tensor(c_o);
    const auto* sequences = cut(batch);
    expect_done([&](const rankone_call* call) {
      return rankone_two_key_step(context_, sequences, &data.c, &out, call);
    });
    expect_same_bits(o, c_o, "o");
    expect_same_bits(state, c_state, "state");
  }
}

TEST_P(SameBits, PreconditionForwardAndVjp) {
  for (const auto kind : {rec::PreconditionerKind::atk, rec::PreconditionerKind::atq}) {
    const bool atk = kind == rec::PreconditionerKind::atk;
    const Tensor k = random({rows(), kH, kK}, -1.0, 1.0);
    const Tensor target = random({rows(), kH, kK}, -1.0, 1.0);
    const Tensor g = random({rows(), kH}, -0.3, 0.0);
    const Tensor b = random({rows(), kH}, 0.0, 1.0);
    const Tensor center = atk ? random({kH}, -1.0, 1.0) : Tensor();
    const Tensor ridge = atk ? Tensor() : random({kH, kK}, 0.1, 1.0);
    const Tensor initial = random({count(), kH, kK}, 0.0, 1.0);
    rec::Precondition in;
    in.kind = kind;
    in.k = plain(k);
    in.target = plain(target);
    in.g = plain(g);
    in.b = plain(b);
    in.center = plain(center);
    in.ridge = plain(ridge);
    in.initial = plain(initial);
    in.normalize = true;
    rankone_precondition_inputs c_in{};
    c_in.kind = atk ? RANKONE_ATK : RANKONE_ATQ;
    c_in.normalize = 1;
    c_in.k = c_tensor(k);
    c_in.target = c_tensor(target);
    c_in.g = c_tensor(g);
    c_in.b = c_tensor(b);
    c_in.center = c_tensor(center);
    c_in.ridge = c_tensor(ridge);
    c_in.initial = c_tensor(initial);
    c_in.x = in.x;
    c_in.eps = in.eps;
    const rec::PreconditionOut out{output({rows(), kH, kK}), output({count(), kH, kK})};
    const rec::PreconditionGrads grads{
        unwritten(in.k),      unwritten(in.target), unwritten(in.g),      unwritten(in.b),
        unwritten(in.center), unwritten(in.ridge),  unwritten(in.initial)};
    rec::precondition(reference_, packing(), in, out);
    rec::precondition_vjp(reference_, packing(), in, {plain(k), plain(initial), {}, plain(target)},
                          grads);

    const auto* sequences = cut(packing());
    const Tensor c_out = twin(out.out);
    const Tensor c_final = twin(out.final);
    const rankone_precondition_outputs outputs{c_tensor(c_out), c_tensor(c_final), {}};
    expect_done([&](const rankone_call* call) {
      return rankone_precondition(context_, sequences, &c_in, &outputs, call);
    });
    expect_same_bits(out.out, c_out, "out");
    expect_same_bits(out.final, c_final, "final_state");

    const rec::PreconditionGrads twins{twin(grads.k),      twin(grads.target), twin(grads.g),
                                       twin(grads.b),      twin(grads.center), twin(grads.ridge),
                                       twin(grads.initial)};
    const rankone_precondition_cotangents cotangents{
        c_tensor(k), c_tensor(initial), {}, c_tensor(target)};
    const rankone_precondition_grads c_grads{
        c_tensor(twins.k),      c_tensor(twins.target), c_tensor(twins.g),      c_tensor(twins.b),
        c_tensor(twins.center), c_tensor(twins.ridge),  c_tensor(twins.initial)};
    expect_done([&](const rankone_call* call) {
      return rankone_precondition_vjp(context_, sequences, &c_in, &cotangents, &c_grads, call);
    });
    expect_same_bits(grads.k, twins.k, "k");
    expect_same_bits(grads.target, twins.target, "target");
    expect_same_bits(grads.g, twins.g, "g");
    expect_same_bits(grads.b, twins.b, "b");
    expect_same_bits(grads.center, twins.center, "center");
    expect_same_bits(grads.ridge, twins.ridge, "ridge");
    expect_same_bits(grads.initial, twins.initial, "initial");
  }
}

TEST_P(SameBits, DecayForwardAndVjp) {
  for (const auto form :
       {rec::DecayForm::softplus, rec::DecayForm::lower_bound, rec::DecayForm::logsigmoid}) {
    const bool has_parameters = form != rec::DecayForm::logsigmoid;
    const Tensor x = random({rows(), kHV, kK}, -2.0, 2.0);
    const Tensor a_log = has_parameters ? random({kHV}, -1.0, 1.0) : Tensor();
    const Tensor dt_bias = has_parameters ? random({kHV, kK}, -1.0, 1.0) : Tensor();
    rec::Decay in;
    in.form = form;
    in.channel = true;
    in.x = plain(x);
    in.a_log = plain(a_log);
    in.dt_bias = plain(dt_bias);
    in.normalizer = 16.0;
    in.dt_min = 0.01;
    in.dt_max = 1.5;
    rankone_decay_inputs c_in{};
    c_in.form = static_cast<int32_t>(form);
    c_in.channel = 1;
    c_in.x = c_tensor(x);
    c_in.a_log = c_tensor(a_log);
    c_in.dt_bias = c_tensor(dt_bias);
    c_in.bound = in.bound;
    c_in.normalizer = 16.0;
    c_in.clamp = -INFINITY;
    c_in.dt_min = 0.01;
    c_in.dt_max = 1.5;
    const bool dt = form == rec::DecayForm::softplus;
    const rec::DecayOut out{unwritten(in.x), dt ? unwritten(in.x) : Tensor()};
    const rec::DecayGrads grads{unwritten(in.x), unwritten(in.a_log), unwritten(in.dt_bias)};
    rec::decay(reference_, in, out);
    rec::decay_vjp(reference_, in, {in.x, dt ? in.x : Tensor()}, grads);

    const rec::DecayOut c_out{twin(out.g), twin(out.dt)};
    const rankone_decay_outputs outputs{c_tensor(c_out.g), c_tensor(c_out.dt)};
    expect_done(
        [&](const rankone_call* call) { return rankone_decay(context_, &c_in, &outputs, call); });
    expect_same_bits(out.g, c_out.g, "g");
    expect_same_bits(out.dt, c_out.dt, "dt");
    const rec::DecayGrads twins{twin(grads.x), twin(grads.a_log), twin(grads.dt_bias)};
    const rankone_decay_outputs cotangents{c_tensor(x), dt ? c_tensor(x) : rankone_tensor{}};
    const rankone_decay_grads c_grads{c_tensor(twins.x), c_tensor(twins.a_log),
                                      c_tensor(twins.dt_bias)};
    expect_done([&](const rankone_call* call) {
      return rankone_decay_vjp(context_, &c_in, &cotangents, &c_grads, call);
    });
    expect_same_bits(grads.x, twins.x, "x");
    expect_same_bits(grads.a_log, twins.a_log, "a_log");
    expect_same_bits(grads.dt_bias, twins.dt_bias, "dt_bias");
  }
}

TEST_P(SameBits, GainForwardAndVjp) {
  std::vector<std::int64_t> read = {3, 0, 7, 1, 2};
  const Tensor positions = Tensor::of<std::int64_t>(read, {count()});
  for (const auto kind : {rec::GainKind::sigmoid2, rec::GainKind::kaczmarz, rec::GainKind::longhorn,
                          rec::GainKind::vector}) {
    const bool key_norm = rec::is_key_norm(kind);
    const bool vector = kind == rec::GainKind::vector;
    const bool keys = key_norm || vector;
    const Tensor x =
        vector ? random({rows(), kH, kK}, -2.0, 2.0) : random({rows(), kHV}, -2.0, 2.0);
    const Tensor x_v = vector ? random({rows(), kHV, kV}, -2.0, 2.0) : Tensor();
    const Tensor e = keys ? random({rows(), kH, kK}, 0.0, 1.0) : Tensor();
    const Tensor w = key_norm ? random({rows(), kH, kK}, 0.0, 1.0) : Tensor();
    const Tensor v = keys ? random({rows(), kHV, kV}, -1.0, 1.0) : Tensor();
    rec::Gain in;
    in.kind = kind;
    in.time_factor = vector ? rec::TimeFactor::none : rec::TimeFactor::inv_sqrt_t;
    in.x = plain(x);
    in.x_v = plain(x_v);
    in.e = plain(e);
    in.w = plain(w);
    in.v = plain(v);
    in.positions = positions;
    rankone_gain_inputs c_in{};
    c_in.kind = static_cast<int32_t>(kind);
    c_in.time_factor = static_cast<int32_t>(in.time_factor);
    c_in.x = c_tensor(x);
    c_in.x_v = c_tensor(x_v);
    c_in.e = c_tensor(e);
    c_in.w = c_tensor(w);
    c_in.v = c_tensor(v);
    c_in.positions = c_tensor(positions);
    c_in.eps = in.eps;
    const rec::GainOut out{vector ? Tensor() : output({rows(), kHV}), unwritten(in.e),
                           unwritten(in.w), unwritten(in.v)};
    const rec::GainCotangents from{vector ? Tensor() : random({rows(), kHV}, -1.0, 1.0), e, w, v};
    const rec::GainGrads grads{unwritten(in.x), unwritten(in.x_v), {},
                               unwritten(in.e), unwritten(in.w),   unwritten(in.v)};
    rec::gain(reference_, packing(), in, out);
    rec::gain_vjp(reference_, packing(), in,
                  {plain(from.b), plain(from.e), plain(from.w), plain(from.v)}, grads);

    const auto* sequences = cut(packing());
    const rec::GainOut c_out{twin(out.b), twin(out.e), twin(out.w), twin(out.v)};
    const rankone_gain_outputs outputs{c_tensor(c_out.b), c_tensor(c_out.e), c_tensor(c_out.w),
                                       c_tensor(c_out.v)};
    expect_done([&](const rankone_call* call) {
      return rankone_gain(context_, sequences, &c_in, &outputs, call);
    });
    expect_same_bits(out.b, c_out.b, "b");
    expect_same_bits(out.e, c_out.e, "e");
    expect_same_bits(out.w, c_out.w, "w");
    expect_same_bits(out.v, c_out.v, "v");
    const rec::GainGrads twins{twin(grads.x), twin(grads.x_v), {},
                               twin(grads.e), twin(grads.w),   twin(grads.v)};
    const rankone_gain_outputs cotangents{c_tensor(from.b), c_tensor(e), c_tensor(w), c_tensor(v)};
    const rankone_gain_grads c_grads{c_tensor(twins.x), c_tensor(twins.x_v), {},
                                     c_tensor(twins.e), c_tensor(twins.w),   c_tensor(twins.v)};
    expect_done([&](const rankone_call* call) {
      return rankone_gain_vjp(context_, sequences, &c_in, &cotangents, &c_grads, call);
    });
    expect_same_bits(grads.x, twins.x, "x");
    expect_same_bits(grads.x_v, twins.x_v, "x_v");
    expect_same_bits(grads.e, twins.e, "e");
    expect_same_bits(grads.w, twins.w, "w");
    expect_same_bits(grads.v, twins.v, "v");
  }
}

TEST_P(SameBits, MesaForwardAndVjp) {
  const Tensor q = random({rows(), kH, kK}, -1.0, 1.0);
  const Tensor k = random({rows(), kH, kK}, -0.3, 0.3);
  const Tensor v = random({rows(), kH, kV}, -1.0, 1.0);
  const Tensor g = random({rows(), kH}, -0.3, 0.0);
  const Tensor b = random({rows(), kH}, 0.0, 1.0);
  const Tensor lambda = random({kH, kK}, 0.5, 1.0);
  const Tensor hkv = random({count(), kH, kK, kV}, -1.0, 1.0);
  rec::Mesa in;
  in.q = plain(q);
  in.k = plain(k);
  in.v = plain(v);
  in.g = plain(g);
  in.b = plain(b);
  in.lambda = plain(lambda);
  in.initial_hkv = plain(hkv);
  rankone_mesa_inputs c_in{};
  c_in.q = c_tensor(q);
  c_in.k = c_tensor(k);
  c_in.v = c_tensor(v);
  c_in.g = c_tensor(g);
  c_in.b = c_tensor(b);
  c_in.lambda = c_tensor(lambda);
  c_in.initial_hkv = c_tensor(hkv);
  c_in.max_iterations = in.max_iterations;
  const rec::MesaOut out{unwritten(in.v), output({count(), kH, kK, kK}), unwritten(in.initial_hkv)};
  const rec::MesaGrads grads{unwritten(in.q),
                             unwritten(in.k),
                             unwritten(in.v),
                             unwritten(in.g),
                             unwritten(in.b),
                             unwritten(in.lambda),
                             {},
                             unwritten(in.initial_hkv)};
  rec::mesa(reference_, packing(), in, out);
  rec::mesa_vjp(reference_, packing(), in, {in.v, {}, in.initial_hkv}, grads);

  const auto* sequences = cut(packing());
  const rec::MesaOut c_out{twin(out.o), twin(out.final_hkk), twin(out.final_hkv)};
  const rankone_mesa_outputs outputs{c_tensor(c_out.o), c_tensor(c_out.final_hkk),
                                     c_tensor(c_out.final_hkv)};
  expect_done([&](const rankone_call* call) {
    return rankone_mesa(context_, sequences, &c_in, &outputs, call);
  });
  expect_same_bits(out.o, c_out.o, "o");
  expect_same_bits(out.final_hkk, c_out.final_hkk, "final_hkk");
  expect_same_bits(out.final_hkv, c_out.final_hkv, "final_hkv");
  const rec::MesaGrads twins{twin(grads.q),
                             twin(grads.k),
                             twin(grads.v),
                             twin(grads.g),
                             twin(grads.b),
                             twin(grads.lambda),
                             {},
                             twin(grads.initial_hkv)};
  const rankone_mesa_outputs cotangents{c_tensor(v), {}, c_tensor(hkv)};
  const rankone_mesa_grads c_grads{c_tensor(twins.q),
                                   c_tensor(twins.k),
                                   c_tensor(twins.v),
                                   c_tensor(twins.g),
                                   c_tensor(twins.b),
                                   c_tensor(twins.lambda),
                                   {},
                                   c_tensor(twins.initial_hkv)};
  expect_done([&](const rankone_call* call) {
    return rankone_mesa_vjp(context_, sequences, &c_in, &cotangents, &c_grads, call);
  });
  expect_same_bits(grads.q, twins.q, "q");
  expect_same_bits(grads.k, twins.k, "k");
  expect_same_bits(grads.v, twins.v, "v");
  expect_same_bits(grads.g, twins.g, "g");
  expect_same_bits(grads.b, twins.b, "b");
  expect_same_bits(grads.lambda, twins.lambda, "lambda");
  expect_same_bits(grads.initial_hkv, twins.initial_hkv, "initial_hkv");
}

TEST_P(SameBits, LonghornForwardAndVjp) {
  const Tensor q = random({rows(), kH, kK}, -1.0, 1.0);
  const Tensor k = random({rows(), kH, kK}, -0.5, 0.5);
  const Tensor v = random({rows(), kHV, kV}, -1.0, 1.0);
  const Tensor beta = random({rows(), kHV, kV}, 0.1, 1.0);
  const Tensor state = random({count(), kHV, kK, kV}, -1.0, 1.0);
  const rec::Longhorn in{plain(q), plain(k), plain(v), plain(beta), plain(state)};
  const rankone_longhorn_inputs c_in{c_tensor(q), c_tensor(k), c_tensor(v), c_tensor(beta),
                                     c_tensor(state)};
  const rec::LonghornOut out{unwritten(in.v), unwritten(in.initial_state)};
  const rec::LonghornGrads grads{unwritten(in.q), unwritten(in.k), unwritten(in.v),
                                 unwritten(in.beta), unwritten(in.initial_state)};
  rec::longhorn(reference_, packing(), in, out);
  rec::longhorn_vjp(reference_, packing(), in, {in.v, in.initial_state}, grads);

  const auto* sequences = cut(packing());
  const rec::LonghornOut c_out{twin(out.o), twin(out.final_state)};
  const rankone_longhorn_outputs outputs{c_tensor(c_out.o), c_tensor(c_out.final_state)};
  expect_done([&](const rankone_call* call) {
    return rankone_longhorn(context_, sequences, &c_in, &outputs, call);
  });
  expect_same_bits(out.o, c_out.o, "o");
  expect_same_bits(out.final_state, c_out.final_state, "final_state");
  const rec::LonghornGrads twins{twin(grads.q), twin(grads.k), twin(grads.v), twin(grads.beta),
                                 twin(grads.initial_state)};
  const rankone_longhorn_outputs cotangents{c_tensor(v), c_tensor(state)};
  const rankone_longhorn_grads c_grads{c_tensor(twins.q), c_tensor(twins.k), c_tensor(twins.v),
                                       c_tensor(twins.beta), c_tensor(twins.initial_state)};
  expect_done([&](const rankone_call* call) {
    return rankone_longhorn_vjp(context_, sequences, &c_in, &cotangents, &c_grads, call);
  });
  expect_same_bits(grads.q, twins.q, "q");
  expect_same_bits(grads.k, twins.k, "k");
  expect_same_bits(grads.v, twins.v, "v");
  expect_same_bits(grads.beta, twins.beta, "beta");
  expect_same_bits(grads.initial_state, twins.initial_state, "initial_state");
}

}  // namespace
}  // namespace rankone::test
