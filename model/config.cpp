#include "model/config.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "core/nearest.hpp"
#include "core/text.hpp"
#include "model/config_mixer.hpp"
#include "model/config_types.hpp"

namespace rankone::model {
namespace {

constexpr std::int64_t kMaxWidth = std::int64_t{1} << 20;
constexpr std::array<std::string_view, 2> kInitializers = {"normal", "kaiming_uniform"};

template <class Visit>
void for_each_type(Visit&& visit) {
  for (const ModelType& type : fla_types()) visit(type);
  for (const ModelType& type : other_types()) visit(type);
}

const ModelType& require_type(std::string_view name, std::string_view where) {
  if (const ModelType* type = find_type(name)) return *type;
  std::vector<std::string_view> names;
  std::string all;
  for_each_type([&](const ModelType& type) {
    names.push_back(type.name);
    all.append(all.empty() ? "" : ", ").append(type.name);
  });
  fail(Status::invalid_argument,
       "[config] {}: model_type {} is not supported (one of {}; nearest: {})", where,
       printable(name), all, nearest(name, names));
}

void read_common(ConfigReader& reader, ModelConfig& config, Initializer initializer) {
  config.hidden_size = reader.integer("hidden_size", 2048, 1, kMaxHidden);
  config.vocab_size = reader.integer("vocab_size", 32000, 1, kMaxVocabulary);
  config.norm_eps = reader.number("norm_eps", config.model_type == "mamba2" ? 1e-5 : 1e-6, 0, 1);
  config.tie_word_embeddings = reader.flag("tie_word_embeddings", false);
  config.initializer_range = reader.number("initializer_range", 0.02, 0, 10);
  config.initializer = static_cast<Initializer>(
      reader.choice("initializer", static_cast<std::size_t>(initializer), kInitializers));
  const auto token = [&](std::string_view key, std::optional<std::int64_t> otherwise) {
    return reader.optional_integer(key, otherwise, 0, kMaxVocabulary - 1);
  };
  config.bos_token_id = token("bos_token_id", 1);
  // Some files list several; the first ends a text.
  const Json* eos = reader.find("eos_token_id");
  if (eos != nullptr && eos->is_array()) {
    reader.check(!eos->empty() && eos->front().is_number_integer() &&
                     eos->front().get<std::int64_t>() >= 0 &&
                     eos->front().get<std::int64_t>() < kMaxVocabulary,
                 "eos_token_id", "must be token numbers");
    config.eos_token_id = eos->front().get<std::int64_t>();
  } else {
    config.eos_token_id = token("eos_token_id", 2);
  }
  config.pad_token_id = token("pad_token_id", std::nullopt);
  config.max_position_embeddings =
      reader.integer("max_position_embeddings", 2048, 1, std::int64_t{1} << 40);
  constexpr std::array<std::string_view, 2> kActivations = {"swish", "silu"};
  reader.choice("hidden_act", 0, kActivations);
  reader.unsupported("attnres_block_size", "attention over block summaries");
  reader.ignore({"model_type", "architectures", "use_cache", "attn_mode", "fuse_norm",
                 "fuse_swiglu", "fuse_cross_entropy", "fuse_linear_cross_entropy", "use_l2warp",
                 "torch_dtype", "dtype", "transformers_version"});
}

void write_token(Json& root, const char* key, std::optional<std::int64_t> token) {
  root[key] = token ? Json(*token) : Json();
}

// The config.json of `type`, which may hold less than the config: see can_express.
Json format_as(const ModelType& type, const ModelConfig& config) {
  Json root = Json::object();
  root["model_type"] = type.name;
  if (!type.architecture.empty()) root["architectures"] = {type.architecture};
  root["hidden_size"] = config.hidden_size;
  root["vocab_size"] = config.vocab_size;
  root["norm_eps"] = config.norm_eps;
  root["tie_word_embeddings"] = config.tie_word_embeddings;
  root["initializer_range"] = config.initializer_range;
  if (config.initializer != type.initializer) {
    root["initializer"] = kInitializers[static_cast<std::size_t>(config.initializer)];
  }
  write_token(root, "bos_token_id", config.bos_token_id);
  write_token(root, "eos_token_id", config.eos_token_id);
  write_token(root, "pad_token_id", config.pad_token_id);
  root["max_position_embeddings"] = config.max_position_embeddings;
  root["hidden_act"] = "swish";
  root["use_cache"] = true;
  type.write(config, root);
  return root;
}

// The config as its declared type says it.
ModelConfig read_declared(const Json& root, std::string_view where, bool strict);

// Whether what the type writes reads back as the same model.
bool can_express(const ModelType& type, ModelConfig config) {
  config.model_type = std::string(type.name);
  try {
    return read_declared(format_as(type, config), "configuration", false) == config;
  } catch (const Error&) {
    return false;
  }
}

// The type asked for where it can express the config, else the first that can; "rankone" always
// can.
void choose_type(ModelConfig& config) {
  if (can_express(*find_type(config.model_type), config)) return;
  bool chosen = false;
  for_each_type([&](const ModelType& type) {
    if (chosen || !can_express(type, config)) return;
    config.model_type = std::string(type.name);
    chosen = true;
  });
  if (!chosen) config.model_type = "rankone";
}

void apply_mixer_keys(const Json& object, ModelConfig& config, const std::string& where) {
  for (LayerConfig& layer : config.layers) {
    if (!layer.mixer) continue;
    ConfigReader reader(object, where, "mixer.");
    read_mixer(reader, *layer.mixer);
    reader.refuse_unknown();
    normalise(*layer.mixer);
  }
}

ModelConfig read_declared(const Json& root, std::string_view where, bool strict) {
  const std::string place(where);
  ConfigReader reader(root, place);
  reader.check(reader.has("model_type"), "model_type", "is missing");
  const ModelType& type = require_type(reader.text("model_type", ""), where);
  ModelConfig config;
  config.model_type = std::string(type.name);
  read_common(reader, config, type.initializer);
  type.read(reader, config);
  if (const Json* mixer = reader.find("mixer")) apply_mixer_keys(*mixer, config, place);
  if (strict || type.name == "rankone") reader.refuse_unknown();
  check_config(config, where);
  return config;
}

}  // namespace

const ModelType* find_type(std::string_view name) {
  const ModelType* found = nullptr;
  for_each_type([&](const ModelType& type) {
    if (type.name == name) found = &type;
  });
  return found;
}

ModelConfig parse_config(std::string_view text, std::string_view where, bool strict) {
  return config_from_json(parse_json(text, where), where, strict);
}

ModelConfig config_from_json(const Json& root, std::string_view where, bool strict) {
  ModelConfig config = read_declared(root, where, strict);
  if (root.contains("mixer")) choose_type(config);
  return config;
}

Json format_config(const ModelConfig& config) {
  const ModelType* type = find_type(config.model_type);
  require(type != nullptr, "[config] unknown model type {}", config.model_type);
  return format_as(*type, config);
}

void check_config(const ModelConfig& config, std::string_view where) {
  const std::string place(where);
  require(config.hidden_size >= 1 && config.hidden_size <= kMaxHidden,
          "[config] {}: hidden_size is {} (must be 1 to {})", place, config.hidden_size,
          kMaxHidden);
  require(config.vocab_size >= 1 && config.vocab_size <= kMaxVocabulary,
          "[config] {}: vocab_size is {} (must be 1 to {})", place, config.vocab_size,
          kMaxVocabulary);
  const auto layers = static_cast<std::int64_t>(config.layers.size());
  require(layers >= 1 && layers <= kMaxLayers, "[config] {}: {} layers (must be 1 to {})", place,
          layers, kMaxLayers);
  for (const LayerConfig& layer : config.layers) {
    require(layer.mixer.has_value() != layer.attention.has_value(),
            "[config] {}: a layer has a mixer or an attention, one of them", place);
    if (layer.mixer) check_mixer(*layer.mixer, place);
    require(layer.intermediate_size >= 0 && layer.intermediate_size <= kMaxWidth,
            "[config] {}: intermediate_size is {} (must be 0 to {})", place,
            layer.intermediate_size, kMaxWidth);
    if (!layer.attention) continue;
    const AttentionConfig& attention = *layer.attention;
    require(attention.num_heads >= 1 && attention.num_kv_heads >= 1 &&
                attention.num_heads % attention.num_kv_heads == 0,
            "[config] {}: {} attention heads and {} key heads (the second must divide the first)",
            place, attention.num_heads, attention.num_kv_heads);
    require(attention.head_dim >= 2 && attention.head_dim % 2 == 0 && attention.head_dim <= 1024,
            "[config] {}: the attention head_dim is {} (must be even, 2 to 1024)", place,
            attention.head_dim);
  }
}

Json apply_mixer(const Json& root, std::string_view preset, std::string_view where) {
  const recurrence::MixerPreset& chosen = recurrence::preset(preset);
  ModelConfig config = config_from_json(root, where);
  for (LayerConfig& layer : config.layers) {
    if (layer.mixer) apply_preset(*layer.mixer, chosen);
  }
  check_config(config, where);
  choose_type(config);
  return format_config(config);
}

// ---- Shared by the types -----------------------------------------------------------------------

std::int64_t read_layer_count(ConfigReader& reader, std::int64_t otherwise) {
  return reader.integer("num_hidden_layers", otherwise, 1, kMaxLayers);
}

std::int64_t read_intermediate_size(ConfigReader& reader, std::int64_t hidden_size) {
  const std::int64_t ratio = reader.integer("hidden_ratio", 4, 1, 64);
  const auto wanted =
      static_cast<std::int64_t>(static_cast<double>(hidden_size * ratio) * 2.0 / 3.0);
  return reader.integer("intermediate_size", (wanted + 255) / 256 * 256, 1, kMaxWidth);
}

namespace {

// One entry of `attn`: which layers use softmax attention, and of which kind.
void read_hybrid(const Json& object, ModelConfig& config, const std::string& where) {
  ConfigReader reader(object, where, "attn.");
  AttentionConfig attention;
  attention.num_heads = reader.integer("num_heads", 32, 1, kMaxHeads);
  attention.num_kv_heads = reader.integer("num_kv_heads", attention.num_heads, 1, kMaxHeads);
  reader.check(config.hidden_size % attention.num_heads == 0, "num_heads",
               "must divide hidden_size, {}", config.hidden_size);
  attention.head_dim = config.hidden_size / attention.num_heads;
  attention.qkv_bias = reader.flag("qkv_bias", false);
  attention.window = reader.integer("window_size", 0, 0, std::int64_t{1} << 30);
  attention.rope_theta = reader.number("rope_theta", 10000.0, 1, 1e12);
  reader.unsupported("qk_norm", "attention without norms of q and k");
  const Json* layers = reader.find("layers");
  reader.check(layers != nullptr && layers->is_array(), "layers",
               "must be a list of layer numbers");
  for (const Json& entry : *layers) {
    const std::int64_t index = entry.is_number_integer() ? entry.get<std::int64_t>() : -1;
    reader.check(index >= 0 && index < static_cast<std::int64_t>(config.layers.size()), "layers",
                 "must hold numbers of layers, from 0 to {}", config.layers.size() - 1);
    LayerConfig& layer = config.layers[static_cast<std::size_t>(index)];
    reader.check(layer.mixer.has_value(), "layers", "names layer {} twice", index);
    layer.mixer.reset();
    layer.attention = attention;
  }
}

Json write_hybrid(const AttentionConfig& attention, const std::vector<std::size_t>& layers) {
  return {{"layers", layers},
          {"num_heads", attention.num_heads},
          {"num_kv_heads", attention.num_kv_heads},
          {"qkv_bias", attention.qkv_bias},
          {"window_size", attention.window > 0 ? Json(attention.window) : Json()},
          {"rope_theta", attention.rope_theta}};
}

}  // namespace

void fill_layers(ConfigReader& reader, ModelConfig& config, const MixerConfig& mixer,
                 std::int64_t default_layers) {
  LayerConfig layer;
  layer.mixer = mixer;
  normalise(*layer.mixer);
  layer.intermediate_size = read_intermediate_size(reader, config.hidden_size);
  config.layers.assign(static_cast<std::size_t>(read_layer_count(reader, default_layers)), layer);
  const Json* attn = reader.find("attn");
  if (attn == nullptr) return;
  if (attn->is_array()) {
    for (const Json& entry : *attn) read_hybrid(entry, config, reader.where());
  } else {
    read_hybrid(*attn, config, reader.where());
  }
  reader.check(std::any_of(config.layers.begin(), config.layers.end(),
                           [](const LayerConfig& entry) { return entry.mixer.has_value(); }),
               "attn", "leaves no layer to the mixer (use model_type llama)");
}

void write_layers(const ModelConfig& config, Json& root) {
  root["num_hidden_layers"] = config.layers.size();
  root["intermediate_size"] = config.layers.front().intermediate_size;
  root["hidden_ratio"] = 4;
  std::vector<std::pair<AttentionConfig, std::vector<std::size_t>>> groups;
  for (std::size_t i = 0; i < config.layers.size(); ++i) {
    if (!config.layers[i].attention) continue;
    const AttentionConfig& attention = *config.layers[i].attention;
    auto group = groups.begin();
    while (group != groups.end() && !(group->first == attention)) ++group;
    if (group == groups.end()) group = groups.insert(group, {attention, {}});
    group->second.push_back(i);
  }
  Json attn = Json::array();
  for (const auto& [attention, layers] : groups) attn.push_back(write_hybrid(attention, layers));
  root["attn"] = attn.empty() ? Json() : attn.size() == 1 ? attn.front() : attn;
}

const MixerConfig& first_mixer(const ModelConfig& config) {
  for (const LayerConfig& layer : config.layers) {
    if (layer.mixer) return *layer.mixer;
  }
  fail(Status::invalid_argument, "[config] no layer has a mixer");
}

double factor_of(std::int64_t width, std::int64_t size) {
  const double factor = static_cast<double>(width) / static_cast<double>(size);
  // Other readers cut the product to an integer.
  const bool cut = std::floor(static_cast<double>(size) * factor) < static_cast<double>(width);
  return cut ? std::nextafter(factor, 2 * factor) : factor;
}

}  // namespace rankone::model
