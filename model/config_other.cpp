// The config.json of mamba2, llama, kla and of "rankone", the type for everything else.

#include <array>
#include <cmath>

#include "model/config_mixer.hpp"
#include "model/config_types.hpp"

namespace rankone::model {

using recurrence::GainKind;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// A pair of numbers such as dt_limit.
std::array<double, 2> read_pair(ConfigReader& reader, std::string_view key,
                                std::array<double, 2> otherwise) {
  const Json* value = reader.find(key);
  if (value == nullptr) return otherwise;
  reader.check(value->is_array() && value->size() == 2, key, "must be two numbers");
  bool valid = true;
  const std::array<double, 2> pair = {json_number((*value)[0], valid),
                                      json_number((*value)[1], valid)};
  reader.check(valid && pair[0] >= 0 && pair[0] < pair[1], key,
               "must be two numbers, the first below the second, neither negative");
  return pair;
}

MixerConfig read_mamba2_sizes(ConfigReader& reader, std::int64_t hidden) {
  MixerConfig sizes;
  const std::int64_t expand = reader.integer("expand", 2, 1, 64);
  sizes.value_dim = reader.integer("head_dim", 64, 1, 1024);
  sizes.key_dim = reader.integer("state_size", 128, 1, 256);
  sizes.num_heads = sizes.num_key_heads = reader.integer("n_groups", 1, 1, kMaxHeads);
  reader.check(expand * hidden % sizes.value_dim == 0, "head_dim",
               "must divide the {} inner channels", expand * hidden);
  const std::int64_t heads = expand * hidden / sizes.value_dim;
  sizes.num_value_heads = reader.integer("num_heads", heads, 1, kMaxHeads);
  reader.check(sizes.num_value_heads == heads, "num_heads",
               "must be expand * hidden_size / head_dim");
  return sizes;
}

void read_mamba2(ConfigReader& reader, ModelConfig& config) {
  for (const char* key : {"layer_norm_epsilon", "time_step_limit", "time_step_rank"}) {
    reader.check(!reader.has(key), key,
                 "this is the mamba2 of transformers, whose keys and tensors differ (convert it to "
                 "flash-linear-attention's)");
  }
  MixerConfig mixer = read_mamba2_sizes(reader, config.hidden_size);
  apply_preset(mixer, recurrence::preset("mamba2"));
  mixer.norm_groups = mixer.num_heads;
  mixer.conv_size = reader.integer("conv_kernel", 4, 1, 8);
  mixer.conv_bias = reader.flag("use_conv_bias", true);
  mixer.projection_bias = reader.flag("use_bias", false);
  mixer.output_norm = reader.flag("rmsnorm", true);
  mixer.gate_first = !reader.flag("norm_before_gate", false);
  mixer.rescale_output = reader.flag("rescale_prenorm_residual", true);
  if (reader.flag("D_has_hdim", false)) mixer.d_skip = Skip::channel;
  const auto a = read_pair(reader, "A_init_range", {1, 16});
  mixer.a_init_low = a[0];
  mixer.a_init_high = a[1];
  const auto limit = read_pair(reader, "dt_limit", {0, kInfinity});
  mixer.dt_limit_low = limit[0];
  mixer.dt_limit_high = limit[1];
  mixer.dt_init_low = reader.number("dt_min", 0.001, 1e-9, 1e3);
  mixer.dt_init_high = reader.number("dt_max", 0.1, 1e-9, 1e3);
  mixer.dt_init_floor = reader.number("dt_init_floor", 1e-4, 1e-9, 1e3);
  reader.unsupported("conv_init", "use initializer_range");
  reader.ignore({"chunk_size", "residual_in_fp32", "intermediate_size"});
  normalise(mixer);
  const std::int64_t layers = read_layer_count(reader, 48);
  LayerConfig layer;
  layer.mixer = mixer;
  config.layers.assign(static_cast<std::size_t>(layers), layer);
}

void write_mamba2(const ModelConfig& config, Json& root) {
  const MixerConfig& mixer = first_mixer(config);
  const std::int64_t inner = mixer.num_value_heads * mixer.value_dim;
  root["num_hidden_layers"] = config.layers.size();
  root["expand"] = inner / config.hidden_size;
  root["head_dim"] = mixer.value_dim;
  root["num_heads"] = mixer.num_value_heads;
  root["state_size"] = mixer.key_dim;
  root["n_groups"] = mixer.num_heads;
  root["conv_kernel"] = mixer.conv_size;
  root["conv_init"] = nullptr;
  root["use_conv_bias"] = mixer.conv_bias;
  root["use_bias"] = mixer.projection_bias;
  root["rmsnorm"] = mixer.output_norm;
  root["norm_before_gate"] = !mixer.gate_first;
  root["rescale_prenorm_residual"] = mixer.rescale_output;
  root["D_has_hdim"] = mixer.d_skip == Skip::channel;
  root["A_init_range"] = {mixer.a_init_low, mixer.a_init_high};
  root["dt_limit"] = {number_to_json(mixer.dt_limit_low), number_to_json(mixer.dt_limit_high)};
  root["dt_min"] = mixer.dt_init_low;
  root["dt_max"] = mixer.dt_init_high;
  root["dt_init_floor"] = mixer.dt_init_floor;
  root["hidden_act"] = "silu";
  root["residual_in_fp32"] = true;
  root["chunk_size"] = 256;
}

double read_rope_theta(ConfigReader& reader) {
  double theta = reader.number("rope_theta", 10000.0, 1, 1e12);
  if (const Json* parameters = reader.find("rope_parameters")) {
    ConfigReader inner(*parameters, reader.where(), "rope_parameters.");
    theta = inner.number("rope_theta", theta, 1, 1e12);
    inner.check(inner.text("rope_type", "default") == "default", "rope_type",
                "not supported (must be default)");
  }
  if (const Json* scaling = reader.find("rope_scaling")) {
    ConfigReader inner(*scaling, reader.where(), "rope_scaling.");
    const std::string type = inner.text("rope_type", inner.text("type", "default"));
    inner.check(type == "default", "rope_type", "not supported (must be default)");
  }
  return theta;
}

void read_llama(ConfigReader& reader, ModelConfig& config) {
  AttentionConfig attention;
  attention.num_heads = reader.integer("num_attention_heads", 32, 1, kMaxHeads);
  attention.num_kv_heads = reader.integer("num_key_value_heads", attention.num_heads, 1, kMaxHeads);
  reader.check(reader.has("head_dim") || config.hidden_size % attention.num_heads == 0,
               "num_attention_heads", "must divide hidden_size, {}", config.hidden_size);
  attention.head_dim =
      reader.integer("head_dim", config.hidden_size / attention.num_heads, 2, 1024);
  attention.qkv_bias = attention.output_bias = reader.flag("attention_bias", false);
  attention.rope_theta = read_rope_theta(reader);
  config.norm_eps = reader.number("rms_norm_eps", 1e-6, 0, 1);
  reader.unsupported("pretraining_tp", "tensor-parallel arithmetic", 1);
  reader.unsupported("partial_rotary_factor", "rotary positions cover whole heads", 1.0);
  reader.ignore({"attention_dropout"});
  LayerConfig layer;
  layer.attention = attention;
  layer.mlp_bias = reader.flag("mlp_bias", false);
  layer.intermediate_size = reader.integer("intermediate_size", 11008, 1, std::int64_t{1} << 20);
  config.layers.assign(static_cast<std::size_t>(read_layer_count(reader, 32)), layer);
}

void write_llama(const ModelConfig& config, Json& root) {
  const LayerConfig& layer = config.layers.front();
  const AttentionConfig attention = layer.attention.value_or(AttentionConfig());
  root["num_hidden_layers"] = config.layers.size();
  root["num_attention_heads"] = attention.num_heads;
  root["num_key_value_heads"] = attention.num_kv_heads;
  root["head_dim"] = attention.head_dim;
  root["attention_bias"] = attention.qkv_bias;
  root["attention_dropout"] = 0.0;
  root["mlp_bias"] = layer.mlp_bias;
  root["intermediate_size"] = layer.intermediate_size;
  root["hidden_act"] = "silu";
  root.erase("norm_eps");
  root["rms_norm_eps"] = config.norm_eps;
  root["rope_theta"] = attention.rope_theta;
  root["rope_parameters"] = {{"rope_theta", attention.rope_theta}, {"rope_type", "default"}};
}

// KLA: the keys of gated_deltanet, and in `mixer` those that make it KLA.
void read_kla(ConfigReader& reader, ModelConfig& config) {
  MixerConfig mixer = read_gated_deltanet(reader);
  mixer.axes.gain = GainKind::kaczmarz;
  mixer.gain_bias = true;
  mixer.k_norm = KeyNorm::none;
  fill_layers(reader, config, mixer);
}

void write_kla(const ModelConfig& config, Json& root) {
  const MixerConfig& mixer = first_mixer(config);
  write_gated_deltanet(mixer, root);
  const Json all = write_mixer(mixer);
  Json& keys = root["mixer"] = Json::object();
  for (const char* key :
       {"gain", "time_factor", "gain_eps", "gain_bias", "q_norm", "k_norm", "key_norm_eps"}) {
    keys[key] = all[key];
  }
  // Whatever its tensors need that gated_deltanet does not have makes the config another type.
  if (mixer.axes.gain != GainKind::kaczmarz || !mixer.gain_bias) keys["gain"] = "kaczmarz";
  write_layers(config, root);
}

void read_rankone(ConfigReader& reader, ModelConfig& config) {
  const Json* layers = reader.find("layers");
  reader.check(layers != nullptr && layers->is_array() && !layers->empty(), "layers",
               "must be a list of layers");
  reader.check(layers->size() <= static_cast<std::size_t>(kMaxLayers), "layers",
               "must be at most {}", kMaxLayers);
  for (std::size_t i = 0; i < layers->size(); ++i) {
    const std::string name = "layers[" + std::to_string(i) + "].";
    ConfigReader inner((*layers)[i], reader.where(), name);
    const std::int64_t repeat = inner.integer("repeat", 1, 1, kMaxLayers);
    LayerConfig layer;
    if (const Json* object = inner.find("mixer")) {
      ConfigReader mixer_reader(*object, reader.where(), name + "mixer.");
      MixerConfig mixer;
      read_mixer(mixer_reader, mixer);
      mixer_reader.refuse_unknown();
      normalise(mixer);
      layer.mixer = mixer;
    }
    if (const Json* object = inner.find("attention")) {
      ConfigReader attention_reader(*object, reader.where(), name + "attention.");
      AttentionConfig attention;
      read_attention(attention_reader, attention);
      attention_reader.refuse_unknown();
      layer.attention = attention;
    }
    inner.check(layer.mixer.has_value() != layer.attention.has_value(), "mixer",
                "a layer has a mixer or an attention, one of them");
    layer.intermediate_size = inner.integer("intermediate_size", 0, 0, std::int64_t{1} << 20);
    layer.mlp_bias = inner.flag("mlp_bias", false);
    inner.refuse_unknown();
    reader.check(static_cast<std::int64_t>(config.layers.size()) + repeat <= kMaxLayers, "layers",
                 "must be at most {} in all", kMaxLayers);
    config.layers.insert(config.layers.end(), static_cast<std::size_t>(repeat), layer);
  }
}

void write_rankone(const ModelConfig& config, Json& root) {
  Json& layers = root["layers"] = Json::array();
  for (std::size_t i = 0; i < config.layers.size();) {
    const LayerConfig& layer = config.layers[i];
    std::size_t end = i + 1;
    while (end < config.layers.size() && config.layers[end] == layer) ++end;
    Json entry = Json::object();
    entry["repeat"] = end - i;
    if (layer.mixer) entry["mixer"] = write_mixer(*layer.mixer);
    if (layer.attention) entry["attention"] = write_attention(*layer.attention);
    entry["intermediate_size"] = layer.intermediate_size;
    entry["mlp_bias"] = layer.mlp_bias;
    layers.push_back(std::move(entry));
    i = end;
  }
}

}  // namespace

std::span<const ModelType> other_types() {
  static const std::array<ModelType, 4> types = {{
      {"mamba2", "Mamba2ForCausalLM", Initializer::normal, read_mamba2, write_mamba2},
      {"llama", "LlamaForCausalLM", Initializer::normal, read_llama, write_llama},
      {"kla", "", Initializer::kaiming_uniform, read_kla, write_kla},
      {"rankone", "", Initializer::normal, read_rankone, write_rankone},
  }};
  return types;
}

}  // namespace rankone::model
