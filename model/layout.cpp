#include "model/layout.hpp"

#include <cmath>
#include <map>

#include "core/status.hpp"

namespace rankone::model {
namespace {

Layout preconditioned(Layout layout) {
  layout.roles = {{"a_pre_proj", "a_atk_proj"},
                  {"b_pre_proj", "b_atk_proj"},
                  {"A_log_pre", "A_log_atk"},
                  {"dt_bias_pre", "dt_bias_atk"},
                  {"center", "log_atk_scale"}};
  return layout;
}

Layout mamba2() {
  Layout layout;
  layout.embeddings = "backbone.embeddings.weight";
  layout.embeddings_alias = "backbone.embedding.weight";
  layout.final_norm = "backbone.norm_f.weight";
  layout.layers = "backbone.layers.";
  layout.mixer = "mixer.";
  layout.mixer_norm = "norm.weight";
  layout.roles = {{"o_norm", "norm"}, {"o_proj", "out_proj"}};
  return layout;
}

Layout llama() {
  Layout layout;
  layout.embeddings = "model.embed_tokens.weight";
  layout.mixer = "self_attn.";
  layout.mixer_norm = "input_layernorm.weight";
  layout.mlp_norm = "post_attention_layernorm.weight";
  return layout;
}

std::map<std::string, Layout, std::less<>> make_layouts() {
  std::map<std::string, Layout, std::less<>> layouts;
  for (const char* plain : {"rankone", "kla", "gated_deltanet", "delta_net", "mesa_net"}) {
    layouts[plain] = Layout();
  }
  Layout gla;
  gla.roles = {{"a_proj", "gk_proj"}, {"o_norm", "g_norm_swish_gate"}};
  gla.aliases = {{"o_norm.weight", "g_norm.weight"}};
  layouts["gla"] = gla;
  Layout kda;
  kda.roles = {{"a_proj", "f_proj"}};
  layouts["kda"] = kda;
  layouts["precond_gated_deltanet"] = preconditioned(Layout());
  Layout precond_kda = preconditioned(Layout());
  // Its a_proj is the preconditioner's decay, f_proj the state's.
  precond_kda.roles.front().second = "a_proj";
  precond_kda.roles.insert(precond_kda.roles.begin() + 1, {"a_proj", "f_proj"});
  layouts["precond_kda"] = precond_kda;
  Layout linear_attn;
  linear_attn.roles = {{"o_norm", "norm"}};
  linear_attn.aliases = {{"feature_map_q.layer.weight", "feature_map_k.layer.weight"},
                         {"feature_map_q.layer.bias", "feature_map_k.layer.bias"},
                         {"feature_map_q.layer1.weight", "feature_map_k.layer1.weight"},
                         {"feature_map_q.layer1.bias", "feature_map_k.layer1.bias"},
                         {"feature_map_q.layer2.weight", "feature_map_k.layer2.weight"},
                         {"feature_map_q.layer2.bias", "feature_map_k.layer2.bias"}};
  layouts["linear_attn"] = linear_attn;
  layouts["mamba2"] = mamba2();
  layouts["llama"] = llama();
  return layouts;
}

}  // namespace

std::string Layout::renamed(std::string_view role) const {
  for (const auto& [from, to] : roles) {
    const bool whole =
        role.size() == from.size() || (role.size() > from.size() && role[from.size()] == '.');
    if (whole && role.starts_with(from)) {
      return std::string(to).append(role.substr(from.size()));
    }
  }
  return std::string(role);
}

std::string Layout::alias(std::string_view role) const {
  for (const auto& [from, to] : aliases) {
    if (role == from) return std::string(to);
  }
  return "";
}

const Layout& layout_of(std::string_view model_type) {
  static const auto layouts = make_layouts();
  const auto found = layouts.find(model_type);
  require(found != layouts.end(), "[model] no layout for the model type {}", model_type);
  return found->second;
}

std::string Declare::prefix() const { return layout_.layers + std::to_string(layer_) + "."; }

Init Declare::matrix_init(std::int64_t fan_in) const {
  // Kaiming with a = sqrt 5, the default of PyTorch's Linear.
  return kaiming() ? Init::uniform(1.0 / std::sqrt(static_cast<double>(fan_in)))
                   : Init::normal(config_.initializer_range);
}

ParameterSpec Declare::spec(std::string_view role, const Shape& shape, Init init) const {
  ParameterSpec spec;
  const std::string start = prefix() + layout_.mixer;
  spec.name = start + layout_.renamed(role);
  const std::string alias = layout_.alias(role);
  if (!alias.empty()) spec.alias = start + alias;
  spec.shape = shape;
  spec.init = init;
  return spec;
}

const nn::Parameter* Declare::linear(std::string_view role, std::int64_t out,
                                     std::int64_t in) const {
  return linear(role, out, in, matrix_init(in));
}

const nn::Parameter* Declare::linear(std::string_view role, std::int64_t out, std::int64_t in,
                                     Init init) const {
  ParameterSpec result = spec(role, {out, in}, init);
  result.weight = true;
  return set_.add(std::move(result));
}

const nn::Parameter* Declare::bias(std::string_view role, std::int64_t size) const {
  ParameterSpec result = spec(role, {size}, Init::constant(0));
  result.decays = false;
  return set_.add(std::move(result));
}

const nn::Parameter* Declare::convolution(std::string_view role, std::int64_t channels,
                                          std::int64_t width) const {
  ParameterSpec result = spec(role, {channels, width}, matrix_init(width));
  result.file_shape = {channels, 1, width};
  return set_.add(std::move(result));
}

const nn::Parameter* Declare::vector(std::string_view role, const Shape& shape,
                                     const Shape& file_shape, Init init) const {
  ParameterSpec result = spec(role, shape, init);
  result.file_shape = file_shape;
  result.decays = false;
  result.any_shape = role == "A_log";
  return set_.add(std::move(result));
}

}  // namespace rankone::model
