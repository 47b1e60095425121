#include "model/mixer.hpp"

#include <cmath>

namespace rankone::model {

using recurrence::DecayForm;
using recurrence::DecayKind;
using recurrence::GainKind;
using recurrence::PreconditionerChoice;
using recurrence::PreconditionerKind;
using recurrence::Solve;

nn::Var Projection::apply(nn::Tape& tape, nn::Var x) const {
  if (second == nullptr) return apply_linear(tape, x, first, bias);
  return apply_linear(tape, apply_linear(tape, x, first), second, bias);
}

Mixer::Mixer(const Declare& declare, const MixerConfig& config)
    : config_(config),
      sizes_(config),
      weights_(declare_mixer(declare, config)),
      norm_eps_(declare.config().norm_eps) {
  place_slots();
}

std::unique_ptr<TimeMixing> make_mixer(const Declare& declare, const MixerConfig& config) {
  return std::make_unique<Mixer>(declare, config);
}

// The order of work of the family, design and notation in docs/notation.md.
nn::Var Mixer::forward(nn::Tape& tape, const LayerCall& call, nn::Var x) const {
  const std::int64_t writes = sizes_.writes;
  const Sequences* sequences = &call.sequences;
  if (writes > 1) {
    std::vector<std::int64_t> boundaries(sequences->boundaries().begin(),
                                         sequences->boundaries().end());
    for (std::int64_t& boundary : boundaries) boundary *= writes;
    sequences = &tape.keep(Sequences::packed(boundaries));
  }
  Flow flow(tape, call, *sequences);
  project(flow, x);
  split_heads(flow);
  shape_keys(flow);
  decay(flow);
  precondition(flow);
  gain(flow);
  return output(flow, config_.axes.solve == Solve::cg ? solve_cg(flow) : solve(flow));
}

void Mixer::project(Flow& flow, nn::Var x) const {
  nn::Tape& tape = flow.tape;
  const auto logits = [&](const Projection& projection) {
    return projection ? projection.apply(tape, x) : nn::Var();
  };
  flow.gain_logits = logits(weights_.gain);
  flow.gain_value_logits = logits(weights_.gain_value);
  flow.pre_decay_logits = logits(weights_.pre_decay);
  flow.pre_gain_logits = logits(weights_.pre_gain);
  if (config_.fused_projection) {
    project_fused(flow, x);
    return;
  }
  flow.decay_logits = logits(weights_.decay);
  flow.gate = logits(weights_.gate);
  flow.q = convolve(flow, logits(weights_.query), weights_.query_conv, Slot::conv_q,
                    config_.key_activation);
  flow.w =
      convolve(flow, logits(weights_.key), weights_.key_conv, Slot::conv_k, config_.key_activation);
  flow.v = convolve(flow, logits(weights_.value), weights_.value_conv, Slot::conv_v,
                    config_.value_activation);
}

// Mamba-2: in_proj holds gate, value, key (B), query (C) and the time step, in this order.
void Mixer::project_fused(Flow& flow, nn::Var x) const {
  nn::Tape& tape = flow.tape;
  const std::int64_t value = sizes_.stored_value_heads * sizes_.value_dim;
  const std::int64_t key = sizes_.stored_key_heads * sizes_.key_dim;
  const nn::Var all = weights_.fused.apply(tape, x);
  flow.gate = nn::columns(tape, all, 0, value);
  flow.decay_logits = nn::columns(tape, all, 2 * value + 2 * key, sizes_.stored_value_heads);
  const nn::Var streams = convolve(flow, nn::columns(tape, all, value, value + 2 * key),
                                   weights_.fused_conv, Slot::conv, config_.key_activation);
  flow.v = nn::columns(tape, streams, 0, value);
  flow.w = nn::columns(tape, streams, value, key);
  flow.q = nn::columns(tape, streams, value + key, key);
}

nn::Var Mixer::convolve(Flow& flow, nn::Var x, const Convolution& convolution, Slot slot,
                        nn::Activation activation) const {
  if (!convolution) return nn::activate(flow.tape, x, activation);
  // The convolution applies silu itself; other activations come after it.
  const bool inside = activation == nn::Activation::silu || activation == nn::Activation::none;
  const nn::Var y = nn::short_conv(
      flow.tape, flow.call.sequences, x, flow.tape.parameter(*convolution.weight),
      convolution.bias != nullptr ? flow.tape.parameter(*convolution.bias) : nn::Var(),
      inside ? activation : nn::Activation::none, state(flow.call, slot));
  return inside ? y : nn::activate(flow.tape, y, activation);
}

void Mixer::split_heads(Flow& flow) const {
  nn::Tape& tape = flow.tape;
  const std::int64_t n = sizes_.writes;
  flow.q = nn::reshape(tape, flow.q, {flow.rows, sizes_.query_heads, sizes_.key_dim});
  flow.w = nn::reshape(tape, flow.w, {flow.rows, n * sizes_.stored_key_heads, sizes_.key_dim});
  flow.v = nn::reshape(tape, flow.v, {flow.rows, n * sizes_.stored_value_heads, sizes_.value_dim});
  // Grouped queries: each key and value serves several consecutive queries.
  flow.w = nn::repeat_heads(tape, flow.w, sizes_.query_heads / sizes_.stored_key_heads);
  flow.v = nn::repeat_heads(tape, flow.v, sizes_.value_heads / sizes_.stored_value_heads);
  flow.skip = flow.v;
}

void Mixer::shape_keys(Flow& flow) const {
  nn::Tape& tape = flow.tape;
  if (config_.query_correction) {  // Comba: q - d k
    const nn::Var key = last_write(flow, flow.w, sizes_.query_heads, sizes_.key_dim);
    flow.q = nn::head_skip(tape, flow.q, nn::scale(tape, key, -1.0),
                           tape.parameter(*weights_.correction));
  }
  flow.q = normalise(flow, map_features(flow, flow.q, weights_.query_map), config_.q_norm);
  flow.w = normalise(flow, map_features(flow, flow.w, weights_.key_map), config_.k_norm);
  if (config_.rope_theta > 0) {
    const Tensor positions = flow.call.positions();
    flow.q = nn::rope(tape, flow.call.sequences, flow.q, config_.rope_theta, positions);
    flow.w = nn::rope(tape, flow.call.sequences, flow.w, config_.rope_theta, positions);
  }
  const std::int64_t repeats = sizes_.key_heads / sizes_.query_heads;
  flow.q = nn::repeat_heads(tape, flow.q, repeats);
  flow.w = nn::repeat_heads(tape, flow.w, repeats);
  flow.e = flow.w;
}

nn::Var Mixer::map_features(Flow& flow, nn::Var x, const KeyMapWeights& weights) const {
  nn::Tape& tape = flow.tape;
  switch (config_.feature_map) {
    case KeyMap::none:
      return x;
    case KeyMap::relu:
      return nn::activate(tape, x, nn::Activation::relu);
    case KeyMap::elu1:
      return nn::activate(tape, x, nn::Activation::elu1);
    case KeyMap::elementwise_product:
      return nn::multiply(tape, weights.first.apply(tape, x), weights.second.apply(tape, x));
    case KeyMap::hedgehog:
      return nn::feature_map(tape, weights.first.apply(tape, x), nn::FeatureMap::hedgehog);
    case KeyMap::t2r:
      return nn::activate(tape, weights.first.apply(tape, x), nn::Activation::relu);
    case KeyMap::dpfp:
      return nn::feature_map(tape, x, nn::FeatureMap::dpfp);
  }
  return x;
}

nn::Var Mixer::normalise(Flow& flow, nn::Var x, KeyNorm norm) const {
  using nn::VectorNormForm;
  const double eps = config_.key_norm_eps;
  switch (norm) {
    case KeyNorm::none:
      return x;
    case KeyNorm::l2:
      return nn::vector_norm(flow.tape, x, VectorNormForm::rsqrt, eps);
    case KeyNorm::l2_clamp:
      return nn::vector_norm(flow.tape, x, VectorNormForm::clamp, eps);
    case KeyNorm::sum:
      return nn::vector_norm(flow.tape, x, VectorNormForm::sum, eps);
  }
  return x;
}

void Mixer::decay(Flow& flow) const {
  if (config_.axes.decay == DecayKind::none) return;
  nn::Tape& tape = flow.tape;
  const bool channel = config_.axes.decay == DecayKind::channel;
  const std::int64_t heads = sizes_.stored_value_heads;
  nn::DecayArgs args;
  args.form = config_.axes.decay == DecayKind::fixed ? DecayForm::fixed : config_.decay_form;
  args.channel = channel;
  if (args.form == DecayForm::fixed) {
    args.shape = {flow.rows, sizes_.value_heads};
    args.dtype = tape.value(flow.v).dtype();
    flow.g = nn::decay(tape, args, false).g;
    return;
  }
  args.x =
      nn::reshape(tape, flow.decay_logits,
                  channel ? Shape{flow.rows, heads, sizes_.features} : Shape{flow.rows, heads});
  if (weights_.a_log != nullptr) args.a_log = tape.parameter(*weights_.a_log);
  if (weights_.dt_bias != nullptr) args.dt_bias = tape.parameter(*weights_.dt_bias);
  args.bound = config_.decay_bound;
  args.normalizer = config_.decay_normalizer;
  args.clamp = std::max(config_.decay_clamp, -1e30);
  args.dt_min = config_.dt_limit_low;
  args.dt_max = std::min(config_.dt_limit_high, 1e30);
  const nn::DecayResult result = nn::decay(tape, args, uses_decay_step(config_));
  const std::int64_t repeats = sizes_.value_heads / heads;
  const auto repeated = [&](nn::Var x) {
    if (repeats == 1) return x;
    if (channel) return nn::repeat_heads(tape, x, repeats);
    const nn::Var columns = nn::reshape(tape, x, {flow.rows, heads, 1});
    return nn::reshape(tape, nn::repeat_heads(tape, columns, repeats),
                       {flow.rows, sizes_.value_heads});
  };
  flow.g = repeated(result.g);
  if (result.dt) flow.dt = repeated(result.dt);
}

void Mixer::precondition(Flow& flow) const {
  const PreconditionerChoice choice = config_.axes.preconditioner;
  if (choice == PreconditionerChoice::none) return;
  nn::Tape& tape = flow.tape;
  const std::int64_t heads = sizes_.key_heads;
  const std::int64_t rows = flow.sequences.rows();
  nn::DecayArgs decay;
  decay.x = flow.pre_decay_logits;
  decay.a_log = tape.parameter(*weights_.pre_a_log);
  decay.dt_bias = tape.parameter(*weights_.pre_dt_bias);
  nn::PreconditionArgs args;
  args.g = first_write(flow, nn::decay(tape, decay, false).g);
  args.b = nn::reshape(tape, nn::activate(tape, flow.pre_gain_logits, nn::Activation::sigmoid),
                       {rows, heads});
  args.k = nn::reshape(tape, flow.w, {rows, heads, sizes_.features});
  args.x = config_.squash_x;
  args.eps = config_.squash_eps;
  args.normalize = config_.k_norm != KeyNorm::l2 && config_.k_norm != KeyNorm::l2_clamp;
  args.state = state(flow.call, Slot::preconditioner);
  const Shape token_keys = {flow.rows, sizes_.writes * heads, sizes_.features};
  if (choice == PreconditionerChoice::atq) {
    args.kind = PreconditionerKind::atq;
    args.ridge = ridge(tape);
    args.target = per_write(flow, flow.q, heads, sizes_.features);
    if (sizes_.writes == 1) {
      flow.preconditioner = args;
      return;
    }
    flow.q = last_write(flow,
                        nn::reshape(tape, nn::precondition(tape, flow.sequences, args), token_keys),
                        heads, sizes_.features);
    return;
  }
  args.target = args.k;
  if (choice == PreconditionerChoice::atk) {
    args.kind = PreconditionerKind::atk;
    args.center = tape.parameter(*weights_.center);
    if (!recurrence::is_key_norm(config_.axes.gain)) {
      flow.preconditioner = args;
      return;
    }
  } else {
    args.kind = PreconditionerKind::gram;
    args.ridge = ridge(tape);
  }
  flow.w = nn::reshape(tape, nn::precondition(tape, flow.sequences, args), token_keys);
}

void Mixer::gain(Flow& flow) const {
  nn::Tape& tape = flow.tape;
  const std::int64_t n = sizes_.writes;
  const GainKind kind = config_.axes.gain;
  const bool keyed = recurrence::is_key_norm(kind);
  nn::GainArgs args;
  args.kind = kind;
  args.time_factor = config_.axes.time_factor;
  args.eps = config_.gain_eps;
  args.positions = flow.call.positions();
  args.shape = {flow.rows, n * sizes_.value_heads};
  args.dtype = tape.value(flow.v).dtype();
  if (keyed || kind == GainKind::vector) args.v = flow.v;
  if (keyed) {
    args.e = flow.e;
    args.w = flow.w;
    if (weights_.theta != nullptr) args.theta = tape.parameter(*weights_.theta);
  }
  // One logit of [R, n heads, width] for all value heads (or keys) of a group.
  const auto grouped = [&](nn::Var logits, std::int64_t from, std::int64_t to, std::int64_t width) {
    const nn::Var split = nn::reshape(tape, logits, {flow.rows, n * from, width});
    return nn::repeat_heads(tape, split, to / from);
  };
  if (kind == GainKind::vector) {
    if (flow.gain_logits) {
      args.e = flow.e;
      args.x =
          grouped(flow.gain_logits, sizes_.stored_key_heads, sizes_.key_heads, sizes_.features);
    }
    args.x_v = grouped(flow.gain_value_logits, sizes_.stored_value_heads, sizes_.value_heads,
                       sizes_.value_dim);
  } else if (uses_decay_step(config_)) {
    args.x = nn::reshape(tape, per_write(flow, flow.dt, sizes_.value_heads, 1), args.shape);
  } else if (flow.gain_logits) {
    const nn::Var logits = grouped(flow.gain_logits, sizes_.gain_heads, sizes_.value_heads, 1);
    args.x = nn::reshape(tape, logits, args.shape);
    if (kind == GainKind::dt) args.x = nn::softplus(tape, args.x, 0.0);
  }
  const nn::GainResult result = nn::gain(tape, flow.call.sequences, args);
  flow.b = result.b;
  if (args.v) flow.v = result.v;
  if (args.e) flow.e = result.e;
  if (keyed) flow.w = result.w;
}

nn::Var Mixer::solve(Flow& flow) const {
  nn::Tape& tape = flow.tape;
  const std::int64_t rows = flow.sequences.rows();
  const Shape keys = {rows, sizes_.key_heads, sizes_.features};
  nn::TwoKeyArgs args;
  const bool made_query =
      flow.preconditioner && flow.preconditioner->kind == PreconditionerKind::atq;
  const bool made_key = flow.preconditioner && !made_query;
  if (!made_query) args.q = per_write(flow, flow.q, sizes_.key_heads, sizes_.features);
  if (!made_key) args.w = nn::reshape(tape, flow.w, keys);
  args.v = nn::reshape(tape, flow.v, {rows, sizes_.value_heads, sizes_.value_dim});
  if (flow.g) args.g = first_write(flow, flow.g);
  if (flow.b) args.b = nn::reshape(tape, flow.b, {rows, sizes_.value_heads});
  if (config_.axes.solve == Solve::delta) {
    // The key itself where it is the write key, or what that is made of: one gradient for all.
    const bool shared = flow.e.id == flow.w.id;
    args.e = !shared ? nn::reshape(tape, flow.e, keys) : made_key ? flow.preconditioner->k : args.w;
    if (config_.read_undecayed && args.g) args.e = nn::exp_scale(tape, args.e, args.g, -1.0);
  }
  args.scale =
      config_.scale > 0 ? config_.scale : 1.0 / std::sqrt(static_cast<double>(sizes_.features));
  args.state = state(flow.call, Slot::memory);
  if (flow.preconditioner) {
    return nn::preconditioned_two_key(tape, flow.sequences, *flow.preconditioner, args);
  }
  return nn::two_key(tape, flow.sequences, args);
}

nn::Var Mixer::solve_cg(Flow& flow) const {
  nn::Tape& tape = flow.tape;
  const std::int64_t rows = flow.sequences.rows();
  nn::MesaArgs args;
  args.q = per_write(flow, flow.q, sizes_.key_heads, sizes_.features);
  args.k = nn::reshape(tape, flow.w, {rows, sizes_.key_heads, sizes_.features});
  args.v = nn::reshape(tape, flow.v, {rows, sizes_.value_heads, sizes_.value_dim});
  if (flow.g) args.g = first_write(flow, flow.g);
  if (flow.b) args.b = nn::reshape(tape, flow.b, {rows, sizes_.value_heads});
  args.lambda = ridge(tape);
  args.max_iterations =
      static_cast<int>(flow.call.decoding ? config_.cg_iterations_decode : config_.cg_iterations);
  args.tolerance = config_.cg_tolerance;
  args.damping = config_.cg_damping;
  args.hkk = state(flow.call, Slot::gram);
  args.hkv = state(flow.call, Slot::memory);
  return nn::mesa(tape, flow.sequences, args);
}

nn::Var Mixer::output(Flow& flow, nn::Var o) const {
  nn::Tape& tape = flow.tape;
  const std::int64_t heads = sizes_.value_heads;
  const std::int64_t width = sizes_.value_dim;
  o = nn::reshape(tape, o, {flow.rows, sizes_.writes * heads, width});
  o = last_write(flow, o, heads, width);
  if (weights_.skip != nullptr) {
    o = nn::head_skip(tape, o, last_write(flow, flow.skip, heads, width),
                      tape.parameter(*weights_.skip));
  }
  const std::int64_t groups = config_.norm_groups > 0 ? config_.norm_groups : heads;
  const Shape grouped = {flow.rows, groups, sizes_.channels() / groups};
  o = nn::reshape(tape, o, grouped);
  const nn::Var gate = flow.gate ? nn::reshape(tape, flow.gate, grouped) : nn::Var();
  if (weights_.norm != nullptr) {
    o = nn::rms_norm(tape, o, tape.parameter(*weights_.norm), norm_eps_,
                     {gate, gate ? config_.output_gate : nn::Activation::silu, config_.gate_first});
  } else if (gate) {
    o = nn::multiply(tape, o, nn::activate(tape, gate, config_.output_gate));
  }
  return weights_.output.apply(tape, nn::reshape(tape, o, {flow.rows, sizes_.channels()}));
}

nn::Var Mixer::ridge(nn::Tape& tape) const {
  return nn::softplus(tape, tape.parameter(*weights_.ridge), config_.ridge_min);
}

// x [R, heads, width], the same for each write of a token -> [R n, heads, width].
nn::Var Mixer::per_write(Flow& flow, nn::Var x, std::int64_t heads, std::int64_t width) const {
  const std::int64_t n = sizes_.writes;
  nn::Tape& tape = flow.tape;
  if (n > 1) {
    x = nn::repeat_heads(tape, nn::reshape(tape, x, {flow.rows, 1, heads * width}), n);
  }
  return nn::reshape(tape, x, {flow.rows * n, heads, width});
}

// A decay [R, ...] acts before the first write of a token -> [R n, ...], zero for the others.
nn::Var Mixer::first_write(Flow& flow, nn::Var x) const {
  const std::int64_t n = sizes_.writes;
  if (n == 1) return x;
  nn::Tape& tape = flow.tape;
  Shape shape = tape.value(x).shape();
  const std::int64_t width = tape.value(x).count() / std::max<std::int64_t>(flow.rows, 1);
  const nn::Var flat = nn::reshape(tape, x, {flow.rows, width});
  shape[0] = flow.rows * n;
  return nn::reshape(tape, nn::pad_columns(tape, flat, n * width), shape);
}

// x [R, n heads, width] -> that of the last write of each token, [R, heads, width].
nn::Var Mixer::last_write(Flow& flow, nn::Var x, std::int64_t heads, std::int64_t width) const {
  const std::int64_t n = sizes_.writes;
  if (n == 1) return x;
  nn::Tape& tape = flow.tape;
  const nn::Var flat = nn::reshape(tape, x, {flow.rows, n * heads * width});
  return nn::reshape(tape, nn::columns(tape, flat, (n - 1) * heads * width, heads * width),
                     {flow.rows, heads, width});
}

}  // namespace rankone::model
