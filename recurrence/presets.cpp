#include "recurrence/presets.hpp"

#include <array>
#include <vector>

#include "core/nearest.hpp"
#include "core/status.hpp"

namespace rankone::recurrence {
namespace {

using Names = std::span<const std::string_view>;

constexpr std::array<std::string_view, 4> kDecayKinds = {"none", "fixed", "scalar", "channel"};
constexpr std::array<std::string_view, 10> kGainKinds = {
    "one",      "sigmoid", "sigmoid2",       "dt",    "kaczmarz", "nlms",
    "longhorn", "efla",    "learned_scalar", "vector"};
constexpr std::array<std::string_view, 4> kTimeFactors = {"none", "inv_t", "inv_sqrt_t",
                                                          "inv_log_t"};
constexpr std::array<std::string_view, 4> kPreconditioners = {"none", "atk", "atq", "gram"};
constexpr std::array<std::string_view, 3> kSolves = {"delta", "additive", "cg"};
constexpr std::array<std::string_view, 4> kDecayForms = {"softplus", "lower_bound", "logsigmoid",
                                                         "fixed"};

std::string joined(Names names) {
  std::string text;
  for (const std::string_view name : names) text.append(text.empty() ? "" : ", ").append(name);
  return text;
}

[[noreturn]] void unknown(std::string_view key, std::string_view text, Names names) {
  fail(Status::invalid_argument, "[mixer] {} '{}' is unknown (nearest: {}; one of {})", key, text,
       nearest(text, names), joined(names));
}

// Blocks that several models share.

MixerPreset delta_block(std::string_view name, std::string_view source, MixerAxes axes) {
  MixerPreset preset;
  preset.name = name;
  preset.source = source;
  preset.axes = axes;
  return preset;
}

MixerPreset gated_block(std::string_view name, std::string_view source, MixerAxes axes) {
  MixerPreset preset = delta_block(name, source, axes);
  preset.output_gate = "silu";
  return preset;
}

MixerPreset raw_block(std::string_view name, std::string_view source, MixerAxes axes) {
  MixerPreset preset = gated_block(name, source, axes);
  preset.q_norm = preset.k_norm = "none";
  return preset;
}

MixerPreset channel_block(std::string_view name, std::string_view source, MixerAxes axes) {
  MixerPreset preset = delta_block(name, source, axes);
  preset.decay_rank = kRankValueDim;
  preset.a_init_low = 1.0;
  preset.output_gate = "sigmoid";
  preset.gate_rank = kRankValueDim;
  preset.gate_bias = true;
  return preset;
}

// No convolution, no activation, no norm of the keys.
MixerPreset plain_block(std::string_view name, std::string_view source, MixerAxes axes) {
  MixerPreset preset = delta_block(name, source, axes);
  preset.conv_size = 0;
  preset.key_activation = preset.value_activation = "none";
  preset.q_norm = preset.k_norm = "none";
  return preset;
}

MixerPreset linear_block(std::string_view name, std::string_view source, MixerAxes axes) {
  MixerPreset preset = plain_block(name, source, axes);
  preset.feature_map = "elementwise_product";
  return preset;
}

MixerPreset gla_block(std::string_view name, std::string_view source, MixerAxes axes) {
  MixerPreset preset = plain_block(name, source, axes);
  preset.decay_form = DecayForm::logsigmoid;
  preset.decay_normalizer = 16.0;
  preset.decay_rank = 16;
  preset.decay_bias = true;
  preset.output_gate = "silu";
  return preset;
}

MixerPreset mamba2_block(std::string_view name, std::string_view source, MixerAxes axes) {
  MixerPreset preset = raw_block(name, source, axes);
  preset.a_init_low = 1.0;
  preset.conv_bias = true;
  preset.scale = 1.0;
  preset.gate_first = true;
  preset.d_skip = "head";
  preset.fused_projection = true;
  return preset;
}

std::vector<MixerPreset> make_presets() {
  using enum TimeFactor;
  using D = DecayKind;
  using G = GainKind;
  using P = PreconditionerChoice;
  constexpr Solve delta = Solve::delta, additive = Solve::additive;
  std::vector<MixerPreset> list;

  list.push_back(linear_block("linear", "linear attention (Katharopoulos et al. 2020)",
                              {D::none, G::one, none, P::none, additive}));
  list.push_back(plain_block("retnet", "RetNet (arXiv 2307.08621)",
                             {D::fixed, G::one, none, P::none, additive}));
  list.back().decay_form = DecayForm::fixed;
  list.back().rope_theta = 10000.0;
  list.back().output_gate = "silu";
  list.push_back(
      mamba2_block("mamba2", "Mamba-2 (ICML 2024)", {D::scalar, G::dt, none, P::none, additive}));
  list.push_back(
      gla_block("gla", "GLA (ICML 2024)", {D::channel, G::one, none, P::none, additive}));
  list.push_back(delta_block("deltanet", "DeltaNet (NeurIPS 2024)",
                             {D::none, G::sigmoid, none, P::none, delta}));
  list.push_back(gated_block("gdn", "Gated DeltaNet (arXiv 2412.06464)",
                             {D::scalar, G::sigmoid, none, P::none, delta}));
  list.push_back(channel_block("kda", "Kimi Delta Attention (arXiv 2510.26692)",
                               {D::channel, G::sigmoid, none, P::none, delta}));
  list.push_back(channel_block("gdn2", "Gated DeltaNet 2 (arXiv 2605.22791)",
                               {D::channel, G::vector, none, P::none, delta}));
  list.push_back(raw_block("longhorn", "Longhorn, exact (arXiv 2407.14207)",
                           {D::none, G::longhorn, none, P::none, delta}));
  list.push_back(raw_block("nlms", "NLMS of test-time regression (arXiv 2501.12352)",
                           {D::none, G::nlms, none, P::none, delta}));
  list.push_back(raw_block("efla", "EFLA (as tabulated in arXiv 2604.21100)",
                           {D::none, G::efla, none, P::none, delta}));
  list.push_back(gated_block("comba", "Comba (arXiv 2506.02475)",
                             {D::scalar, G::sigmoid, none, P::none, delta}));
  list.back().read_undecayed = true;
  list.back().query_correction = true;
  list.push_back(gated_block("deltaproduct", "Gated DeltaProduct (arXiv 2502.10297)",
                             {D::scalar, G::sigmoid2, none, P::none, delta}));
  list.back().writes_per_token = 2;
  list.push_back(delta_block("mesa", "MesaNet (arXiv 2506.05233)",
                             {D::scalar, G::sigmoid, none, P::none, Solve::cg}));
  list.back().decay_form = DecayForm::logsigmoid;
  list.back().decay_bias = list.back().gain_bias = true;
  list.back().conv_value = false;
  list.back().value_activation = "none";
  list.back().scale = 1.0;
  list.push_back(gated_block("kla", "Kaczmarz Linear Attention (arXiv 2605.08587)",
                             {D::scalar, G::kaczmarz, none, P::none, delta}));
  list.back().k_norm = "none";
  list.back().gain_bias = true;
  list.push_back(delta_block("pdn", "Preconditioned DeltaNet (arXiv 2604.21100)",
                             {D::none, G::sigmoid, none, P::atk, delta}));
  list.push_back(gated_block("pgdn", "Preconditioned Gated DeltaNet (arXiv 2604.21100)",
                             {D::scalar, G::sigmoid, none, P::atk, delta}));
  list.push_back(channel_block("pkda", "Preconditioned KDA (arXiv 2604.21100)",
                               {D::channel, G::sigmoid, none, P::atk, delta}));
  list.back().gain_per_key_head = true;
  list.back().precondition_per_value_head = true;
  list.push_back(linear_block("pla", "Preconditioned linear attention (arXiv 2604.21100)",
                              {D::none, G::one, none, P::atq, additive}));
  list.push_back(mamba2_block("p-mamba2", "Preconditioned Mamba-2 (arXiv 2604.21100)",
                              {D::scalar, G::dt, none, P::atq, additive}));
  list.push_back(gla_block("p-gla", "Preconditioned GLA (arXiv 2604.21100)",
                           {D::channel, G::one, none, P::atq, additive}));
  return list;
}

const std::vector<MixerPreset>& preset_list() {
  static const std::vector<MixerPreset> list = make_presets();
  return list;
}

}  // namespace

template <>
Names choice_names<DecayKind>() {
  return kDecayKinds;
}
template <>
Names choice_names<GainKind>() {
  return kGainKinds;
}
template <>
Names choice_names<TimeFactor>() {
  return kTimeFactors;
}
template <>
Names choice_names<PreconditionerChoice>() {
  return kPreconditioners;
}
template <>
Names choice_names<Solve>() {
  return kSolves;
}
template <>
Names choice_names<DecayForm>() {
  return kDecayForms;
}

template <class Choice>
Choice parse_choice(std::string_view text, std::string_view key) {
  const Names names = choice_names<Choice>();
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (names[i] == text) return static_cast<Choice>(i);
  }
  unknown(key, text, names);
}
template DecayKind parse_choice<DecayKind>(std::string_view, std::string_view);
template GainKind parse_choice<GainKind>(std::string_view, std::string_view);
template TimeFactor parse_choice<TimeFactor>(std::string_view, std::string_view);
template PreconditionerChoice parse_choice<PreconditionerChoice>(std::string_view,
                                                                 std::string_view);
template Solve parse_choice<Solve>(std::string_view, std::string_view);
template DecayForm parse_choice<DecayForm>(std::string_view, std::string_view);

std::string refusal(const MixerAxes& axes, bool reference) {
  if (axes.solve == Solve::cg) {
    if (axes.decay == DecayKind::channel) {
      return "solve cg with decay channel: a Gram matrix decayed per channel is not symmetric (use "
             "decay scalar, fixed or none)";
    }
    if (axes.preconditioner != PreconditionerChoice::none) {
      return fmt::format(
          "solve cg with preconditioner {}: cg already solves with the exact Gram matrix (use "
          "preconditioner none)",
          choice_name(axes.preconditioner));
    }
    if (is_key_norm(axes.gain)) {
      return fmt::format(
          "solve cg with gain {}: a key-norm gain is a step size of the delta rule, the exact "
          "solve has none (use gain one, sigmoid, sigmoid2 or dt)",
          choice_name(axes.gain));
    }
  }
  if (axes.preconditioner == PreconditionerChoice::gram && !reference) {
    return "preconditioner gram outside the reference backend: it is an oracle that solves a "
           "system "
           "per token (use atk, or dtype f64)";
  }
  return {};
}

void check_axes(const MixerAxes& axes, bool reference) {
  const std::string reason = refusal(axes, reference);
  require(reason.empty(), "[mixer] {}", reason);
}

std::span<const MixerPreset> presets() { return preset_list(); }

const MixerPreset* find_preset(std::string_view name) {
  for (const MixerPreset& preset : preset_list()) {
    if (preset.name == name) return &preset;
  }
  return nullptr;
}

const MixerPreset& preset(std::string_view name) {
  if (const MixerPreset* found = find_preset(name)) return *found;
  std::vector<std::string_view> names;
  for (const MixerPreset& preset : preset_list()) names.push_back(preset.name);
  unknown("preset", name, names);
}

}  // namespace rankone::recurrence
