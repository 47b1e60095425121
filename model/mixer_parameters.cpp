// The tensors of a mixer: roles, shapes and initial values.

#include <cmath>

#include "model/mixer.hpp"

namespace rankone::model {

using recurrence::DecayForm;
using recurrence::DecayKind;
using recurrence::GainKind;
using recurrence::PreconditionerChoice;
using recurrence::Solve;

MixerSizes::MixerSizes(const MixerConfig& config)
    : writes(config.writes_per_token),
      query_heads(config.num_heads),
      stored_key_heads(config.num_key_heads),
      stored_value_heads(config.num_value_heads),
      key_heads(config.num_heads),
      value_heads(config.output_heads()),
      key_dim(config.key_dim),
      features(config.feature_dim()),
      value_dim(config.value_dim),
      gain_heads(config.gain_per_key_head ? config.num_key_heads : config.num_value_heads) {
  // What differs per value head repeats the keys: a preconditioner of its own, the Gram matrix of
  // the cg solve, an erase key scaled by the decay.
  const bool repeated = (config.axes.preconditioner != PreconditionerChoice::none &&
                         config.precondition_per_value_head) ||
                        config.axes.solve == Solve::cg || config.read_undecayed;
  if (repeated) key_heads = value_heads;
}

namespace {

// Declares the tensors of one mixer under its roles.
class MixerDeclaration {
 public:
  MixerDeclaration(const Declare& declare, const MixerConfig& config)
      : declare_(declare), config_(config), sizes_(config), hidden_(declare.config().hidden_size) {}

  MixerWeights declare() {
    if (config_.fused_projection) {
      fused();
    } else {
      separate();
    }
    decay();
    gain();
    preconditioner();
    feature_maps();
    output();
    return weights_;
  }

 private:
  Projection projection(const std::string& role, std::int64_t out, bool bias = false) {
    Projection result;
    result.first = declare_.linear(role + ".weight", out, hidden_);
    if (bias) result.bias = declare_.bias(role + ".bias", out);
    return result;
  }

  Projection low_rank(const std::string& role, std::int64_t out, std::int64_t rank, bool bias) {
    if (rank == 0) return projection(role, out, bias);
    Projection result;
    result.first = declare_.linear(role + ".0.weight", rank, hidden_);
    result.second = declare_.linear(role + ".1.weight", out, rank);
    if (bias) result.bias = declare_.bias(role + ".1.bias", out);
    return result;
  }

  Convolution convolution(const std::string& role, std::int64_t channels) {
    Convolution result;
    result.weight = declare_.convolution(role + ".weight", channels, config_.conv_size);
    if (config_.conv_bias) result.bias = declare_.bias(role + ".bias", channels);
    return result;
  }

  void separate() {
    const std::int64_t query = sizes_.query_heads * sizes_.key_dim;
    const std::int64_t key = sizes_.writes * sizes_.stored_key_heads * sizes_.key_dim;
    const std::int64_t value = sizes_.writes * sizes_.stored_value_heads * sizes_.value_dim;
    weights_.query = projection("q_proj", query);
    weights_.key = projection("k_proj", key);
    weights_.value = projection("v_proj", value);
    if (config_.conv_size > 0) {
      weights_.query_conv = convolution("q_conv1d", query);
      weights_.key_conv = convolution("k_conv1d", key);
      if (config_.conv_value) weights_.value_conv = convolution("v_conv1d", value);
    }
    if (config_.output_gate != nn::Activation::none) {
      weights_.gate = low_rank("g_proj", sizes_.channels(), config_.gate_rank, config_.gate_bias);
    }
  }

  void fused() {
    const std::int64_t value = sizes_.stored_value_heads * sizes_.value_dim;
    const std::int64_t key = sizes_.stored_key_heads * sizes_.key_dim;
    weights_.fused = projection("in_proj", 2 * value + 2 * key + sizes_.stored_value_heads,
                                config_.projection_bias);
    weights_.fused_conv = convolution("conv1d", value + 2 * key);
  }

  const nn::Parameter* a_log(const char* role, std::int64_t heads) {
    const Init init = config_.a_init_one
                          ? Init::constant(0)
                          : Init::log_uniform_a(config_.a_init_low, config_.a_init_high);
    return declare_.vector(role, {heads}, {}, init);
  }

  Init step_bias() const {
    return Init::step_bias(config_.dt_init_low, config_.dt_init_high, config_.dt_init_floor);
  }

  void decay() {
    const DecayKind kind = config_.axes.decay;
    if (kind == DecayKind::none || kind == DecayKind::fixed) return;
    const bool channel = kind == DecayKind::channel;
    const std::int64_t heads = sizes_.stored_value_heads;
    const std::int64_t width = channel ? heads * sizes_.features : heads;
    if (!config_.fused_projection) {
      weights_.decay = low_rank("a_proj", width, config_.decay_rank, config_.decay_bias);
    }
    if (config_.decay_form == DecayForm::logsigmoid) return;
    weights_.a_log = a_log("A_log", heads);
    const Shape shape = channel ? Shape{heads, sizes_.features} : Shape{heads};
    weights_.dt_bias = declare_.vector("dt_bias", shape, {width}, step_bias());
  }

  void gain() {
    const GainKind kind = config_.axes.gain;
    const std::int64_t writes = sizes_.writes;
    if (kind == GainKind::one || kind == GainKind::nlms || uses_decay_step(config_)) return;
    if (kind == GainKind::vector) {
      if (config_.axes.solve == Solve::delta) {
        weights_.gain = projection("b_proj", writes * sizes_.stored_key_heads * sizes_.features,
                                   config_.gain_bias);
      }
      weights_.gain_value = projection(
          "w_proj", writes * sizes_.stored_value_heads * sizes_.value_dim, config_.gain_bias);
      return;
    }
    weights_.gain = projection("b_proj", writes * sizes_.gain_heads, config_.gain_bias);
    if (kind == GainKind::learned_scalar) {
      // softplus(theta) = 1: KLA at the start.
      weights_.theta =
          declare_.vector("gain_theta", {1}, {}, Init::constant(std::log(std::expm1(1.0))));
    }
  }

  void preconditioner() {
    const PreconditionerChoice choice = config_.axes.preconditioner;
    const bool ridged = choice == PreconditionerChoice::atq ||
                        choice == PreconditionerChoice::gram || config_.axes.solve == Solve::cg;
    const std::int64_t heads = sizes_.key_heads;
    if (choice != PreconditionerChoice::none) {
      weights_.pre_decay = projection("a_pre_proj", heads);
      weights_.pre_gain = projection("b_pre_proj", sizes_.writes * heads);
      weights_.pre_a_log = a_log("A_log_pre", heads);
      weights_.pre_dt_bias = declare_.vector("dt_bias_pre", {heads}, {}, step_bias());
    }
    if (choice == PreconditionerChoice::atk) {
      weights_.center = declare_.vector("center", {heads}, {}, Init::constant(config_.center_init));
    }
    if (ridged) {  // softplus(parameter) + ridge_min = 1 at the start
      const double start = std::log(std::expm1(1.0 - config_.ridge_min));
      weights_.ridge = declare_.vector("lambda_params", {heads, sizes_.features},
                                       {heads * sizes_.features}, Init::constant(start));
    }
  }

  KeyMapWeights feature_map(const std::string& role) {
    const std::int64_t width = sizes_.key_dim;
    const auto layer = [&](const std::string& name, bool bias) {
      Projection result;
      result.first = declare_.linear(name + ".weight", width, width);
      if (bias) result.bias = declare_.bias(name + ".bias", width);
      return result;
    };
    switch (config_.feature_map) {
      case KeyMap::elementwise_product:
        return {layer(role + ".layer1", true), layer(role + ".layer2", true)};
      case KeyMap::hedgehog:
        return {layer(role + ".layer", true), {}};
      case KeyMap::t2r:
        return {layer(role + ".layer", false), {}};
      default:
        return {};
    }
  }

  void feature_maps() {
    weights_.query_map = feature_map("feature_map_q");
    weights_.key_map = config_.tie_feature_map ? weights_.query_map : feature_map("feature_map_k");
    if (config_.query_correction) {
      weights_.correction =
          declare_.vector("q_correction", {sizes_.query_heads}, {}, Init::constant(1.0));
    }
  }

  void output() {
    if (config_.d_skip != Skip::none) {
      const bool channel = config_.d_skip == Skip::channel;
      const std::int64_t heads = sizes_.value_heads;
      const Shape shape = channel ? Shape{heads, sizes_.value_dim} : Shape{heads};
      weights_.skip = declare_.vector("D", shape, {shape.count()}, Init::constant(1.0));
    }
    if (config_.output_norm) {
      const std::int64_t width = config_.norm_groups > 0 ? sizes_.channels() : sizes_.value_dim;
      weights_.norm = declare_.vector("o_norm.weight", {width}, {}, Init::constant(1.0));
    }
    const std::int64_t channels = sizes_.channels();
    Init init = declare_.matrix_init(channels);
    if (config_.rescale_output) {
      const auto layers = static_cast<double>(declare_.config().layers.size());
      init = Init::uniform(1.0 / std::sqrt(static_cast<double>(channels) * layers));
    }
    weights_.output.first = declare_.linear("o_proj.weight", hidden_, channels, init);
    if (config_.projection_bias) weights_.output.bias = declare_.bias("o_proj.bias", hidden_);
  }

  const Declare& declare_;
  const MixerConfig& config_;
  MixerSizes sizes_;
  std::int64_t hidden_;
  MixerWeights weights_;
};

}  // namespace

MixerWeights declare_mixer(const Declare& declare, const MixerConfig& config) {
  return MixerDeclaration(declare, config).declare();
}

}  // namespace rankone::model
