// The config.json of flash-linear-attention's model families (docs/formats.md).

#include <array>
#include <cmath>

#include "model/config_mixer.hpp"
#include "model/config_types.hpp"

namespace rankone::model {

using recurrence::DecayForm;
using recurrence::GainKind;
using recurrence::PreconditionerChoice;

namespace {

constexpr std::int64_t kLargestWidth = std::int64_t{1} << 20;

MixerConfig from_preset(std::string_view name, const MixerConfig& sizes) {
  MixerConfig mixer = sizes;
  apply_preset(mixer, recurrence::preset(name));
  return mixer;
}

// int(size * factor), which must not be cut.
std::int64_t scaled(ConfigReader& reader, std::string_view key, double otherwise,
                    std::int64_t size) {
  const double factor = reader.number(key, otherwise, 1e-3, 1e3);
  const double width = static_cast<double>(size) * factor;
  reader.check(std::abs(width - std::round(width)) < 1e-6 * width && width >= 1 &&
                   width <= static_cast<double>(kLargestWidth),
               key, "times {} must be a whole number up to {}", size, kLargestWidth);
  return std::llround(width);
}

// num_heads, num_v_heads, head_dim and expand_v: the sizes of GDN, KDA and their kin.
MixerConfig read_head_sizes(ConfigReader& reader, std::int64_t heads, std::int64_t head_dim,
                            double expand_v) {
  MixerConfig sizes;
  sizes.num_heads = sizes.num_key_heads = reader.integer("num_heads", heads, 1, kMaxHeads);
  sizes.num_value_heads = reader.integer("num_v_heads", sizes.num_heads, 1, kMaxHeads);
  sizes.key_dim = reader.integer("head_dim", head_dim, 1, 256);
  sizes.value_dim = scaled(reader, "expand_v", expand_v, sizes.key_dim);
  return sizes;
}

void write_head_sizes(const MixerConfig& mixer, Json& root) {
  root["num_heads"] = mixer.num_heads;
  root["num_v_heads"] = mixer.num_value_heads;
  root["head_dim"] = mixer.key_dim;
  root["expand_v"] = factor_of(mixer.value_dim, mixer.key_dim);
}

// Widths as factors of the hidden size, shared out to the heads: DeltaNet, GLA, linear attention.
MixerConfig read_expanded_sizes(ConfigReader& reader, std::int64_t hidden, std::int64_t heads,
                                double expand_k, double expand_v) {
  MixerConfig sizes;
  sizes.num_heads = reader.integer("num_heads", heads, 1, kMaxHeads);
  sizes.num_key_heads = reader.integer("num_kv_heads", sizes.num_heads, 1, kMaxHeads);
  sizes.num_value_heads = sizes.num_key_heads;
  const std::int64_t keys = scaled(reader, "expand_k", expand_k, hidden);
  const std::int64_t values = scaled(reader, "expand_v", expand_v, hidden);
  reader.check(keys % sizes.num_heads == 0 && values % sizes.num_heads == 0, "num_heads",
               "must divide the {} key and {} value channels", keys, values);
  sizes.key_dim = keys / sizes.num_heads;
  sizes.value_dim = values / sizes.num_heads;
  return sizes;
}

void write_expanded_sizes(const ModelConfig& config, const MixerConfig& mixer, Json& root) {
  root["num_heads"] = mixer.num_heads;
  root["expand_k"] = factor_of(mixer.num_heads * mixer.key_dim, config.hidden_size);
  root["expand_v"] = factor_of(mixer.num_heads * mixer.value_dim, config.hidden_size);
}

void read_short_conv(ConfigReader& reader, MixerConfig& mixer, bool otherwise = true) {
  const std::int64_t size = reader.integer("conv_size", 4, 1, 8);
  mixer.conv_size = reader.flag("use_short_conv", otherwise) ? size : 0;
}

void write_short_conv(const MixerConfig& mixer, Json& root) {
  root["use_short_conv"] = mixer.conv_size > 0;
  root["conv_size"] = mixer.conv_size > 0 ? mixer.conv_size : 4;
}

void read_negative(ConfigReader& reader, MixerConfig& mixer) {
  if (reader.flag("allow_neg_eigval", false)) mixer.axes.gain = GainKind::sigmoid2;
}

void write_negative(const MixerConfig& mixer, Json& root) {
  root["allow_neg_eigval"] = mixer.axes.gain == GainKind::sigmoid2;
}

void read_gated_deltanet_type(ConfigReader& reader, ModelConfig& config) {
  fill_layers(reader, config, read_gated_deltanet(reader), 21);
}

void write_gated_deltanet_type(const ModelConfig& config, Json& root) {
  write_gated_deltanet(first_mixer(config), root);
  write_layers(config, root);
}

void read_delta_net(ConfigReader& reader, ModelConfig& config) {
  MixerConfig mixer =
      from_preset("deltanet", read_expanded_sizes(reader, config.hidden_size, 16, 1.0, 1.0));
  read_short_conv(reader, mixer);
  reader.check(mixer.num_key_heads == mixer.num_heads, "num_kv_heads", "not supported here");
  constexpr std::array<std::string_view, 4> kActivationNames = {"silu", "relu", "elu", "identity"};
  constexpr std::array<nn::Activation, 4> kActivations = {
      nn::Activation::silu, nn::Activation::relu, nn::Activation::elu1, nn::Activation::none};
  mixer.key_activation = kActivations[reader.choice("qk_activation", 0, kActivationNames)];
  constexpr std::array<std::string_view, 2> kNorms = {"l2", "sum"};
  if (reader.choice("qk_norm", 0, kNorms) == 1) {
    mixer.q_norm = mixer.k_norm = KeyNorm::sum;
    mixer.key_norm_eps = 0;
  }
  if (reader.flag("use_gate", false)) mixer.output_gate = nn::Activation::silu;
  read_negative(reader, mixer);
  if (!reader.flag("use_beta", true)) {
    reader.check(mixer.axes.gain == GainKind::sigmoid, "use_beta",
                 "a constant gain can not be doubled (allow_neg_eigval)");
    mixer.axes.gain = GainKind::one;
  }
  reader.ignore({"use_output_norm"});
  fill_layers(reader, config, mixer);
}

void write_delta_net(const ModelConfig& config, Json& root) {
  const MixerConfig& mixer = first_mixer(config);
  write_expanded_sizes(config, mixer, root);
  write_short_conv(mixer, root);
  const bool relu = mixer.key_activation == nn::Activation::relu;
  const bool elu = mixer.key_activation == nn::Activation::elu1;
  const bool silu = mixer.key_activation == nn::Activation::silu;
  root["qk_activation"] = silu ? "silu" : relu ? "relu" : elu ? "elu" : "identity";
  root["qk_norm"] = mixer.q_norm == KeyNorm::sum ? "sum" : "l2";
  root["use_gate"] = mixer.output_gate != nn::Activation::none;
  root["use_beta"] = mixer.axes.gain != GainKind::one;
  root["use_output_norm"] = true;
  write_negative(mixer, root);
  write_layers(config, root);
}

void read_gla(ConfigReader& reader, ModelConfig& config) {
  MixerConfig mixer =
      from_preset("gla", read_expanded_sizes(reader, config.hidden_size, 4, 0.5, 1.0));
  read_short_conv(reader, mixer, false);
  if (mixer.conv_size > 0) mixer.key_activation = mixer.value_activation = nn::Activation::silu;
  constexpr std::array<std::string_view, 1> kMaps = {"relu"};
  if (reader.has("feature_map")) {
    reader.choice("feature_map", 0, kMaps);
    mixer.feature_map = KeyMap::relu;
  }
  if (!reader.flag("use_output_gate", true)) mixer.output_gate = nn::Activation::none;
  mixer.decay_clamp = reader.number("clamp_min", mixer.decay_clamp, -1e30, 0);
  reader.check(reader.flag("elementwise_affine", true), "elementwise_affine",
               "a norm without weights is not supported");
  reader.ignore({"use_gk", "use_gv"});
  fill_layers(reader, config, mixer);
}

void write_gla(const ModelConfig& config, Json& root) {
  const MixerConfig& mixer = first_mixer(config);
  write_expanded_sizes(config, mixer, root);
  root["num_kv_heads"] = mixer.num_key_heads;
  write_short_conv(mixer, root);
  root["feature_map"] = mixer.feature_map == KeyMap::relu ? Json("relu") : Json();
  root["use_output_gate"] = mixer.output_gate != nn::Activation::none;
  root["clamp_min"] = std::isfinite(mixer.decay_clamp) ? Json(mixer.decay_clamp) : Json();
  root["elementwise_affine"] = true;
  root["use_gk"] = true;
  root["use_gv"] = false;
  write_layers(config, root);
}

MixerConfig read_kda_mixer(ConfigReader& reader, std::string_view preset) {
  MixerConfig mixer = from_preset(preset, read_head_sizes(reader, 16, 128, 1.0));
  read_short_conv(reader, mixer);
  read_negative(reader, mixer);
  const bool bounded = reader.has("lower_bound");
  mixer.a_init_one = reader.flag("safe_gate", false);
  reader.check(bounded || !mixer.a_init_one, "safe_gate", "needs lower_bound");
  if (bounded) {
    mixer.decay_form = DecayForm::lower_bound;
    mixer.decay_bound = reader.number("lower_bound", -5, -5, -1e-9);
  }
  return mixer;
}

void write_kda_mixer(const MixerConfig& mixer, Json& root) {
  write_head_sizes(mixer, root);
  write_short_conv(mixer, root);
  write_negative(mixer, root);
  root["safe_gate"] = mixer.a_init_one;
  root["lower_bound"] =
      mixer.decay_form == DecayForm::lower_bound ? Json(mixer.decay_bound) : Json();
}

void read_kda(ConfigReader& reader, ModelConfig& config) {
  fill_layers(reader, config, read_kda_mixer(reader, "kda"));
}

void write_kda(const ModelConfig& config, Json& root) {
  write_kda_mixer(first_mixer(config), root);
  write_layers(config, root);
}

void read_squash(ConfigReader& reader, MixerConfig& mixer, double a_init_low) {
  mixer.squash_x = reader.number("squash_x", 1.5, 1, 2);
  mixer.squash_eps = reader.number("squash_eps", 1e-6, 1e-30, 1);
  mixer.center_init = reader.number("log_atk_scale_init", -0.2, -100, 100);
  mixer.a_init_low = reader.number("a_log_init_lower", a_init_low, 0, 15);
}

void write_squash(const MixerConfig& mixer, Json& root) {
  root["squash_x"] = mixer.squash_x;
  root["squash_eps"] = mixer.squash_eps;
  root["log_atk_scale_init"] = mixer.center_init;
  root["a_log_init_lower"] = mixer.a_init_low;
}

void read_precond_gated_deltanet(ConfigReader& reader, ModelConfig& config) {
  MixerConfig mixer = read_gated_deltanet(reader);
  mixer.axes.preconditioner = PreconditionerChoice::atk;
  read_squash(reader, mixer, 0);
  fill_layers(reader, config, mixer, 21);
}

void write_precond_gated_deltanet(const ModelConfig& config, Json& root) {
  write_gated_deltanet(first_mixer(config), root);
  write_squash(first_mixer(config), root);
  write_layers(config, root);
}

void read_precond_kda(ConfigReader& reader, ModelConfig& config) {
  MixerConfig mixer = read_kda_mixer(reader, "pkda");
  read_squash(reader, mixer, 1);
  fill_layers(reader, config, mixer);
}

void write_precond_kda(const ModelConfig& config, Json& root) {
  write_kda_mixer(first_mixer(config), root);
  write_squash(first_mixer(config), root);
  write_layers(config, root);
}

void read_mesa_net(ConfigReader& reader, ModelConfig& config) {
  MixerConfig sizes;
  sizes.num_heads = reader.integer("num_heads", 16, 1, kMaxHeads);
  sizes.num_key_heads = sizes.num_value_heads = sizes.num_heads;
  sizes.key_dim = sizes.value_dim = reader.integer("head_dim", 128, 1, 256);
  MixerConfig mixer = from_preset("mesa", sizes);
  mixer.conv_size = reader.integer("conv_size", 4, 1, 8);
  if (reader.flag("use_output_gate", false)) mixer.output_gate = nn::Activation::silu;
  mixer.ridge_min = reader.number("lambda_lower_bound", 0.25, 0, 0.999);
  mixer.cg_damping = 1e-5;  // in its kernels, not in its configuration
  mixer.cg_iterations = reader.integer("max_cg_step_training", 30, 1, 1000);
  mixer.cg_iterations_decode = reader.integer("max_cg_step_decoding", 30, 1, 1000);
  reader.ignore({"use_short_conv"});
  fill_layers(reader, config, mixer);
}

void write_mesa_net(const ModelConfig& config, Json& root) {
  const MixerConfig& mixer = first_mixer(config);
  root["num_heads"] = mixer.num_heads;
  root["head_dim"] = mixer.key_dim;
  write_short_conv(mixer, root);
  root["use_output_gate"] = mixer.output_gate != nn::Activation::none;
  root["lambda_lower_bound"] = mixer.ridge_min;
  root["max_cg_step_training"] = mixer.cg_iterations;
  root["max_cg_step_decoding"] = mixer.cg_iterations_decode;
  write_layers(config, root);
}

constexpr std::array<std::string_view, 7> kLinearMaps = {
    "identity", "relu", "elu", "elementwise_product", "hedgehog", "t2r", "dpfp"};

void read_linear_attn(ConfigReader& reader, ModelConfig& config) {
  MixerConfig mixer =
      from_preset("linear", read_expanded_sizes(reader, config.hidden_size, 4, 1.0, 1.0));
  const std::size_t map = reader.choice("feature_map", 3, kLinearMaps);
  mixer.feature_map = static_cast<KeyMap>(map);
  mixer.tie_feature_map = reader.flag("tie_feature_map_qk", false);
  if (reader.flag("norm_q", false)) mixer.q_norm = KeyNorm::sum;
  if (reader.flag("norm_k", false)) mixer.k_norm = KeyNorm::sum;
  mixer.key_norm_eps = 1e-4;
  reader.unsupported("norm_feature_map", "the output normaliser keeps a second state");
  reader.check(reader.flag("elementwise_affine", true), "elementwise_affine",
               "a norm without weights is not supported");
  fill_layers(reader, config, mixer);
}

void write_linear_attn(const ModelConfig& config, Json& root) {
  const MixerConfig& mixer = first_mixer(config);
  write_expanded_sizes(config, mixer, root);
  root["num_kv_heads"] = mixer.num_key_heads;
  root["attn_mode"] = "fused_chunk";
  root["feature_map"] = kLinearMaps[static_cast<std::size_t>(mixer.feature_map)];
  root["tie_feature_map_qk"] = mixer.tie_feature_map;
  root["norm_q"] = mixer.q_norm == KeyNorm::sum;
  root["norm_k"] = mixer.k_norm == KeyNorm::sum;
  root["norm_feature_map"] = false;
  root["elementwise_affine"] = true;
  write_layers(config, root);
}

}  // namespace

MixerConfig read_gated_deltanet(ConfigReader& reader) {
  MixerConfig mixer = from_preset("gdn", read_head_sizes(reader, 6, 256, 2.0));
  read_short_conv(reader, mixer);
  read_negative(reader, mixer);
  if (!reader.flag("use_gate", true)) mixer.output_gate = nn::Activation::none;
  return mixer;
}

void write_gated_deltanet(const MixerConfig& mixer, Json& root) {
  write_head_sizes(mixer, root);
  write_short_conv(mixer, root);
  write_negative(mixer, root);
  root["use_gate"] = mixer.output_gate != nn::Activation::none;
}

std::span<const ModelType> fla_types() {
  constexpr Initializer normal = Initializer::normal;
  static const std::array<ModelType, 8> types = {{
      {"gated_deltanet", "GatedDeltaNetForCausalLM", normal, read_gated_deltanet_type,
       write_gated_deltanet_type},
      {"delta_net", "DeltaNetForCausalLM", normal, read_delta_net, write_delta_net},
      {"gla", "GLAForCausalLM", normal, read_gla, write_gla},
      {"kda", "KDAForCausalLM", normal, read_kda, write_kda},
      {"precond_gated_deltanet", "PrecondGatedDeltaNetForCausalLM", normal,
       read_precond_gated_deltanet, write_precond_gated_deltanet},
      {"precond_kda", "PrecondKDAForCausalLM", normal, read_precond_kda, write_precond_kda},
      {"mesa_net", "MesaNetForCausalLM", normal, read_mesa_net, write_mesa_net},
      {"linear_attn", "LinearAttentionForCausalLM", normal, read_linear_attn, write_linear_attn},
  }};
  return types;
}

}  // namespace rankone::model
