#pragma once

// The configuration of a model in expanded form: every layer says what it is. Foreign config.json
// files (flash-linear-attention, transformers) are read into it and written from it;
// docs/formats.md lists the keys.

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.hpp"
#include "nn/operators.hpp"
#include "recurrence/presets.hpp"

namespace rankone::model {

// Norm of q or k per head: l2 is x rsqrt(|x|^2 + eps), l2_clamp x / max(|x|, eps), sum
// x / (sum(x) + eps).
enum class KeyNorm { none, l2, l2_clamp, sum };
enum class KeyMap { none, relu, elu1, elementwise_product, hedgehog, t2r, dpfp };
enum class Skip { none, head, channel };
enum class Initializer { normal, kaiming_uniform };

// One delta-rule (or additive, or conjugate-gradient) mixer. Sizes: q has num_heads heads, k
// num_key_heads, v num_value_heads. Either q and k have as many and num_value_heads is a multiple
// (grouped values), or k and v have as many and num_heads is a multiple (grouped queries).
struct MixerConfig {
  std::int64_t num_heads = 4;
  std::int64_t num_key_heads = 4;
  std::int64_t num_value_heads = 4;
  std::int64_t key_dim = 64;    // of one head, 1..256 (after the feature map too)
  std::int64_t value_dim = 64;  // of one head, 1..1024

  recurrence::MixerAxes axes;

  // Decay.
  recurrence::DecayForm decay_form = recurrence::DecayForm::softplus;
  double decay_bound = -5.0;                                      // of the lower_bound form
  double decay_normalizer = 1.0;                                  // of the logsigmoid form
  double decay_clamp = -std::numeric_limits<double>::infinity();  // smallest g, logsigmoid form
  std::int64_t decay_rank = 0;  // of its projection; 0: one full matrix
  bool decay_bias = false;
  double dt_limit_low = 0.0;  // softplus form
  double dt_limit_high = std::numeric_limits<double>::infinity();
  double a_init_low = 0.0;  // A of a new model is uniform in this range
  double a_init_high = 16.0;
  bool a_init_one = false;     // A = 1 instead
  double dt_init_low = 0.001;  // softplus(dt_bias) of a new model is log-uniform in this range
  double dt_init_high = 0.1;
  double dt_init_floor = 1e-4;

  // Gain.
  bool gain_bias = false;
  double gain_eps = 1e-6;
  bool gain_per_key_head = false;  // one logit per key head, shared by its value heads

  // Preconditioner, and the ridge of atq, gram and cg: softplus(parameter) + ridge_min.
  double squash_x = 1.5;
  double squash_eps = 1e-6;
  double center_init = -0.2;
  bool precondition_per_value_head = false;
  double ridge_min = 0.25;

  // Conjugate gradients.
  std::int64_t cg_iterations = 30;
  std::int64_t cg_iterations_decode = 30;
  double cg_tolerance = 0.0;
  double cg_damping = 0.0;  // the published MesaNet has 1e-5

  // Before the recurrence.
  std::int64_t conv_size = 4;  // 0: none
  bool conv_bias = false;
  bool conv_value = true;                                // v has a convolution too
  nn::Activation key_activation = nn::Activation::silu;  // of q and k
  nn::Activation value_activation = nn::Activation::silu;
  KeyNorm q_norm = KeyNorm::l2;
  KeyNorm k_norm = KeyNorm::l2;
  double key_norm_eps = 1e-6;
  KeyMap feature_map = KeyMap::none;
  bool tie_feature_map = false;  // q and k share the map's weights
  double rope_theta = 0.0;       // 0: no rotary embedding
  std::int64_t writes_per_token = 1;
  bool read_undecayed = false;    // the erase reads the state before its decay
  bool query_correction = false;  // q - d k, d per head
  double scale = 0.0;             // of the output; 0: key_dim^-0.5

  // After it.
  Skip d_skip = Skip::none;
  bool output_norm = true;
  std::int64_t norm_groups =
      0;  // 0: one norm per head with shared weights; else groups of all channels
  nn::Activation output_gate = nn::Activation::silu;  // none, silu or sigmoid
  bool gate_first = false;                            // the gate multiplies before the norm
  std::int64_t gate_rank = 0;
  bool gate_bias = false;

  bool fused_projection = false;  // the tensors of Mamba-2: one in_proj and one conv1d
  bool rescale_output = false;    // a new o_proj is Kaiming's over sqrt(layers)
  bool projection_bias = false;   // of in_proj and out_proj (Mamba-2's use_bias)

  bool operator==(const MixerConfig&) const = default;

  // Width of the features of a key: key_dim, or what the feature map makes of it.
  std::int64_t feature_dim() const;
  // Heads of the recurrence: those of its output.
  std::int64_t output_heads() const { return std::max(num_heads, num_value_heads); }
};

// Causal softmax attention with rotary positions.
struct AttentionConfig {
  std::int64_t num_heads = 4;
  std::int64_t num_kv_heads = 4;
  std::int64_t head_dim = 64;
  bool qkv_bias = false;
  bool output_bias = false;
  std::int64_t window = 0;  // 0: all earlier tokens
  double rope_theta = 10000.0;

  bool operator==(const AttentionConfig&) const = default;
};

struct LayerConfig {
  std::optional<MixerConfig> mixer;  // exactly one of the two
  std::optional<AttentionConfig> attention;
  std::int64_t intermediate_size = 0;  // of the SwiGLU block; 0: none
  bool mlp_bias = false;

  bool operator==(const LayerConfig&) const = default;
};

struct ModelConfig {
  std::string model_type = "rankone";
  std::int64_t hidden_size = 256;
  std::int64_t vocab_size = 32000;
  std::vector<LayerConfig> layers;
  double norm_eps = 1e-6;
  bool tie_word_embeddings = false;
  Initializer initializer = Initializer::normal;
  double initializer_range = 0.02;
  std::optional<std::int64_t> bos_token_id = 1;
  std::optional<std::int64_t> eos_token_id = 2;
  std::optional<std::int64_t> pad_token_id;
  std::int64_t max_position_embeddings =
      2048;  // carried for other readers; nothing here is limited

  bool operator==(const ModelConfig&) const = default;
};

// Largest values a config may ask for.
inline constexpr std::int64_t kMaxHidden = 65536;
inline constexpr std::int64_t kMaxLayers = 1024;
inline constexpr std::int64_t kMaxVocabulary = std::int64_t{1} << 20;
inline constexpr std::int64_t kMaxHeads = 4096;

// Reads a config.json. Unknown keys of the foreign types are ignored; those of "rankone" and of the
// `mixer` object, which any type may carry and which changes all its mixers, are errors that name
// the nearest one. With `strict` (the model part of a training configuration) so are all others. A
// value that is out of range or that nothing here supports fails with its name. The model type of
// the result is the one asked for, or where `mixer` has made that impossible one that can express
// it.
ModelConfig parse_config(std::string_view text, std::string_view where, bool strict = false);
ModelConfig config_from_json(const Json& root, std::string_view where, bool strict = false);
// The config.json of its model type, with all keys that its readers know.
Json format_config(const ModelConfig& config);
// Fails with the name of what can not be: sizes out of range, axes that do not go together.
void check_config(const ModelConfig& config, std::string_view where);

// Replaces all mixers of the config by those of a preset (rankone mixers), sizes kept, and writes
// it with the model type that can express the result. Fails with the nearest name. The keys of
// `root` that are no model keys are lost.
Json apply_mixer(const Json& root, std::string_view preset, std::string_view where);

// The names of the keys of a mixer, in the order of the file.
const std::vector<std::string_view>& mixer_keys();

}  // namespace rankone::model
