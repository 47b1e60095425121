// Configurations: what is read, written, refused, and changed by overrides.

#include <filesystem>
#include <map>

#include "core/files.hpp"
#include "core/status.hpp"
#include "support/paths.hpp"
#include "tests/model/support.hpp"

namespace rankone::test {
namespace {

using model::apply_mixer;
using model::config_from_json;
using model::format_config;
using model::parse_config;

Json gdn_json() {
  return Json::parse(R"({"model_type": "gated_deltanet", "hidden_size": 64, "vocab_size": 100,
    "num_hidden_layers": 2, "num_heads": 2, "head_dim": 16, "expand_v": 2.0,
    "intermediate_size": 96})");
}

std::string message_of(const Json& root, bool strict = false) {
  try {
    config_from_json(root, "test", strict);
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), Status::invalid_argument) << error.what();
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    return error.what();
  }
  ADD_FAILURE() << "accepted: " << root.dump();
  return "";
}

void expect_refused(Json root, const char* key, const Json& value, bool strict = false) {
  root[key] = value;
  EXPECT_NE(message_of(root, strict).find(key), std::string::npos) << message_of(root, strict);
}

TEST(Config, ReadsTheKeysOfGatedDeltaNet) {
  const ModelConfig config = config_from_json(gdn_json(), "test");
  ASSERT_EQ(config.layers.size(), 2u);
  const MixerConfig& mixer = *config.layers[0].mixer;
  EXPECT_EQ(mixer.num_heads, 2);
  EXPECT_EQ(mixer.key_dim, 16);
  EXPECT_EQ(mixer.value_dim, 32);
  EXPECT_EQ(mixer.axes, recurrence::preset("gdn").axes);
  EXPECT_EQ(mixer.output_gate, nn::Activation::silu);
  EXPECT_EQ(config.layers[0].intermediate_size, 96);
  Json wide = gdn_json();
  wide["intermediate_size"] = nullptr;
  wide["hidden_size"] = 1024;
  EXPECT_EQ(config_from_json(wide, "test").layers[0].intermediate_size, 2816);
}

TEST(Config, EveryTypeWritesWhatItReads) {
  const std::map<std::string, std::string> keys = {
      {"gated_deltanet", R"("num_heads": 2, "num_v_heads": 4, "head_dim": 8, "expand_v": 1.5,
        "use_gate": false, "allow_neg_eigval": true)"},
      {"delta_net", R"("num_heads": 4, "expand_k": 0.5, "qk_activation": "elu", "qk_norm": "sum",
        "use_beta": false, "use_gate": true)"},
      {"gla", R"("num_heads": 4, "num_kv_heads": 2, "clamp_min": -3.0, "feature_map": "relu",
        "use_short_conv": true)"},
      {"kda", R"("num_heads": 2, "head_dim": 8, "lower_bound": -5.0, "safe_gate": true)"},
      {"precond_gated_deltanet", R"("num_heads": 2, "head_dim": 8, "squash_x": 1.25)"},
      {"precond_kda", R"("num_heads": 2, "num_v_heads": 4, "head_dim": 8, "a_log_init_lower": 0)"},
      {"mesa_net", R"("num_heads": 2, "head_dim": 8, "use_output_gate": true,
        "max_cg_step_decoding": 7)"},
      {"linear_attn", R"("num_heads": 2, "feature_map": "hedgehog", "tie_feature_map_qk": true,
        "norm_q": true)"},
      {"mamba2", R"("head_dim": 16, "state_size": 8, "n_groups": 2, "D_has_hdim": true,
        "dt_limit": [0.0, {"__float__": "Infinity"}])"},
      {"llama", R"("num_attention_heads": 4, "num_key_value_heads": 2, "attention_bias": true,
        "intermediate_size": 96, "rope_parameters": {"rope_theta": 500.0, "rope_type": "default"})"},
      {"kla", R"("num_heads": 2, "head_dim": 8, "mixer": {"time_factor": "inv_log_t"})"}};
  for (const auto& [type, own] : keys) {
    const std::string text = "{\"model_type\": \"" + type +
                             "\", \"hidden_size\": 64, \"vocab_size\": 50, "
                             "\"num_hidden_layers\": 2, \"pad_token_id\": 3, " +
                             own + "}";
    const ModelConfig config = parse_config(text, "test");
    EXPECT_EQ(config.model_type, type);
    const Json written = format_config(config);
    EXPECT_EQ(written.at("model_type"), type);
    EXPECT_EQ(config_from_json(written, "test", true), config) << written.dump(1);
    const Model model = Model::create(config, Dtype::f32, 1);
    EXPECT_GT(model.parameter_count(), 0);
  }
  for (const NamedConfig& named : tiny_models()) {
    EXPECT_EQ(config_from_json(format_config(named.config), "test", true), named.config)
        << named.name;
  }
}

TEST(Config, HybridsAreReadAndWrittenByTheirAttnKey) {
  Json root = gdn_json();
  root["num_hidden_layers"] = 4;
  root["attn"] = Json::parse(R"([{"layers": [1], "num_heads": 4, "window_size": 8},
                                 {"layers": [3], "num_heads": 2, "qkv_bias": true}])");
  const ModelConfig config = config_from_json(root, "test");
  EXPECT_TRUE(config.layers[1].attention && config.layers[3].attention);
  EXPECT_EQ(config.layers[1].attention->window, 8);
  EXPECT_EQ(config.layers[1].attention->head_dim, 16);
  EXPECT_TRUE(config.layers[0].mixer && config.layers[2].mixer);
  EXPECT_EQ(config_from_json(format_config(config), "test"), config);
  for (const char* layers : {"[4]", "[-1]", "[1, 1]", "\"1\"", "[1.5]"}) {
    root["attn"] = {{"num_heads", 4}, {"layers", Json::parse(layers)}};
    message_of(root);
  }
}

TEST(Config, InfinityIsReadInBothForms) {
  for (const char* limit : {"[0.0, Infinity]", R"([0.0, {"__float__": "Infinity"}])"}) {
    const ModelConfig config =
        parse_config(std::string(R"({"model_type": "mamba2", "hidden_size": 32, "head_dim": 16,
                        "state_size": 8, "dt_limit": )") +
                         limit + "}",
                     "test");
    EXPECT_EQ(config.layers[0].mixer->dt_limit_high, std::numeric_limits<double>::infinity());
  }
}

TEST(Config, RefusesValuesOutOfRangeBeforeAnythingIsAllocated) {
  const Json root = gdn_json();
  expect_refused(root, "hidden_size", 65537);
  expect_refused(root, "hidden_size", 0);
  expect_refused(root, "hidden_size", "64");
  expect_refused(root, "hidden_size", 64.5);
  expect_refused(root, "hidden_size", 18446744073709551615ULL);
  expect_refused(root, "num_hidden_layers", 1025);
  expect_refused(root, "vocab_size", (1 << 20) + 1);
  expect_refused(root, "num_heads", -2);
  expect_refused(root, "num_heads", 100000);
  expect_refused(root, "head_dim", 257);
  expect_refused(root, "expand_v", 1.03);
  expect_refused(root, "expand_v", 1e9);
  expect_refused(root, "conv_size", 9);
  expect_refused(root, "norm_eps", -1);
  expect_refused(root, "use_gate", 1);
  expect_refused(root, "eos_token_id", -1);
  Json heads = root;
  heads["num_v_heads"] = 3;
  message_of(heads);
  EXPECT_THROW(parse_config("[]", "test"), Error);
  EXPECT_THROW(parse_config("{", "test"), Error);
  EXPECT_THROW(parse_config("{}", "test"), Error);
}

TEST(Config, RefusesWhatNothingHereSupportsByName) {
  const Json root = gdn_json();
  expect_refused(root, "attnres_block_size", 2);
  expect_refused(root, "hidden_act", "powlu");
  expect_refused(root, "model_type", "rwkv7");
  const Json linear = {{"model_type", "linear_attn"}, {"hidden_size", 64}};
  expect_refused(linear, "norm_feature_map", true);
  expect_refused(linear, "elementwise_affine", false);
  expect_refused(linear, "feature_map", "cosine");
  const Json llama = {{"model_type", "llama"}, {"hidden_size", 64}, {"num_attention_heads", 4}};
  expect_refused(llama, "partial_rotary_factor", 0.5);
  Json scaled = llama;
  scaled["rope_parameters"] = {{"rope_type", "yarn"}};
  EXPECT_NE(message_of(scaled).find("rope_type"), std::string::npos);
  scaled = llama;
  scaled["rope_scaling"] = {{"type", "linear"}, {"factor", 2.0}};
  EXPECT_NE(message_of(scaled).find("rope_type"), std::string::npos);
  Json mamba = {{"model_type", "mamba2"}, {"hidden_size", 64}, {"head_dim", 16}};
  expect_refused(mamba, "layer_norm_epsilon", 1e-5);
  expect_refused(mamba, "num_heads", 7);
  expect_refused(Json{{"model_type", "precond_gated_deltanet"}, {"hidden_size", 64}}, "squash_x",
                 3);
  expect_refused(Json{{"model_type", "kda"}, {"hidden_size", 64}}, "safe_gate", true);
}

TEST(Config, UnknownKeysNameTheNearest) {
  Json root = gdn_json();
  root["head_dmi"] = 3;
  EXPECT_NO_THROW(config_from_json(root, "test"));
  EXPECT_NE(message_of(root, true).find("nearest: head_dim"), std::string::npos);
  Json mixer = gdn_json();
  mixer["mixer"] = {{"gian", "kaczmarz"}};
  EXPECT_NE(message_of(mixer).find("nearest: mixer.gain"), std::string::npos);
  mixer["mixer"] = {{"gain", "kazcmarz"}};
  EXPECT_NE(message_of(mixer).find("nearest: kaczmarz"), std::string::npos);
  Json own = format_config(tiny_models().front().config);
  own["layers"][0]["mixer"]["solv"] = "delta";
  EXPECT_NE(message_of(own).find("nearest: layers[0].mixer.solve"), std::string::npos);
  EXPECT_THROW(apply_mixer(gdn_json(), "gdm", "test"), Error);
}

TEST(Config, RefusesAxesThatDoNotGoTogether) {
  Json root = gdn_json();
  root["mixer"] = {{"solve", "cg"}, {"gain", "kaczmarz"}};
  EXPECT_NE(message_of(root).find("cg"), std::string::npos);
  root["mixer"] = {{"solve", "cg"}, {"decay", "channel"}};
  message_of(root);
  root["mixer"] = {{"solve", "cg"}, {"preconditioner", "atk"}};
  message_of(root);
  root["mixer"] = {{"fused_projection", true}, {"writes_per_token", 2}};
  message_of(root);
  root["mixer"] = {{"feature_map", "dpfp"}, {"key_dim", 64}};
  message_of(root);
}

TEST(Config, AMixerObjectChangesAllMixersAndTheTypeWhereItMust) {
  Json root = gdn_json();
  root["mixer"] = {{"gain", "sigmoid2"}};
  ModelConfig config = config_from_json(root, "test");
  EXPECT_EQ(config.model_type, "gated_deltanet");
  EXPECT_EQ(format_config(config).at("allow_neg_eigval"), true);
  root["mixer"] = {{"gain", "kaczmarz"}, {"gain_bias", true}, {"k_norm", "none"}};
  EXPECT_EQ(config_from_json(root, "test").model_type, "kla");
  root["mixer"] = {{"gain", "nlms"}};
  config = config_from_json(root, "test");
  EXPECT_EQ(config.model_type, "rankone");
  for (const LayerConfig& layer : config.layers) {
    EXPECT_EQ(layer.mixer->axes.gain, recurrence::GainKind::nlms);
  }
}

TEST(Config, APresetKeepsTheSizesAndTakesTheTypeThatOthersKnow) {
  const std::map<std::string, std::string> types = {{"gdn", "gated_deltanet"},
                                                    {"kla", "kla"},
                                                    {"kda", "kda"},
                                                    {"deltanet", "delta_net"},
                                                    {"pgdn", "precond_gated_deltanet"},
                                                    {"pkda", "precond_kda"},
                                                    {"linear", "linear_attn"},
                                                    {"gla", "gla"},
                                                    {"pdn", "rankone"},
                                                    {"comba", "rankone"},
                                                    {"nlms", "rankone"}};
  Json root = gdn_json();
  root["initializer"] = "kaiming_uniform";
  for (const auto& [preset, type] : types) {
    const Json changed = apply_mixer(root, preset, "test");
    EXPECT_EQ(changed.at("model_type"), type) << preset;
    const ModelConfig config = config_from_json(changed, "test", true);
    EXPECT_EQ(config.layers[0].mixer->key_dim, 16) << preset;
    EXPECT_EQ(config.layers[0].mixer->value_dim, 32) << preset;
    EXPECT_EQ(config.layers[0].mixer->axes, recurrence::preset(preset).axes);
    EXPECT_EQ(config.initializer, model::Initializer::kaiming_uniform) << preset;
  }
}

TEST(Config, ShippedConfigurationsAreStrictAndOfTheSizeTheyClaim) {
  const std::map<std::string, std::int64_t> sizes = {
      {"gdn-340m", 341'790'000},  {"pgdn-340m", 342'180'000}, {"kda-340m", 354'230'000},
      {"pkda-340m", 354'620'000}, {"kla-0.4b", 516'900'000},  {"gdn-0.4b", 516'900'000}};
  int seen = 0;
  for (const auto& entry : std::filesystem::directory_iterator(source_dir() / "configs")) {
    const Json root = Json::parse(read_file(entry.path(), 1 << 20));
    const ModelConfig config = config_from_json(root.at("model"), entry.path().string(), true);
    const model::ModelSummary summary = model::summarise(config);
    const auto found = sizes.find(entry.path().stem().string());
    if (found == sizes.end()) continue;
    ++seen;
    EXPECT_NEAR(static_cast<double>(summary.parameters), static_cast<double>(found->second), 5e4)
        << entry.path();
  }
  EXPECT_EQ(seen, static_cast<int>(sizes.size()));
}

TEST(Config, ASummaryCountsWhatTheModelHas) {
  for (const NamedConfig& named : tiny_models()) {
    const model::ModelSummary summary = model::summarise(named.config);
    const Model model = Model::create(named.config, Dtype::f32, 1);
    EXPECT_EQ(summary.parameters, model.parameter_count()) << named.name;
    EXPECT_EQ(summary.parameters - summary.embedding_parameters,
              model.non_embedding_parameter_count());
    State state = model.make_state(1);
    state.reserve(10);
    EXPECT_EQ(static_cast<std::int64_t>(state.bytes()),
              summary.state_bytes + 10 * summary.cache_bytes_per_token)
        << named.name;
  }
}

}  // namespace
}  // namespace rankone::test
