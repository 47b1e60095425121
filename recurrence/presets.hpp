#pragma once

// The family as data: the choices on the four axes, what a layer has beside them, and the published
// models as rows of one table. A model of the family is a MixerPreset or any other legal
// combination.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "recurrence/recurrence.hpp"

namespace rankone::recurrence {

enum class DecayKind { none, fixed, scalar, channel };
// atk works on the write key, atq on the query, gram (exact, reference backend only) on the write
// key.
enum class PreconditionerChoice { none, atk, atq, gram };
enum class Solve { delta, additive, cg };

struct MixerAxes {
  DecayKind decay = DecayKind::none;
  GainKind gain = GainKind::one;
  TimeFactor time_factor = TimeFactor::none;
  PreconditionerChoice preconditioner = PreconditionerChoice::none;
  Solve solve = Solve::delta;

  bool operator==(const MixerAxes&) const = default;
};

// Why the combination has no meaning; empty where it is legal. `reference` says whether the call
// will run on the reference backend, the only one that has gram. The gain dt takes the time step of
// a scalar softplus decay; beside any other decay it has logits of its own (decay() with out.dt).
std::string refusal(const MixerAxes& axes, bool reference);
// Fails with invalid_argument and that reason.
void check_axes(const MixerAxes& axes, bool reference);

// Names of the choices: DecayKind, GainKind, TimeFactor, PreconditionerChoice, Solve, DecayForm.
template <class Choice>
std::span<const std::string_view> choice_names();
template <class Choice>
std::string_view choice_name(Choice choice) {
  return choice_names<Choice>()[static_cast<std::size_t>(choice)];
}
// Fails with invalid_argument, naming the key and the nearest legal name.
template <class Choice>
Choice parse_choice(std::string_view text, std::string_view key);

// Rank of a low-rank projection that is the value dimension of one head.
inline constexpr std::int64_t kRankValueDim = -1;

// Keys of a layer with their published values. Texts are the names that a config file has too.
struct MixerPreset {
  std::string_view name;
  std::string_view source;  // model and paper, one line
  MixerAxes axes;

  // Decay.
  DecayForm decay_form = DecayForm::softplus;
  double decay_normalizer = 1.0;  // logsigmoid form
  std::int64_t decay_rank = 0;    // of the projection of the logits; 0: one full matrix
  bool decay_bias = false;        // in that projection
  double a_init_low = 0.0;        // A = exp(a_log) of a new model is uniform in [low, 16]

  // Gain and preconditioner.
  bool gain_bias = false;                    // in the projection of the logits
  bool gain_per_key_head = false;            // one logit for all value heads of a key head
  bool precondition_per_value_head = false;  // k is repeated to the value heads first

  // Before the recurrence.
  std::int64_t conv_size = 4;  // short convolution; 0: none
  bool conv_bias = false;
  bool conv_value = true;                      // v has one too
  std::string_view key_activation = "silu";    // of q and k: none, silu
  std::string_view value_activation = "silu";  // of v: none, silu
  std::string_view q_norm = "l2";              // none, l2
  std::string_view k_norm = "l2";
  std::string_view feature_map = "none";  // none, elementwise_product
  double rope_theta = 0.0;                // 0: no rotary embedding
  std::int64_t writes_per_token = 1;
  bool read_undecayed = false;    // the erase reads the state before its decay: e = k exp(-g)
  bool query_correction = false;  // q <- q - d k before the norm of q, d per head
  double scale = 0.0;             // of the output; 0: 1 / sqrt(d_k)

  // After it.
  bool output_norm = true;                // RMSNorm over each head
  std::string_view output_gate = "none";  // none, silu, sigmoid
  bool gate_first = false;                // the gate multiplies before the norm
  std::int64_t gate_rank = 0;             // of the projection of the gate
  bool gate_bias = false;
  std::string_view d_skip = "none";  // none, head: o + D v
  bool fused_projection = false;     // one projection and one convolution for all (Mamba-2)
};

// All presets in the order of the table of `rankone mixers`.
std::span<const MixerPreset> presets();
// Null: no such preset.
const MixerPreset* find_preset(std::string_view name);
// Fails with invalid_argument, naming the nearest preset.
const MixerPreset& preset(std::string_view name);

}  // namespace rankone::recurrence
