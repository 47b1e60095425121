#include "apps/golden_ops.hpp"

#include <charconv>
#include <cmath>
#include <functional>
#include <map>
#include <set>

#include "core/status.hpp"
#include "recurrence/recurrence.hpp"

namespace rankone::apps {
namespace {

using namespace rankone::recurrence;

std::string metadata(const TensorFile& file, std::string_view key) {
  for (const auto& [name, value] : file.metadata) {
    if (name == key) return value;
  }
  fail(Status::corrupt, "[golden] the file has no metadata '{}'", key);
}

double number(const TensorFile& file, std::string_view key) {
  const std::string text = metadata(file, key);
  double value = 0.0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || !std::isfinite(value)) {
    fail(Status::corrupt, "[golden] metadata '{}' is '{}' (a number)", key, text);
  }
  return value;
}

// Whether the gate has a number for every key channel: [B, T, H, K].
bool channel_decay(const TensorFile& file) {
  const Tensor* gate = file.find("in.g");
  return gate != nullptr && gate->rank() == 4;
}

// The inputs of one file in the dtype of the run, and the comparisons made so far.
class OpRun {
 public:
  OpRun(const TensorFile& op_file, Context& op_context, Dtype dtype)
      : file(op_file),
        context(op_context),
        bounds_(golden_bounds(dtype, op_context, channel_decay(op_file))),
        dtype_(dtype),
        sequences(sequences_of(in("k"))) {}

  Tensor in(const std::string& name) const { return file.at("in." + name).to(dtype_); }
  Tensor optional(const std::string& name) const {
    const Tensor* tensor = file.find("in." + name);
    return tensor != nullptr ? tensor->to(dtype_) : Tensor();
  }
  Tensor cotangent(const std::string& name) const { return file.at("cot." + name).to(dtype_); }
  Tensor like(const Tensor& tensor) const {
    return tensor.defined() ? Tensor::empty(tensor.shape(), dtype_) : Tensor();
  }
  Tensor round(const Tensor& f64) const { return f64.to(dtype_); }

  void output(const std::string& name, const Tensor& got) {
    compare("out." + name, got, GoldenRows::rows);
  }
  void gradient(const std::string& name, const Tensor& got, GoldenRows rows = GoldenRows::rows) {
    compare("grad." + name, got, rows);
  }
  // The gradient of a decay: per channel or one number a step.
  void decay_gradient(const Tensor& got) {
    if (!got.defined()) return;
    gradient("g", got, got.rank() == 4 ? GoldenRows::channel_gate : GoldenRows::scalars);
  }

  // Outputs and gradients of the file that nothing was compared with fail.
  std::vector<TensorCheck> finish() {
    for (const auto& [name, tensor] : file.tensors) {
      const bool expected = name.starts_with("out.") || name.starts_with("grad.");
      if (expected && !seen_.contains(name)) {
        checks_.push_back({name, false, INFINITY, "nothing computes it"});
      }
    }
    return std::move(checks_);
  }

  const TensorFile& file;
  Context& context;

 private:
  void compare(const std::string& name, const Tensor& got, GoldenRows rows) {
    seen_.insert(name);
    checks_.push_back(compare_golden(name, file.at(name), got, rows, bounds_));
  }
  static Sequences sequences_of(const Tensor& k) {
    require(k.rank() == 4, "[golden] in.k has shape {} (it is [B, T, H, K])", k.shape().str());
    return Sequences::dense(k.dim(0), k.dim(1));
  }

  GoldenBounds bounds_;
  Dtype dtype_;
  std::set<std::string> seen_;
  std::vector<TensorCheck> checks_;

 public:
  Sequences sequences;
};

// Element-wise in float64, from tensors of one shape.
template <class Function>
Tensor combine(const Tensor& a, const Tensor& b, Function&& function) {
  require(a.shape() == b.shape(), "[golden] shapes {} and {} differ", a.shape().str(),
          b.shape().str());
  const Tensor x = a.to(Dtype::f64), y = b.to(Dtype::f64);
  for (std::int64_t i = 0; i < x.count(); ++i) {
    x.data<double>()[i] = function(x.data<double>()[i], y.data<double>()[i]);
  }
  return x;
}
Tensor plus(const Tensor& a, const Tensor& b) {
  return combine(a, b, [](double x, double y) { return x + y; });
}
Tensor times(const Tensor& a, const Tensor& b) {
  return combine(a, b, [](double x, double y) { return x * y; });
}

// The two-key recurrence forward and backward.
struct TwoKeyRun {
  Tensor o, final_state;
  TwoKeyGrads grads;

  TwoKeyRun(OpRun& run, const TwoKey& inputs, const Tensor& d_o) {
    o = run.like(d_o);
    final_state = run.like(inputs.initial_state);
    two_key(run.context, run.sequences, inputs, {o, final_state});
    grads = {run.like(inputs.q),
             run.like(inputs.e),
             run.like(inputs.w),
             run.like(inputs.v),
             run.like(inputs.g),
             run.like(inputs.b),
             run.like(inputs.initial_state)};
    two_key_vjp(run.context, run.sequences, inputs, {d_o, run.cotangent("ht")}, grads);
  }
};

// delta_rule, gated_delta_rule, kda: e = w = k; additive ones: no e.
void check_plain(OpRun& run, bool delta) {
  const Tensor k = run.in("k");
  TwoKey inputs{run.in("q"),  delta ? k : Tensor(),     k,
                run.in("v"),  run.optional("g"),        run.optional("beta"),
                run.in("h0"), number(run.file, "scale")};
  const TwoKeyRun result(run, inputs, run.cotangent("o"));
  run.output("o", result.o);
  run.output("ht", result.final_state);
  run.gradient("q", result.grads.q);
  run.gradient("k", delta ? plus(result.grads.e, result.grads.w) : result.grads.w);
  run.gradient("v", result.grads.v);
  run.decay_gradient(result.grads.g);
  if (inputs.b.defined()) run.gradient("beta", result.grads.b, GoldenRows::scalars);
  run.gradient("h0", result.grads.initial_state);
}

void check_delta(OpRun& run) { check_plain(run, true); }
void check_additive(OpRun& run) { check_plain(run, false); }

// KLA through its gain, kaczmarz, whose logit is log(eta / (1 - eta)).
void check_kla(OpRun& run) {
  const Tensor k = run.in("k"), v = run.in("v"), eta = run.in("eta");
  const Tensor logit =
      run.round(combine(eta, eta, [](double x, double) { return std::log(x) - std::log1p(-x); }));
  Gain kaczmarz;
  kaczmarz.kind = GainKind::kaczmarz;
  kaczmarz.x = logit;
  kaczmarz.e = kaczmarz.w = k;
  kaczmarz.v = v;
  kaczmarz.eps = number(run.file, "eps");
  const GainOut bounded{run.like(eta), run.like(k), run.like(k), run.like(v)};
  gain(run.context, run.sequences, kaczmarz, bounded);

  const TwoKey inputs{run.in("q"), bounded.e, bounded.w,    bounded.v,
                      run.in("g"), bounded.b, run.in("h0"), number(run.file, "scale")};
  const TwoKeyRun result(run, inputs, run.cotangent("o"));
  GainGrads grads;
  grads.x = run.like(eta);
  grads.e = run.like(k);
  grads.w = run.like(k);
  grads.v = run.like(v);
  gain_vjp(run.context, run.sequences, kaczmarz,
           {result.grads.b, result.grads.e, result.grads.w, result.grads.v}, grads);
  run.output("o", result.o);
  run.output("ht", result.final_state);
  run.gradient("q", result.grads.q);
  run.gradient("k", plus(grads.e, grads.w));
  run.gradient("v", grads.v);
  run.decay_gradient(result.grads.g);
  run.gradient("eta", combine(grads.x, eta, [](double d, double x) { return d / (x * (1 - x)); }),
               GoldenRows::scalars);
  run.gradient("h0", result.grads.initial_state);
}

// x / max(|x|, 1e-12) along the last axis, in float64; and its vjp.
Tensor clamp_norm(const Tensor& tensor) {
  const Tensor x = tensor.to(Dtype::f64);
  const std::int64_t width = x.dim(-1);
  for (std::int64_t row = 0; row < x.count() / width; ++row) {
    double* at = x.data<double>() + row * width;
    double squares = 0.0;
    for (std::int64_t i = 0; i < width; ++i) squares += at[i] * at[i];
    const double norm = std::max(std::sqrt(squares), 1e-12);
    for (std::int64_t i = 0; i < width; ++i) at[i] /= norm;
  }
  return x;
}
Tensor clamp_norm_vjp(const Tensor& tensor, const Tensor& cotangent) {
  const Tensor x = tensor.to(Dtype::f64), d = cotangent.to(Dtype::f64);
  const std::int64_t width = x.dim(-1);
  for (std::int64_t row = 0; row < x.count() / width; ++row) {
    const double* at = x.data<double>() + row * width;
    double* out = d.data<double>() + row * width;
    double squares = 0.0, along = 0.0;
    for (std::int64_t i = 0; i < width; ++i) {
      squares += at[i] * at[i];
      along += at[i] * out[i];
    }
    const double norm = std::sqrt(squares);
    for (std::int64_t i = 0; i < width; ++i) {
      out[i] = norm > 1e-12 ? (out[i] - at[i] * (along / squares)) / norm : out[i] / 1e-12;
    }
  }
  return d;
}

void check_preconditioned(OpRun& run, bool normalize) {
  const Tensor q = run.in("q"), k = run.in("k");
  const Tensor q_hat = normalize ? run.round(clamp_norm(q)) : q;
  const Tensor k_hat = normalize ? run.round(clamp_norm(k)) : k;
  Precondition atk;
  atk.k = atk.target = k_hat;
  atk.g = run.in("g_pre");
  atk.b = run.in("beta_pre");
  atk.center = run.in("center");
  atk.initial = run.in("a0");
  atk.x = number(run.file, "x");
  atk.eps = number(run.file, "eps");
  const PreconditionOut keys{run.like(k), run.like(atk.initial)};
  precondition(run.context, run.sequences, atk, keys);

  const TwoKey inputs{q_hat,       k_hat,          keys.out,     run.in("v"),
                      run.in("g"), run.in("beta"), run.in("h0"), number(run.file, "scale")};
  const TwoKeyRun result(run, inputs, run.cotangent("o"));
  PreconditionGrads grads;  // of k all in one
  grads.k = grads.target = result.grads.e;
  grads.g = run.like(atk.g);
  grads.b = run.like(atk.b);
  grads.center = run.like(atk.center);
  grads.initial = run.like(atk.initial);
  precondition_vjp(run.context, run.sequences, atk,
                   {result.grads.w, run.cotangent("at"), {}, result.grads.e}, grads);
  const Tensor& d_k_hat = grads.k;

  run.output("o", result.o);
  run.output("ht", result.final_state);
  run.output("at", keys.final);
  run.gradient("q", normalize ? clamp_norm_vjp(q, result.grads.q) : result.grads.q);
  run.gradient("k", normalize ? clamp_norm_vjp(k, d_k_hat) : d_k_hat);
  run.gradient("v", result.grads.v);
  run.decay_gradient(result.grads.g);
  run.gradient("g_pre", grads.g, GoldenRows::scalars);
  run.gradient("beta", result.grads.b, GoldenRows::scalars);
  run.gradient("beta_pre", grads.b, GoldenRows::scalars);
  run.gradient("center", grads.center, GoldenRows::parameter);
  run.gradient("h0", result.grads.initial_state);
  run.gradient("a0", grads.initial);
}

void check_pgdn(OpRun& run) { check_preconditioned(run, true); }
void check_pkda(OpRun& run) { check_preconditioned(run, false); }

// GDN-2 with the gates themselves: e = b * k, v <- w * v.
void check_gdn2(OpRun& run) {
  const Tensor k = run.in("k"), v = run.in("v"), b = run.in("b"), w = run.in("w");
  TwoKey inputs;
  inputs.q = run.in("q");
  inputs.e = run.round(times(b, k));
  inputs.w = k;
  inputs.v = run.round(times(w, v));
  inputs.g = run.in("g");
  inputs.initial_state = run.in("h0");
  inputs.scale = number(run.file, "scale");
  const TwoKeyRun result(run, inputs, run.cotangent("o"));
  run.output("o", result.o);
  run.output("ht", result.final_state);
  run.gradient("q", result.grads.q);
  run.gradient("k", plus(times(b, result.grads.e), result.grads.w));
  run.gradient("v", times(w, result.grads.v));
  run.decay_gradient(result.grads.g);
  run.gradient("b", times(k, result.grads.e));
  run.gradient("w", times(v, result.grads.v));
  run.gradient("h0", result.grads.initial_state);
}

// Every `writes`-th row of [B, T * writes, ...], from `first` on; and the reverse, zeros between.
Tensor pick_rows(const Tensor& tensor, std::int64_t writes, std::int64_t first) {
  Shape shape = tensor.shape();
  shape[1] /= writes;
  Tensor result = Tensor::empty(shape, tensor.dtype());
  const Shape split{shape[0] * shape[1], writes, result.count() / (shape[0] * shape[1])};
  result.reshape({split[0], 1, split[2]})
      .copy_from(tensor.reshape(split).slice(1, first, first + 1));
  return result;
}
Tensor spread_rows(const Tensor& tensor, std::int64_t writes, std::int64_t first) {
  Shape shape = tensor.shape();
  shape[1] *= writes;
  Tensor result = Tensor::zeros(shape, tensor.dtype());
  const std::int64_t rows = tensor.dim(0) * tensor.dim(1), width = tensor.count() / rows;
  result.reshape({rows, writes, width})
      .slice(1, first, first + 1)
      .copy_from(tensor.reshape({rows, 1, width}));
  return result;
}

// DeltaProduct by repeated writes: the decay acts before the first of a token's writes, the query
// reads after the last.
void check_delta_product(OpRun& run) {
  const auto writes = static_cast<std::int64_t>(number(run.file, "num_householder"));
  const Tensor q = run.in("q"), k = run.in("k");
  require(writes >= 1 && q.rank() == 4 && q.count() > 0 && k.dim(1) == q.dim(1) * writes,
          "[golden] in.k has {} rows, in.q {} (k has num_householder = {} rows a token)", k.dim(1),
          q.dim(1), writes);
  const TwoKey inputs{spread_rows(q, writes, writes - 1),
                      k,
                      k,
                      run.in("v"),
                      spread_rows(run.in("g"), writes, 0),
                      run.in("beta"),
                      run.in("h0"),
                      1.0};
  const TwoKeyRun result(run, inputs, spread_rows(run.cotangent("o"), writes, writes - 1));
  run.output("o", pick_rows(result.o, writes, writes - 1));
  run.output("ht", result.final_state);
  run.gradient("q", pick_rows(result.grads.q, writes, writes - 1));
  run.gradient("k", plus(result.grads.e, result.grads.w));
  run.gradient("v", result.grads.v);
  run.decay_gradient(pick_rows(result.grads.g, writes, 0));
  run.gradient("beta", result.grads.b, GoldenRows::scalars);
  run.gradient("h0", result.grads.initial_state);
}

void check_mesa(OpRun& run) {
  Mesa inputs;
  inputs.q = run.in("q");
  inputs.k = run.in("k");
  inputs.v = run.in("v");
  inputs.g = run.in("g");
  inputs.b = run.in("beta");
  inputs.lambda = run.in("lamb");
  inputs.initial_hkk = run.in("hkk0");
  inputs.initial_hkv = run.in("hkv0");
  const MesaOut out{run.like(inputs.v), run.like(inputs.initial_hkk), run.like(inputs.initial_hkv)};
  mesa(run.context, run.sequences, inputs, out);
  const MesaGrads grads{run.like(inputs.q),           run.like(inputs.k),
                        run.like(inputs.v),           run.like(inputs.g),
                        run.like(inputs.b),           run.like(inputs.lambda),
                        run.like(inputs.initial_hkk), run.like(inputs.initial_hkv)};
  mesa_vjp(run.context, run.sequences, inputs,
           {run.cotangent("o"), run.cotangent("hkk"), run.cotangent("hkv")}, grads);
  run.output("o", out.o);
  run.output("hkk", out.final_hkk);
  run.output("hkv", out.final_hkv);
  run.gradient("q", grads.q);
  run.gradient("k", grads.k);
  run.gradient("v", grads.v);
  run.decay_gradient(grads.g);
  run.gradient("beta", grads.b, GoldenRows::scalars);
  run.gradient("lamb", grads.lambda);
  run.gradient("hkk0", grads.initial_hkk);
  run.gradient("hkv0", grads.initial_hkv);
}

const std::map<std::string, void (*)(OpRun&), std::less<>>& adapters() {
  static const std::map<std::string, void (*)(OpRun&), std::less<>> list = {
      {"delta_rule", check_delta},
      {"gated_delta_rule", check_delta},
      {"kda", check_delta},
      {"linear_attn", check_additive},
      {"simple_gla", check_additive},
      {"gla", check_additive},
      {"kla", check_kla},
      {"pgdn", check_pgdn},
      {"pkda", check_pkda},
      {"gdn2", check_gdn2},
      {"mesa", check_mesa},
      {"gated_delta_product", check_delta_product},
  };
  return list;
}

}  // namespace

std::string golden_op(const TensorFile& file) { return metadata(file, "op"); }

bool is_recurrence_op(std::string_view op) { return adapters().contains(op); }

std::vector<TensorCheck> check_op_file(const TensorFile& file, Context& context, Dtype dtype) {
  const auto adapter = adapters().find(golden_op(file));
  if (adapter == adapters().end()) {
    fail(Status::unsupported, "[golden] op '{}' is none of this build", golden_op(file));
  }
  OpRun run(file, context, dtype);
  adapter->second(run);
  return run.finish();
}

}  // namespace rankone::apps
