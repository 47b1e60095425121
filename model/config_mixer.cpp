#include "model/config_mixer.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "recurrence/presets.hpp"

namespace rankone::model {

using recurrence::DecayForm;
using recurrence::DecayKind;
using recurrence::GainKind;
using recurrence::PreconditionerChoice;
using recurrence::Solve;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr std::int64_t kMaxKeyDim = 256;
constexpr std::int64_t kMaxValueDim = 1024;
constexpr std::int64_t kMaxWrites = 16;
constexpr std::int64_t kMaxRankWidth = 65536;

using Names = std::span<const std::string_view>;
constexpr std::array<std::string_view, 4> kKeyNorms = {"none", "l2", "l2_clamp", "sum"};
constexpr std::array<std::string_view, 7> kKeyMaps = {
    "none", "relu", "elu1", "elementwise_product", "hedgehog", "t2r", "dpfp"};
constexpr std::array<std::string_view, 3> kSkips = {"none", "head", "channel"};
constexpr std::array<std::string_view, 5> kActivations = {"none", "silu", "sigmoid", "relu",
                                                          "elu1"};

template <class Choice>
Names names_of() {
  if constexpr (std::is_same_v<Choice, KeyNorm>) {
    return kKeyNorms;
  } else if constexpr (std::is_same_v<Choice, KeyMap>) {
    return kKeyMaps;
  } else if constexpr (std::is_same_v<Choice, Skip>) {
    return kSkips;
  } else if constexpr (std::is_same_v<Choice, nn::Activation>) {
    return kActivations;
  } else {
    return recurrence::choice_names<Choice>();
  }
}

// The one list of keys: reading, writing and the names in messages all visit it.
template <class Visitor, class Config>
void visit_mixer(Visitor&& visit, Config& c) {
  visit.integer("num_heads", c.num_heads, 1, kMaxHeads);
  visit.integer("num_key_heads", c.num_key_heads, 1, kMaxHeads);
  visit.integer("num_value_heads", c.num_value_heads, 1, kMaxHeads);
  visit.integer("key_dim", c.key_dim, 1, kMaxKeyDim);
  visit.integer("value_dim", c.value_dim, 1, kMaxValueDim);
  visit.choice("decay", c.axes.decay);
  visit.choice("gain", c.axes.gain);
  visit.choice("time_factor", c.axes.time_factor);
  visit.choice("preconditioner", c.axes.preconditioner);
  visit.choice("solve", c.axes.solve);
  visit.choice("decay_form", c.decay_form);
  visit.number("decay_bound", c.decay_bound, -1e3, 0);
  visit.number("decay_normalizer", c.decay_normalizer, 1e-3, 1e6);
  visit.number("decay_clamp", c.decay_clamp, -kInfinity, 0);
  visit.integer("decay_rank", c.decay_rank, 0, kMaxRankWidth);
  visit.flag("decay_bias", c.decay_bias);
  visit.number("dt_limit_low", c.dt_limit_low, 0, 1e6);
  visit.number("dt_limit_high", c.dt_limit_high, 0, kInfinity);
  visit.number("a_init_low", c.a_init_low, 0, 1e6);
  visit.number("a_init_high", c.a_init_high, 1e-6, 1e6);
  visit.flag("a_init_one", c.a_init_one);
  visit.number("dt_init_low", c.dt_init_low, 1e-9, 1e3);
  visit.number("dt_init_high", c.dt_init_high, 1e-9, 1e3);
  visit.number("dt_init_floor", c.dt_init_floor, 1e-9, 1e3);
  visit.flag("gain_bias", c.gain_bias);
  visit.number("gain_eps", c.gain_eps, 0, 1);
  visit.flag("gain_per_key_head", c.gain_per_key_head);
  visit.number("squash_x", c.squash_x, 1, 2);
  visit.number("squash_eps", c.squash_eps, 1e-30, 1);
  visit.number("center_init", c.center_init, -100, 100);
  visit.flag("precondition_per_value_head", c.precondition_per_value_head);
  visit.number("ridge_min", c.ridge_min, 0, 0.999);
  visit.integer("cg_iterations", c.cg_iterations, 1, 1000);
  visit.integer("cg_iterations_decode", c.cg_iterations_decode, 1, 1000);
  visit.number("cg_tolerance", c.cg_tolerance, 0, 1);
  visit.number("cg_damping", c.cg_damping, 0, 1);
  visit.integer("conv_size", c.conv_size, 0, 8);
  visit.flag("conv_bias", c.conv_bias);
  visit.flag("conv_value", c.conv_value);
  visit.choice("key_activation", c.key_activation);
  visit.choice("value_activation", c.value_activation);
  visit.choice("q_norm", c.q_norm);
  visit.choice("k_norm", c.k_norm);
  visit.number("key_norm_eps", c.key_norm_eps, 0, 1);
  visit.choice("feature_map", c.feature_map);
  visit.flag("tie_feature_map", c.tie_feature_map);
  visit.number("rope_theta", c.rope_theta, 0, 1e12);
  visit.integer("writes_per_token", c.writes_per_token, 1, kMaxWrites);
  visit.flag("read_undecayed", c.read_undecayed);
  visit.flag("query_correction", c.query_correction);
  visit.number("scale", c.scale, 0, 1e6);
  visit.choice("d_skip", c.d_skip);
  visit.flag("output_norm", c.output_norm);
  visit.integer("norm_groups", c.norm_groups, 0, kMaxHeads);
  visit.choice("output_gate", c.output_gate);
  visit.flag("gate_first", c.gate_first);
  visit.integer("gate_rank", c.gate_rank, 0, kMaxRankWidth);
  visit.flag("gate_bias", c.gate_bias);
  visit.flag("fused_projection", c.fused_projection);
  visit.flag("rescale_output", c.rescale_output);
  visit.flag("projection_bias", c.projection_bias);
}

struct Reading {
  ConfigReader& reader;

  void integer(std::string_view key, std::int64_t& value, std::int64_t low, std::int64_t high) {
    value = reader.integer(key, value, low, high);
  }
  void number(std::string_view key, double& value, double low, double high) {
    value = reader.number(key, value, low, high);
  }
  void flag(std::string_view key, bool& value) { value = reader.flag(key, value); }
  template <class Choice>
  void choice(std::string_view key, Choice& value) {
    const std::size_t index =
        reader.choice(key, static_cast<std::size_t>(value), names_of<Choice>());
    value = static_cast<Choice>(index);
  }
};

struct Writing {
  Json& object;

  void integer(std::string_view key, std::int64_t value, std::int64_t, std::int64_t) {
    object[std::string(key)] = value;
  }
  void number(std::string_view key, double value, double, double) {
    object[std::string(key)] = number_to_json(value);
  }
  void flag(std::string_view key, bool value) { object[std::string(key)] = value; }
  template <class Choice>
  void choice(std::string_view key, Choice value) {
    object[std::string(key)] = names_of<Choice>()[static_cast<std::size_t>(value)];
  }
};

struct Naming {
  std::vector<std::string_view>& names;

  void integer(std::string_view key, std::int64_t, std::int64_t, std::int64_t) {
    names.push_back(key);
  }
  void number(std::string_view key, double, double, double) { names.push_back(key); }
  void flag(std::string_view key, bool) { names.push_back(key); }
  template <class Choice>
  void choice(std::string_view key, Choice) {
    names.push_back(key);
  }
};

template <class Choice>
Choice from_name(std::string_view text) {
  const Names names = names_of<Choice>();
  const auto found = std::find(names.begin(), names.end(), text);
  require(found != names.end(), "[mixer] the preset names the unknown choice {}", text);
  return static_cast<Choice>(found - names.begin());
}

}  // namespace

std::int64_t MixerConfig::feature_dim() const {
  if (feature_map == KeyMap::hedgehog) return 2 * key_dim;
  if (feature_map == KeyMap::dpfp) return 8 * key_dim;
  return key_dim;
}

const std::vector<std::string_view>& mixer_keys() {
  static const std::vector<std::string_view> keys = [] {
    std::vector<std::string_view> names;
    const MixerConfig config;
    visit_mixer(Naming{names}, config);
    return names;
  }();
  return keys;
}

void read_mixer(ConfigReader& reader, MixerConfig& config) { visit_mixer(Reading{reader}, config); }

Json write_mixer(const MixerConfig& config) {
  Json object = Json::object();
  visit_mixer(Writing{object}, config);
  return object;
}

void read_attention(ConfigReader& reader, AttentionConfig& config) {
  config.num_heads = reader.integer("num_heads", config.num_heads, 1, kMaxHeads);
  config.num_kv_heads = reader.integer("num_kv_heads", config.num_heads, 1, kMaxHeads);
  config.head_dim = reader.integer("head_dim", config.head_dim, 2, 1024);
  config.qkv_bias = reader.flag("qkv_bias", config.qkv_bias);
  config.output_bias = reader.flag("output_bias", config.output_bias);
  config.window = reader.integer("window_size", config.window, 0, std::int64_t{1} << 30);
  config.rope_theta = reader.number("rope_theta", config.rope_theta, 1, 1e12);
}

Json write_attention(const AttentionConfig& config) {
  return {{"num_heads", config.num_heads},     {"num_kv_heads", config.num_kv_heads},
          {"head_dim", config.head_dim},       {"qkv_bias", config.qkv_bias},
          {"output_bias", config.output_bias}, {"window_size", config.window},
          {"rope_theta", config.rope_theta}};
}

void apply_preset(MixerConfig& config, const recurrence::MixerPreset& preset) {
  MixerConfig result;
  result.num_heads = config.num_heads;
  result.num_key_heads = config.num_key_heads;
  result.num_value_heads = config.num_value_heads;
  result.key_dim = config.key_dim;
  result.value_dim = config.value_dim;
  const auto rank = [&](std::int64_t value) {
    return value == recurrence::kRankValueDim ? config.value_dim : value;
  };
  result.axes = preset.axes;
  result.decay_form = preset.decay_form;
  result.decay_normalizer = preset.decay_normalizer;
  result.decay_rank = rank(preset.decay_rank);
  result.decay_bias = preset.decay_bias;
  result.a_init_low = preset.a_init_low;
  result.gain_bias = preset.gain_bias;
  result.gain_per_key_head = preset.gain_per_key_head;
  result.precondition_per_value_head = preset.precondition_per_value_head;
  result.conv_size = preset.conv_size;
  result.conv_bias = preset.conv_bias;
  result.conv_value = preset.conv_value;
  result.key_activation = from_name<nn::Activation>(preset.key_activation);
  result.value_activation = from_name<nn::Activation>(preset.value_activation);
  result.q_norm = from_name<KeyNorm>(preset.q_norm);
  result.k_norm = from_name<KeyNorm>(preset.k_norm);
  result.feature_map = from_name<KeyMap>(preset.feature_map);
  result.rope_theta = preset.rope_theta;
  result.writes_per_token = preset.writes_per_token;
  result.read_undecayed = preset.read_undecayed;
  result.query_correction = preset.query_correction;
  result.scale = preset.scale;
  result.d_skip = from_name<Skip>(preset.d_skip);
  result.output_norm = preset.output_norm;
  result.output_gate = from_name<nn::Activation>(preset.output_gate);
  result.gate_first = preset.gate_first;
  result.gate_rank = rank(preset.gate_rank);
  result.gate_bias = preset.gate_bias;
  result.fused_projection = preset.fused_projection;
  result.rescale_output = preset.fused_projection;
  if (preset.fused_projection) result.norm_groups = 1;  // Mamba-2's norm, one group
  normalise(result);
  config = result;
}

namespace {

void normalise_decay(MixerConfig& c) {
  const MixerConfig d;
  const bool learned = c.axes.decay == DecayKind::scalar || c.axes.decay == DecayKind::channel;
  if (!learned) {
    c.decay_form = d.decay_form;
    c.decay_rank = d.decay_rank;
    c.decay_bias = d.decay_bias;
  }
  const bool softplus = learned && c.decay_form == DecayForm::softplus;
  const bool logsigmoid = learned && c.decay_form == DecayForm::logsigmoid;
  if (!learned || c.decay_form != DecayForm::lower_bound) c.decay_bound = d.decay_bound;
  if (!logsigmoid) {
    c.decay_normalizer = d.decay_normalizer;
    c.decay_clamp = d.decay_clamp;
  }
  if (!softplus) {
    c.dt_limit_low = d.dt_limit_low;
    c.dt_limit_high = d.dt_limit_high;
  }
  const bool steps =
      (learned && !logsigmoid) || c.axes.preconditioner != PreconditionerChoice::none;
  if (!steps) {
    c.a_init_low = d.a_init_low;
    c.a_init_high = d.a_init_high;
    c.a_init_one = d.a_init_one;
    c.dt_init_low = d.dt_init_low;
    c.dt_init_high = d.dt_init_high;
    c.dt_init_floor = d.dt_init_floor;
  }
  if (c.a_init_one) {
    c.a_init_low = d.a_init_low;
    c.a_init_high = d.a_init_high;
  }
}

void normalise_gain(MixerConfig& c) {
  const MixerConfig d;
  const GainKind gain = c.axes.gain;
  const bool logits = gain != GainKind::one && gain != GainKind::nlms &&
                      !(gain == GainKind::dt && c.axes.decay == DecayKind::scalar &&
                        c.decay_form == DecayForm::softplus);
  if (!logits) c.gain_bias = d.gain_bias;
  if (!logits || gain == GainKind::vector) c.gain_per_key_head = d.gain_per_key_head;
  if (!recurrence::is_key_norm(gain)) c.gain_eps = d.gain_eps;
  const PreconditionerChoice choice = c.axes.preconditioner;
  if (choice != PreconditionerChoice::atk) {
    c.squash_x = d.squash_x;
    c.squash_eps = d.squash_eps;
    c.center_init = d.center_init;
  }
  if (choice == PreconditionerChoice::none) {
    c.precondition_per_value_head = d.precondition_per_value_head;
  }
  const bool ridged = choice == PreconditionerChoice::atq || choice == PreconditionerChoice::gram ||
                      c.axes.solve == Solve::cg;
  if (!ridged) c.ridge_min = d.ridge_min;
}

}  // namespace

void normalise(MixerConfig& c) {
  const MixerConfig d;
  normalise_decay(c);
  normalise_gain(c);
  if (c.axes.solve == Solve::cg) {
    c.scale = d.scale;
  } else {
    c.cg_iterations = d.cg_iterations;
    c.cg_iterations_decode = d.cg_iterations_decode;
    c.cg_tolerance = d.cg_tolerance;
    c.cg_damping = d.cg_damping;
  }
  if (c.axes.solve != Solve::delta || c.axes.decay == DecayKind::none) {
    c.read_undecayed = d.read_undecayed;
  }
  if (c.conv_size == 0) {
    c.conv_bias = d.conv_bias;
    c.conv_value = d.conv_value;
  }
  if (c.q_norm == KeyNorm::none && c.k_norm == KeyNorm::none) c.key_norm_eps = d.key_norm_eps;
  if (c.feature_map == KeyMap::none || c.feature_map == KeyMap::relu ||
      c.feature_map == KeyMap::elu1 || c.feature_map == KeyMap::dpfp) {
    c.tie_feature_map = d.tie_feature_map;
  }
  if (c.output_gate == nn::Activation::none || c.fused_projection) {
    c.gate_rank = d.gate_rank;
    c.gate_bias = d.gate_bias;
  }
  if (c.output_gate == nn::Activation::none || !c.output_norm) c.gate_first = d.gate_first;
  if (!c.output_norm) c.norm_groups = d.norm_groups;
}

namespace {

void check_sizes(const MixerConfig& c, const std::string& where) {
  require(c.key_dim >= 1 && c.key_dim <= kMaxKeyDim && c.feature_dim() <= kMaxKeyDim,
          "[config] {}: the keys of the mixer have {} features (must be 1 to {})", where,
          c.feature_dim(), kMaxKeyDim);
  require(c.value_dim >= 1 && c.value_dim <= kMaxValueDim,
          "[config] {}: value_dim is {} (must be 1 to {})", where, c.value_dim, kMaxValueDim);
  for (const std::int64_t heads : {c.num_heads, c.num_key_heads, c.num_value_heads}) {
    require(heads >= 1 && heads <= kMaxHeads,
            "[config] {}: a number of heads is {} (must be 1 to {})", where, heads, kMaxHeads);
  }
  const bool grouped_values =
      c.num_key_heads == c.num_heads && c.num_value_heads % c.num_heads == 0;
  const bool grouped_queries =
      c.num_key_heads == c.num_value_heads && c.num_heads % c.num_key_heads == 0;
  require(
      grouped_values || grouped_queries,
      "[config] {}: {} query, {} key and {} value heads (key heads must be as many as query heads "
      "and value heads a multiple, or key and value heads as many and query heads a multiple)",
      where, c.num_heads, c.num_key_heads, c.num_value_heads);
  require(c.rope_theta == 0 || c.feature_dim() % 2 == 0,
          "[config] {}: rotary positions need an even number of features, got {}", where,
          c.feature_dim());
  require(c.norm_groups == 0 || (c.output_heads() * c.value_dim) % c.norm_groups == 0,
          "[config] {}: norm_groups is {} (must divide the {} output channels)", where,
          c.norm_groups, c.output_heads() * c.value_dim);
}

void check_fused(const MixerConfig& c, const std::string& where) {
  if (!c.fused_projection) return;
  const bool fits = c.axes.decay == DecayKind::scalar && c.decay_rank == 0 && !c.decay_bias &&
                    c.writes_per_token == 1 && c.conv_size > 0 && c.conv_value &&
                    c.key_activation == c.value_activation && c.num_heads == c.num_key_heads &&
                    c.output_gate != nn::Activation::none;
  require(
      fits,
      "[config] {}: fused_projection holds gate, value, key, query and one decay per head behind "
      "one convolution (set it to false for this mixer)",
      where);
}

}  // namespace

void check_mixer(const MixerConfig& c, const std::string& where) {
  check_sizes(c, where);
  check_fused(c, where);
  // Gram runs on the reference backend; whether that is the one is known when the model runs.
  const std::string reason = recurrence::refusal(c.axes, true);
  require(reason.empty(), "[config] {}: {}", where, reason);
  const bool learned = c.axes.decay == DecayKind::scalar || c.axes.decay == DecayKind::channel;
  require(!learned || c.decay_form != DecayForm::fixed,
          "[config] {}: decay_form fixed with a learned decay (set decay to fixed)", where);
  require(
      c.key_activation != nn::Activation::sigmoid && c.value_activation != nn::Activation::sigmoid,
      "[config] {}: sigmoid is an activation of gates (use none, silu, relu or elu1)", where);
  require(c.output_gate == nn::Activation::none || c.output_gate == nn::Activation::silu ||
              c.output_gate == nn::Activation::sigmoid,
          "[config] {}: output_gate must be none, silu or sigmoid", where);
  require(c.a_init_low < c.a_init_high && c.dt_init_low <= c.dt_init_high &&
              c.dt_limit_low < c.dt_limit_high,
          "[config] {}: a range is empty (a_init, dt_init or dt_limit: low must be below high)",
          where);
}

}  // namespace rankone::model
