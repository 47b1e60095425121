// The op files of whole layers (op kla_layer): the published KLA layer and its ablations, forward
// and all gradients, through the mixer of the model layer.

#include <charconv>
#include <map>

#include "apps/golden.hpp"
#include "core/status.hpp"
#include "model/mixer.hpp"

namespace rankone::apps {
namespace {

using model::KeyNorm;
using model::MixerConfig;
using model::ModelConfig;
using recurrence::GainKind;
using recurrence::TimeFactor;

std::string metadata(const TensorFile& file, std::string_view key) {
  for (const auto& [name, value] : file.metadata) {
    if (name == key) return value;
  }
  fail(Status::corrupt, "[golden] the layer file has no metadata '{}'", key);
}

double number(const TensorFile& file, std::string_view key, double low, double high) {
  const std::string text = metadata(file, key);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() ||
      !(value >= low && value <= high)) {
    fail(Status::corrupt, "[golden] metadata '{}' is '{}' (a number in [{}, {}])", key, text, low,
         high);
  }
  return value;
}

// What the published option qk_norm means: norms of q and k, and the gain.
struct Variant {
  KeyNorm q, k;
  GainKind gain;
  TimeFactor factor = TimeFactor::none;
};

Variant variant_of(const TensorFile& file) {
  constexpr KeyNorm raw = KeyNorm::none, l2 = KeyNorm::l2_clamp;
  static const std::map<std::string, Variant, std::less<>> variants = {
      {"l2", {l2, l2, GainKind::sigmoid}},
      {"relaxed_kaczmarz_q_norm", {l2, raw, GainKind::kaczmarz}},
      {"relaxed_kaczmarz", {raw, raw, GainKind::kaczmarz}},
      {"kaczmarz", {raw, raw, GainKind::nlms}},
      {"longhorn", {raw, raw, GainKind::longhorn}},
      {"learned_scalar", {raw, raw, GainKind::learned_scalar}},
      {"seq_only", {raw, raw, GainKind::one, TimeFactor::inv_t}}};
  const std::string name = metadata(file, "qk_norm");
  const auto found = variants.find(name);
  if (found == variants.end()) {
    fail(Status::unsupported, "[golden] qk_norm '{}' is not known", name);
  }
  Variant variant = found->second;
  const std::string factor = metadata(file, "seq_factor_mode");
  if (factor != "none") {
    variant.factor = recurrence::parse_choice<TimeFactor>(factor, "seq_factor_mode");
  }
  return variant;
}

ModelConfig config_of(const TensorFile& file) {
  const Variant variant = variant_of(file);
  ModelConfig config;
  config.model_type = "kla";
  config.hidden_size = static_cast<std::int64_t>(number(file, "hidden", 1, 4096));
  config.norm_eps = number(file, "norm_eps", 0, 1);
  const auto heads = static_cast<std::int64_t>(number(file, "heads", 1, 64));
  const auto head_width = [&](const char* key) {
    return static_cast<std::int64_t>(static_cast<double>(config.hidden_size) *
                                     number(file, key, 0.01, 16)) /
           heads;
  };
  MixerConfig mixer;
  mixer.num_heads = mixer.num_key_heads = mixer.num_value_heads = heads;
  mixer.key_dim = head_width("expand_k");
  mixer.value_dim = head_width("expand_v");
  model::LayerConfig layer;
  mixer.axes = recurrence::preset("kla").axes;
  mixer.axes.gain = variant.gain;
  mixer.axes.time_factor = variant.factor;
  mixer.gain_bias = true;
  mixer.gain_eps = number(file, "eps_beta", 0, 1);
  mixer.q_norm = variant.q;
  mixer.k_norm = variant.k;
  mixer.key_norm_eps = 1e-12;
  layer.mixer = mixer;
  config.layers = {layer};
  model::check_config(config, "the layer file");
  return config;
}

// "gk_proj.weight" of the file is "model.layers.0.attn.a_proj.weight" here.
std::string local_name(std::string name) {
  static const std::vector<std::pair<std::string, std::string>> renamed = {
      {"gk_proj.", "a_proj."},
      {"_conv1d.conv.", "_conv1d."},
      {"g_norm_swish_gate.norm.", "o_norm."},
      {"learned_norm_logit", "gain_theta"}};
  for (const auto& [from, to] : renamed) {
    const std::size_t at = name.find(from);
    if (at != std::string::npos) name.replace(at, from.size(), to);
  }
  return "model.layers.0.attn." + name;
}

constexpr std::string_view kParameter = "param.";
constexpr std::string_view kGradient = "grad.param.";

// The layer of a file with its parameters.
struct Layer {
  Layer(const TensorFile& file, Dtype dtype) : config(config_of(file)) {
    const model::Declare declare(set, config, 0);
    mixer = model::make_mixer(declare, *config.layers.front().mixer);
    TensorFile parameters;
    for (const auto& [name, tensor] : file.tensors) {
      if (!name.starts_with(kParameter)) continue;
      const std::string stem = name.substr(kParameter.size());
      // learned_norm_logit may be a scalar of rank 0.
      parameters.add(local_name(stem), tensor.rank() == 0 ? tensor.reshape({1}) : tensor);
    }
    // D is of no use in the published layer, b_proj where the gain ignores it.
    set.load(parameters, dtype, "the layer file",
             {local_name("D"), local_name("b_proj.weight"), local_name("b_proj.bias")});
    set.enable_gradients();
  }

  Tensor gradient(const std::string& name) {
    for (nn::Parameter* parameter : set.list()) {
      if (parameter->name == name) return parameter->grad;
    }
    return {};
  }

  ModelConfig config;
  model::ParameterSet set;
  std::unique_ptr<model::TimeMixing> mixer;
};

std::vector<TensorCheck> check_layer(const TensorFile& file, Context& context, Dtype dtype) {
  Layer layer(file, dtype);
  const bool channel_decay =
      layer.config.layers.front().mixer->axes.decay == recurrence::DecayKind::channel;
  const GoldenBounds bounds = golden_bounds(dtype, context, channel_decay);
  const Tensor x = file.at("in.x").to(dtype);
  const Tensor cotangent = file.at("cot.y").to(dtype);
  const std::int64_t hidden = layer.config.hidden_size;
  if (x.rank() != 3 || x.dim(2) != hidden || cotangent.shape() != x.shape()) {
    fail(Status::corrupt, "[golden] in.x is {} and cot.y {} ([B, T, {}])", x.shape().str(),
         cotangent.shape().str(), hidden);
  }
  const ArenaScope scope(context.arena());
  const Sequences sequences = Sequences::dense(x.dim(0), x.dim(1));
  const Shape rows = {sequences.rows(), hidden};
  nn::Tape tape(context, nn::Tape::Mode::training);
  const nn::Var input = tape.leaf(x.reshape(rows));
  const nn::Var y = layer.mixer->forward(tape, {sequences, nullptr, false}, input);
  tape.backward(y, cotangent.reshape(rows));

  std::vector<TensorCheck> checks;
  const auto compare = [&](const std::string& name, const Tensor& got) {
    const Tensor& expected = file.at(name);
    const GoldenRows rule = expected.rank() < 2 ? GoldenRows::parameter : GoldenRows::rows;
    checks.push_back(compare_golden(
        name, expected, got.defined() ? got.reshape(expected.shape()) : got, rule, bounds));
  };
  compare("out.y", tape.value(y));
  compare("grad.x", tape.grad(input));
  for (const auto& [name, tensor] : file.tensors) {
    if (!name.starts_with(kGradient)) continue;
    compare(name, layer.gradient(local_name(name.substr(kGradient.size()))));
  }
  return checks;
}

const bool kRegistered = [] {
  golden_checks().layer_file = check_layer;
  return true;
}();

}  // namespace
}  // namespace rankone::apps
