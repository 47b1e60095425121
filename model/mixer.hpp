#pragma once

// The general mixer of the family (docs/notation.md has the equations). The order of work:
// projections, convolution and activation; key norm or feature map; preconditioner; gain; solve;
// output norm and gate; output projection.

#include "model/layers.hpp"

namespace rankone::model {

// A linear map, in two factors where it has low rank; the bias is that of the last one.
struct Projection {
  const nn::Parameter* first = nullptr;
  const nn::Parameter* second = nullptr;
  const nn::Parameter* bias = nullptr;

  explicit operator bool() const { return first != nullptr; }
  nn::Var apply(nn::Tape& tape, nn::Var x) const;
};

struct Convolution {
  const nn::Parameter* weight = nullptr;
  const nn::Parameter* bias = nullptr;

  explicit operator bool() const { return weight != nullptr; }
};

// The weights of a learned feature map, applied to every head alike.
struct KeyMapWeights {
  Projection first, second;
};

struct MixerWeights {
  Projection query, key, value;
  Convolution query_conv, key_conv, value_conv;
  Projection fused;  // Mamba-2: gate, value, key, query and decay logits in one
  Convolution fused_conv;
  Projection decay;
  const nn::Parameter* a_log = nullptr;
  const nn::Parameter* dt_bias = nullptr;
  Projection gain, gain_value;
  const nn::Parameter* theta = nullptr;
  Projection pre_decay, pre_gain;
  const nn::Parameter* pre_a_log = nullptr;
  const nn::Parameter* pre_dt_bias = nullptr;
  const nn::Parameter* center = nullptr;
  const nn::Parameter* ridge = nullptr;
  KeyMapWeights query_map, key_map;
  const nn::Parameter* correction = nullptr;
  const nn::Parameter* skip = nullptr;
  Projection gate;
  const nn::Parameter* norm = nullptr;
  Projection output;
};

// Head counts and widths that follow from the configuration.
struct MixerSizes {
  explicit MixerSizes(const MixerConfig& config);

  std::int64_t writes;                                             // n, per token
  std::int64_t query_heads, stored_key_heads, stored_value_heads;  // of the projections
  std::int64_t key_heads;                                          // H of the recurrence
  std::int64_t value_heads;                                        // HV of the recurrence
  std::int64_t key_dim;                                            // of a projected key
  std::int64_t features;                                           // K of the recurrence
  std::int64_t value_dim;                                          // V
  std::int64_t gain_heads;  // logits of the gain for one write
  std::int64_t channels() const { return value_heads * value_dim; }  // of the output
};

// Whether the gain is the time step of the decay (Mamba-2); beside other decays the gain dt has
// logits of its own.
inline bool uses_decay_step(const MixerConfig& config) {
  return config.axes.gain == recurrence::GainKind::dt &&
         config.axes.decay == recurrence::DecayKind::scalar &&
         config.decay_form == recurrence::DecayForm::softplus;
}

MixerWeights declare_mixer(const Declare& declare, const MixerConfig& config);

class Mixer final : public TimeMixing {
 public:
  Mixer(const Declare& declare, const MixerConfig& config);

  nn::Var forward(nn::Tape& tape, const LayerCall& call, nn::Var x) const override;
  std::vector<StateShape> state_shapes() const override;
  Tensor fresh_state(const StateShape& entry) const override;

 private:
  enum class Slot { conv_q, conv_k, conv_v, conv, memory, gram, preconditioner };
  static constexpr std::size_t kSlots = 7;

  // The values that flow from step to step; absent where the mixer has none. Shapes for R tokens, n
  // writes per token.
  struct Flow {
    Flow(nn::Tape& tape_, const LayerCall& call_, const Sequences& sequences_)
        : tape(tape_), call(call_), rows(call_.sequences.rows()), sequences(sequences_) {}

    nn::Tape& tape;
    const LayerCall& call;
    std::int64_t rows;           // R
    const Sequences& sequences;  // of the R n rows that the recurrence sees
    nn::Var q;                   // [R, H, K]
    nn::Var e, w;                // [R, n H, K]
    nn::Var v;                   // [R, n HV, V]
    nn::Var skip;                // v before the gain
    nn::Var gate;                // [R, HV V]
    nn::Var decay_logits, gain_logits, gain_value_logits, pre_decay_logits, pre_gain_logits;
    nn::Var g;      // [R, HV] or [R, HV, K]
    nn::Var dt, b;  // [R, HV], [R, n HV]
    // A preconditioner that runs with the solve, which nothing before it reads.
    std::optional<nn::PreconditionArgs> preconditioner;
  };

  void project(Flow& flow, nn::Var x) const;
  void project_fused(Flow& flow, nn::Var x) const;
  nn::Var convolve(Flow& flow, nn::Var x, const Convolution& convolution, Slot slot,
                   nn::Activation activation) const;
  void split_heads(Flow& flow) const;
  void shape_keys(Flow& flow) const;
  nn::Var map_features(Flow& flow, nn::Var x, const KeyMapWeights& weights) const;
  nn::Var normalise(Flow& flow, nn::Var x, KeyNorm norm) const;
  void decay(Flow& flow) const;
  void precondition(Flow& flow) const;
  void gain(Flow& flow) const;
  nn::Var solve(Flow& flow) const;
  nn::Var solve_cg(Flow& flow) const;
  nn::Var output(Flow& flow, nn::Var o) const;

  nn::Var ridge(nn::Tape& tape) const;  // [H, K] > 0
  nn::Var per_write(Flow& flow, nn::Var x, std::int64_t heads, std::int64_t width) const;
  nn::Var first_write(Flow& flow, nn::Var x) const;
  nn::Var last_write(Flow& flow, nn::Var x, std::int64_t heads, std::int64_t width) const;
  Tensor state(const LayerCall& call, Slot slot) const;
  void place_slots();

  MixerConfig config_;
  MixerSizes sizes_;
  MixerWeights weights_;
  double norm_eps_;
  std::array<int, kSlots> slots_;  // index among the layer's state entries, -1: none
};

}  // namespace rankone::model
