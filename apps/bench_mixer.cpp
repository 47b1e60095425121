#include "apps/bench_mixer.hpp"

#include <algorithm>
#include <cmath>
#include <set>

#include "core/device.hpp"
#include "core/random.hpp"
#include "core/status.hpp"
#include "recurrence/recurrence.hpp"

namespace rankone::apps {
namespace {

using namespace rankone::recurrence;

// Large tensors repeat a prime number of values: no two rows are alike, and making them takes no
// longer than running the call.
template <class Next>
Tensor filled(const Shape& shape, Next&& next) {
  constexpr std::size_t kPeriod = 16777213;
  Tensor tensor = Tensor::empty(shape, Dtype::f32);
  const std::span<float> values = tensor.span<float>();
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = i < kPeriod ? static_cast<float>(next()) : values[i - kPeriod];
  }
  return tensor;
}

double logsigmoid(double x) { return -std::log1p(std::exp(-x)); }

// Scales each row to a length that `length` draws.
template <class Length>
void scale_rows(const Tensor& tensor, Length&& length) {
  const std::int64_t size = tensor.dim(-1);
  float* row = tensor.data<float>();
  for (std::int64_t r = 0; r < tensor.count() / size; ++r, row += size) {
    double squares = 0;
    for (std::int64_t i = 0; i < size; ++i) squares += static_cast<double>(row[i]) * row[i];
    const double factor = length() / std::sqrt(squares + 1e-30);
    for (std::int64_t i = 0; i < size; ++i) row[i] = static_cast<float>(row[i] * factor);
  }
}

Tensor like(const Tensor& tensor) {
  return tensor.defined() ? Tensor::empty(tensor.shape(), tensor.dtype()) : Tensor();
}

// Tensors of one memory count once.
double bytes_of(const std::vector<Tensor>& tensors) {
  std::set<const void*> seen;
  double bytes = 0;
  for (const Tensor& tensor : tensors) {
    if (tensor.defined() && seen.insert(tensor.raw()).second) {
      bytes += static_cast<double>(tensor.bytes());
    }
  }
  return bytes;
}

void round_to_bf16(const Tensor& tensor) {
  for (float& x : tensor.span<float>()) x = to_float(to_bf16(x));
}

constexpr std::string_view kGateNames[] = {"usual", "typical", "strong", "none"};

// Whether both are one, as keys that a mixer ties.
bool same(const Tensor& one, const Tensor& other) {
  return one.defined() && one.raw() == other.raw();
}

}  // namespace

GateChoice parse_gates(const std::string& text) {
  for (std::size_t i = 0; i < std::size(kGateNames); ++i) {
    if (text == kGateNames[i]) return static_cast<GateChoice>(i);
  }
  fail(Status::invalid_argument, "[bench] --gates '{}' is unknown (usual, typical, strong or none)",
       text);
}

MixerCall::MixerCall(const MixerPreset& preset, const MixerShape& shape, std::uint64_t seed,
                     bool rounded, GateChoice gates)
    : shape_(shape),
      writes_(preset.writes_per_token),
      cg_(preset.axes.solve == Solve::cg),
      preconditioned_(preset.axes.preconditioner != PreconditionerChoice::none),
      query_side_(preset.axes.preconditioner == PreconditionerChoice::atq),
      sequences_(Sequences::dense(shape.batch, shape.time * preset.writes_per_token)) {
  Random random(seed);
  const std::int64_t rows = sequences_.rows(), heads = shape.heads;
  const auto draw = [&] { return random.normal(); };
  const GainKind gain_kind = preset.axes.gain;
  Tensor q = filled({rows, heads, shape.d_k}, draw);
  Tensor k = filled({rows, heads, shape.d_k}, draw);
  Tensor v = filled({rows, heads, shape.d_v}, draw);
  scale_rows(q, [] { return 1.0; });
  // Keys that no norm follows keep norms spread over orders of magnitude.
  const bool raw = preset.k_norm == "none" && is_key_norm(gain_kind);
  scale_rows(k, [&] { return raw ? std::exp(random.normal()) : 1.0; });
  if (rounded) {
    for (const Tensor& tensor : {q, k, v}) round_to_bf16(tensor);
  }
  two_key_.q = q;
  two_key_.e = two_key_.w = k;
  two_key_.v = v;
  two_key_.scale =
      preset.scale > 0 ? preset.scale : 1.0 / std::sqrt(static_cast<double>(shape.d_k));
  cotangent_ = filled(v.shape(), draw);
  if (rounded) round_to_bf16(cotangent_);
  make_gates(preset, gates, seed);
  if (gain_kind != GainKind::one && gain_kind != GainKind::dt) make_gain(preset, random);
  make_writes(preset);
  if (preconditioned_) make_preconditioner(k, random);
  if (cg_) {
    mesa_ = {.q = q,
             .k = k,
             .v = v,
             .g = two_key_.g,
             .b = two_key_.b,
             .lambda = filled({heads, shape.d_k}, [&] { return random.uniform(0.25, 1.25); }),
             .initial_hkk = {},
             .initial_hkv = {}};
  }
  if (preset.axes.solve == Solve::additive) two_key_.e = Tensor();
  make_outputs();
}

void MixerCall::make_gain(const MixerPreset& preset, Random& random) {
  const auto draw = [&] { return random.normal(); };
  const Tensor k = two_key_.w;
  const Shape gates{sequences_.rows(), shape_.heads};
  Gain gain;
  GainOut out;
  gain.kind = preset.axes.gain;
  gain.time_factor = preset.axes.time_factor;
  const bool vector = gain.kind == GainKind::vector;
  if (gain.kind != GainKind::nlms) gain.x = filled(vector ? k.shape() : gates, draw);
  if (vector) gain.x_v = filled(two_key_.v.shape(), draw);
  if (gain.kind == GainKind::learned_scalar) gain.theta = filled({1}, [] { return 0.0; });
  if (!vector) out.b = two_key_.b = Tensor::empty(gates, Dtype::f32);
  if (vector || is_key_norm(gain.kind)) {
    gain.e = k;
    gain.v = two_key_.v;
    out.e = two_key_.e = like(k);
    out.v = two_key_.v = like(gain.v);
  }
  if (is_key_norm(gain.kind)) {
    gain.w = k;
    out.w = two_key_.w = like(k);
  }
  Context context({.threads = 1, .backends = {"cpu"}});
  recurrence::gain(context, sequences_, gain, out);
}

// Where the erase reads the state before its decay, and where a token writes several times.
void MixerCall::make_writes(const MixerPreset& preset) {
  if (preset.read_undecayed) {
    two_key_.e = two_key_.w.clone();
    for (std::int64_t i = 0; i < two_key_.e.count(); ++i) {
      two_key_.e.data<float>()[i] *= std::exp(-two_key_.g.data<float>()[i / shape_.d_k]);
    }
  }
  for (std::int64_t r = 0; writes_ > 1 && r < sequences_.rows(); ++r) {
    // The decay acts before the first write of a token, the query reads after the last.
    if (r % writes_ != 0) two_key_.g.slice(0, r, r + 1).fill(0.0);
    if (r % writes_ != writes_ - 1) two_key_.q.slice(0, r, r + 1).fill(0.0);
  }
}

void MixerCall::make_preconditioner(const Tensor& k, Random& random) {
  const Shape gates{sequences_.rows(), shape_.heads};
  precondition_.kind = query_side_ ? PreconditionerKind::atq : PreconditionerKind::atk;
  precondition_.k = k;
  precondition_.target = query_side_ ? two_key_.q : k;
  precondition_.g = filled(gates, [&] { return logsigmoid(random.normal()); });
  precondition_.b = filled(gates, [&] { return std::exp(logsigmoid(random.normal())); });
  if (query_side_) {
    precondition_.ridge = filled({shape_.heads, shape_.d_k}, [] { return 1.0; });
  } else {
    precondition_.center = filled({shape_.heads}, [] { return 0.0; });
  }
}

void MixerCall::make_gates(const MixerPreset& preset, GateChoice choice, std::uint64_t seed) {
  Random random(seed, 1);
  if (choice != GateChoice::usual) {
    make_gates(preset, GateChoice::usual, seed);
    if (!two_key_.g.defined()) return;
    const auto gate = [&] {
      if (choice == GateChoice::typical) return logsigmoid(random.normal());
      if (choice == GateChoice::strong) return random.uniform() < 0.5 ? -30.0 : -0.01;
      return 0.0;
    };
    two_key_.g = filled(two_key_.g.shape(), gate);
    gates_ = choice == GateChoice::typical  ? "logsigmoid(N(0, 1))"
             : choice == GateChoice::strong ? "-30 or -0.01, even odds"
                                            : "0";
    return;
  }
  const std::int64_t rows = sequences_.rows(), heads = shape_.heads;
  switch (preset.axes.decay) {
    case recurrence::DecayKind::none:
      gates_ = "none";
      return;
    case recurrence::DecayKind::fixed: {
      gates_ = "log(1 - 2^(-5 - head))";
      std::int64_t i = 0;
      two_key_.g = filled({rows, heads}, [&] {
        return std::log1p(-std::exp2(-5.0 - static_cast<double>(i++ % heads)));
      });
      return;
    }
    case recurrence::DecayKind::scalar:
      if (preset.axes.gain == GainKind::dt) {
        gates_ = "-A dt, A uniform in [1, 16] per head, dt log-uniform in [0.001, 0.1]";
        two_key_.b = filled({rows, heads}, [&] {
          return std::exp(random.uniform(std::log(0.001), std::log(0.1)));
        });
        const Tensor a = filled({heads}, [&] { return random.uniform(1, 16); });
        std::int64_t i = 0;
        two_key_.g = filled({rows, heads}, [&] {
          const std::int64_t at = i++;
          return -a.data<float>()[at % heads] * two_key_.b.data<float>()[at];
        });
        return;
      }
      gates_ = "logsigmoid(N(0, 1))";
      two_key_.g = filled({rows, heads}, [&] { return logsigmoid(random.normal()); });
      return;
    case recurrence::DecayKind::channel:
      gates_ = "logsigmoid(N(0, 1)) per channel, one step in 16 at -30";
      two_key_.g = filled({rows, heads, shape_.d_k}, [&] {
        return random.uniform() < 1.0 / 16 ? -30.0 : logsigmoid(random.normal());
      });
      return;
  }
}

void MixerCall::make_outputs() {
  two_key_out_.o = like(cotangent_);
  // One gradient for keys that are one, as a training step takes it.
  const bool made_key = preconditioned_ && !query_side_;
  const Tensor d_e = like(two_key_.e);
  two_key_grads_.q = like(two_key_.q);
  two_key_grads_.e = d_e;
  two_key_grads_.w = !made_key && same(two_key_.e, two_key_.w) ? d_e : like(two_key_.w);
  two_key_grads_.v = like(two_key_.v);
  two_key_grads_.g = like(two_key_.g);
  two_key_grads_.b = like(two_key_.b);
  if (preconditioned_) {
    precondition_out_.out = like(precondition_.target);
    PreconditionGrads& grads = precondition_grads_;
    grads.k = same(two_key_.e, precondition_.k) ? d_e : like(precondition_.k);
    grads.target =
        same(precondition_.k, precondition_.target) ? grads.k : like(precondition_.target);
    grads.g = like(precondition_.g);
    grads.b = like(precondition_.b);
    grads.center = like(precondition_.center);
    grads.ridge = like(precondition_.ridge);
    (query_side_ ? two_key_.q : two_key_.w) = precondition_out_.out;
  }
  if (cg_) {
    mesa_out_.o = like(cotangent_);
    mesa_grads_ = {like(mesa_.q), like(mesa_.k),      like(mesa_.v), like(mesa_.g),
                   like(mesa_.b), like(mesa_.lambda), Tensor(),      Tensor()};
  }
}

std::vector<Tensor*> MixerCall::row_inputs() {
  return {&two_key_.q, &two_key_.e, &two_key_.w,      &two_key_.v,           &mesa_.q,
          &mesa_.k,    &mesa_.v,    &precondition_.k, &precondition_.target, &cotangent_};
}

std::vector<Tensor*> MixerCall::gate_inputs() {
  return {&two_key_.g,
          &two_key_.b,
          &mesa_.g,
          &mesa_.b,
          &mesa_.lambda,
          &precondition_.g,
          &precondition_.b,
          &precondition_.center,
          &precondition_.ridge,
          &two_key_grads_.g,
          &two_key_grads_.b,
          &mesa_grads_.g,
          &mesa_grads_.b,
          &mesa_grads_.lambda,
          &precondition_grads_.g,
          &precondition_grads_.b,
          &precondition_grads_.center,
          &precondition_grads_.ridge};
}

std::vector<Tensor*> MixerCall::state_tensors() {
  return {&two_key_.initial_state, &two_key_out_.final_state, &mesa_.initial_hkk,
          &mesa_.initial_hkv,      &mesa_out_.final_hkk,      &mesa_out_.final_hkv,
          &precondition_.initial,  &precondition_out_.final};
}

std::vector<Tensor*> MixerCall::row_results() {
  return {&two_key_out_.o,   &mesa_out_.o,           &precondition_out_.out,
          &two_key_grads_.q, &two_key_grads_.e,      &two_key_grads_.w,
          &two_key_grads_.v, &mesa_grads_.q,         &mesa_grads_.k,
          &mesa_grads_.v,    &precondition_grads_.k, &precondition_grads_.target};
}

void MixerCall::round(Dtype format, Dtype gates) {
  const auto round_all = [](const std::vector<Tensor*>& tensors, Dtype dtype) {
    if (dtype == Dtype::f32) return;
    for (Tensor* tensor : tensors) {
      if (tensor->defined()) tensor->copy_from(tensor->to(dtype));
    }
  };
  round_all(row_inputs(), format);
  round_all(gate_inputs(), gates);
}

MixerCall MixerCall::on(Context& context, Dtype format, Dtype gates) const {
  MixerCall result = *this;
  std::vector<std::pair<const void*, Tensor>> known;
  const auto move = [&](const std::vector<Tensor*>& tensors, Dtype dtype) {
    for (Tensor* tensor : tensors) {
      if (!tensor->defined()) continue;
      const void* from = tensor->raw();
      const auto found = std::find_if(known.begin(), known.end(),
                                      [&](const auto& entry) { return entry.first == from; });
      if (found == known.end()) {
        known.emplace_back(from, to_device(tensor->to(dtype), context));
        *tensor = known.back().second;
      } else {
        *tensor = found->second;
      }
    }
  };
  move(result.row_inputs(), format);
  move(result.gate_inputs(), gates);
  move(result.state_tensors(), Dtype::f32);
  move(result.row_results(), format);
  return result;
}

MixerCall MixerCall::part(std::int64_t tokens, std::int64_t heads, Dtype dtype) const {
  MixerCall result = *this;
  const std::int64_t rows = tokens * writes_;
  result.shape_ = {1, tokens, heads, shape_.d_k, shape_.d_v};
  result.sequences_ = Sequences::dense(1, rows);
  std::vector<std::pair<const void*, Tensor>> known;  // tensors that are one remain one
  const auto in_rows = [&](Tensor& tensor) {
    if (!tensor.defined()) return;
    for (const auto& [from, to] : known) {
      if (from == tensor.raw()) {
        tensor = to;
        return;
      }
    }
    known.emplace_back(tensor.raw(), tensor.slice(0, 0, rows).slice(1, 0, heads).to(dtype));
    tensor = known.back().second;
  };
  const auto in_heads = [&](Tensor& tensor) {
    if (tensor.defined()) tensor = tensor.slice(0, 0, heads).to(dtype);
  };
  TwoKey& two_key = result.two_key_;
  Mesa& mesa = result.mesa_;
  Precondition& precondition = result.precondition_;
  for (Tensor* tensor :
       {&two_key.q, &two_key.e, &two_key.w, &two_key.v, &two_key.g, &two_key.b, &mesa.q, &mesa.k,
        &mesa.v, &mesa.g, &mesa.b, &precondition.k, &precondition.target, &precondition.g,
        &precondition.b, &result.cotangent_}) {
    in_rows(*tensor);
  }
  for (Tensor* tensor : {&mesa.lambda, &precondition.center, &precondition.ridge}) {
    in_heads(*tensor);
  }
  for (Tensor* state :
       {&two_key.initial_state, &mesa.initial_hkk, &mesa.initial_hkv, &precondition.initial}) {
    if (state->defined()) {
      // bf16 states stay so beside float32 inputs.
      *state =
          state->slice(0, 0, 1).slice(1, 0, heads).to(dtype == Dtype::f64 ? dtype : state->dtype());
    }
  }
  result.make_outputs();
  if (two_key.initial_state.defined()) result.two_key_out_.final_state = two_key.initial_state;
  if (precondition.initial.defined()) result.precondition_out_.final = precondition.initial;
  if (mesa.initial_hkk.defined()) {
    result.mesa_out_.final_hkk = mesa.initial_hkk;
    result.mesa_out_.final_hkv = mesa.initial_hkv;
  }
  return result;
}

void MixerCall::forward(Context& context) const { run(context, {{}, precondition_out_.final}); }

void MixerCall::forward_kept(Context& context) const { run(context, precondition_out_); }

void MixerCall::run(Context& context, const PreconditionOut& made) const {
  if (cg_) return recurrence::mesa(context, sequences_, mesa_, mesa_out_);
  if (!preconditioned_) return recurrence::two_key(context, sequences_, two_key_, two_key_out_);
  TwoKey open = two_key_;
  (query_side_ ? open.q : open.w) = Tensor();
  preconditioned_two_key(context, sequences_, precondition_, made, open, two_key_out_);
}

void MixerCall::vjp(Context& context) const {
  if (cg_) {
    return recurrence::mesa_vjp(context, sequences_, mesa_, {cotangent_, {}, {}}, mesa_grads_);
  }
  recurrence::two_key_vjp(context, sequences_, two_key_, {cotangent_, {}, two_key_out_.saved},
                          two_key_grads_);
  if (!preconditioned_) return;
  const Tensor& through = query_side_ ? two_key_grads_.q : two_key_grads_.w;
  const bool erases = same(two_key_.e, precondition_.k);
  recurrence::precondition_vjp(
      context, sequences_, precondition_,
      {through, {}, precondition_out_.saved, erases ? two_key_grads_.e : Tensor()},
      precondition_grads_);
}

void MixerCall::save(Context& context) {
  if (cg_) return;
  const std::int64_t numbers = recurrence::two_key_saved(context, sequences_, two_key_);
  if (numbers > 0) two_key_out_.saved = empty_on(context, {numbers}, Dtype::f32);
  if (!preconditioned_) return;
  const std::int64_t states = recurrence::precondition_saved(context, sequences_, precondition_);
  if (states > 0) precondition_out_.saved = empty_on(context, {states}, Dtype::f32);
}

double MixerCall::saved_bytes() const {
  return bytes_of({two_key_out_.saved, precondition_out_.saved});
}

void MixerCall::carry_state(Dtype dtype) {
  const MixerShape& s = shape_;
  require(dtype == Dtype::f32 || !cg_, "[bench] the states of this mixer are f32 (not {})",
          name(dtype));
  if (cg_) {
    mesa_.initial_hkk = mesa_out_.final_hkk =
        Tensor::zeros({s.batch, s.heads, s.d_k, s.d_k}, Dtype::f32);
    mesa_.initial_hkv = mesa_out_.final_hkv =
        Tensor::zeros({s.batch, s.heads, s.d_k, s.d_v}, Dtype::f32);
    return;
  }
  two_key_.initial_state = two_key_out_.final_state =
      Tensor::zeros({s.batch, s.heads, s.d_k, s.d_v}, dtype);
  if (!preconditioned_) return;
  precondition_.initial = precondition_out_.final =
      Tensor::zeros({s.batch, s.heads, s.d_k}, Dtype::f32);
}

void MixerCall::take_state(const MixerCall& other) {
  mesa_.initial_hkk = mesa_out_.final_hkk = other.mesa_.initial_hkk;
  mesa_.initial_hkv = mesa_out_.final_hkv = other.mesa_.initial_hkv;
  two_key_.initial_state = two_key_out_.final_state = other.two_key_.initial_state;
  precondition_.initial = precondition_out_.final = other.precondition_.initial;
}

std::vector<Tensor> MixerCall::gradients() const {
  std::vector<Tensor> list;
  const auto add = [&](std::initializer_list<Tensor> tensors) {
    for (const Tensor& tensor : tensors) {
      if (tensor.defined()) list.push_back(tensor);
    }
  };
  if (cg_) {
    add({mesa_grads_.q, mesa_grads_.k, mesa_grads_.v, mesa_grads_.g, mesa_grads_.b,
         mesa_grads_.lambda});
    return list;
  }
  add({two_key_grads_.q, two_key_grads_.e, two_key_grads_.w, two_key_grads_.v, two_key_grads_.g,
       two_key_grads_.b, precondition_grads_.k, precondition_grads_.target, precondition_grads_.g,
       precondition_grads_.b, precondition_grads_.center, precondition_grads_.ridge});
  return list;
}

std::vector<Tensor> MixerCall::narrow_inputs() const {
  std::vector<Tensor> list;
  const auto add = [&](const Tensor& tensor) {
    if (!tensor.defined()) return;
    for (const Tensor& known : list) {
      if (known.raw() == tensor.raw()) return;
    }
    list.push_back(tensor);
  };
  if (cg_) {
    for (const Tensor& tensor : {mesa_.q, mesa_.k, mesa_.v}) add(tensor);
    return list;
  }
  if (preconditioned_) {
    add(precondition_.k);
    add(precondition_.target);
  }
  if (!query_side_) add(two_key_.q);
  add(two_key_.e);
  if (!preconditioned_ || query_side_) add(two_key_.w);
  add(two_key_.v);
  return list;
}

double MixerCall::forward_operations() const {
  if (cg_) return 0;
  const double write = two_key_.e.defined() ? 4 : 2;
  const double state = static_cast<double>(shape_.batch * shape_.time * shape_.heads) *
                       static_cast<double>(shape_.d_k * shape_.d_v);
  return state * (write * static_cast<double>(writes_) + 2);
}

double MixerCall::vjp_operations() const {
  if (cg_) return 0;
  const double write = two_key_.e.defined() ? 4 + 8 : 2 + 4;
  const double state = static_cast<double>(shape_.batch * shape_.time * shape_.heads) *
                       static_cast<double>(shape_.d_k * shape_.d_v);
  return state * (write * static_cast<double>(writes_) + 4);
}

double MixerCall::forward_bytes() const {
  return bytes_of({two_key_.q, two_key_.e, two_key_.w, two_key_.v, two_key_.g, two_key_.b, mesa_.q,
                   mesa_.k, mesa_.v, mesa_.g, mesa_.b, precondition_.k, precondition_.target,
                   precondition_.g, precondition_.b, output()}) -
         bytes_of({precondition_out_.out}) + 2 * state_bytes();
}

double MixerCall::state_bytes() const {
  return bytes_of({two_key_out_.final_state, mesa_out_.final_hkk, mesa_out_.final_hkv,
                   precondition_out_.final});
}

double MixerCall::vjp_bytes() const {
  return forward_bytes() - bytes_of({output()}) + bytes_of({cotangent_, precondition_out_.out}) +
         bytes_of(gradients());
}

}  // namespace rankone::apps
