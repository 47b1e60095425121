#include <cmath>

#include "model/layers.hpp"

namespace rankone::model {
namespace {

class AttentionLayer final : public TimeMixing {
 public:
  AttentionLayer(const Declare& declare, const AttentionConfig& config) : config_(config) {
    const std::int64_t hidden = declare.config().hidden_size;
    const std::int64_t width = config.num_heads * config.head_dim;
    const std::int64_t kv_width = config.num_kv_heads * config.head_dim;
    query_ = declare.linear("q_proj.weight", width, hidden);
    key_ = declare.linear("k_proj.weight", kv_width, hidden);
    value_ = declare.linear("v_proj.weight", kv_width, hidden);
    if (config.qkv_bias) {
      query_bias_ = declare.bias("q_proj.bias", width);
      key_bias_ = declare.bias("k_proj.bias", kv_width);
      value_bias_ = declare.bias("v_proj.bias", kv_width);
    }
    output_ = declare.linear("o_proj.weight", hidden, width);
    if (config.output_bias) output_bias_ = declare.bias("o_proj.bias", hidden);
  }

  nn::Var forward(nn::Tape& tape, const LayerCall& call, nn::Var x) const override {
    const std::int64_t rows = call.sequences.rows();
    const Shape heads = {rows, config_.num_heads, config_.head_dim};
    const Shape kv_heads = {rows, config_.num_kv_heads, config_.head_dim};
    nn::AttentionArgs args;
    args.q = nn::reshape(tape, apply_linear(tape, x, query_, query_bias_), heads);
    args.k = nn::reshape(tape, apply_linear(tape, x, key_, key_bias_), kv_heads);
    args.v = nn::reshape(tape, apply_linear(tape, x, value_, value_bias_), kv_heads);
    args.positions = call.positions();
    args.q = nn::rope(tape, call.sequences, args.q, config_.rope_theta, args.positions);
    args.k = nn::rope(tape, call.sequences, args.k, config_.rope_theta, args.positions);
    args.window = config_.window;
    args.scale = 1.0 / std::sqrt(static_cast<double>(config_.head_dim));
    args.cache_k = state_entry(call, 0);
    args.cache_v = state_entry(call, 1);
    const nn::Var o = nn::attention(tape, call.sequences, args);
    return apply_linear(tape, nn::reshape(tape, o, {rows, config_.num_heads * config_.head_dim}),
                        output_, output_bias_);
  }

  std::vector<StateShape> state_shapes() const override {
    const Shape shape = {config_.num_kv_heads, 0, config_.head_dim};
    return {{"cache_k", shape, true}, {"cache_v", shape, true}};
  }
  Tensor fresh_state(const StateShape&) const override { return {}; }

 private:
  AttentionConfig config_;
  const nn::Parameter* query_;
  const nn::Parameter* key_;
  const nn::Parameter* value_;
  const nn::Parameter* output_;
  const nn::Parameter* query_bias_ = nullptr;
  const nn::Parameter* key_bias_ = nullptr;
  const nn::Parameter* value_bias_ = nullptr;
  const nn::Parameter* output_bias_ = nullptr;
};

}  // namespace

std::unique_ptr<TimeMixing> make_attention(const Declare& declare, const AttentionConfig& config) {
  return std::make_unique<AttentionLayer>(declare, config);
}

}  // namespace rankone::model
