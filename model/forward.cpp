// The one data path: tokens -> embedding -> blocks -> norm, for training, prefill and decode.

#include "core/status.hpp"
#include "model/model_impl.hpp"

namespace rankone::model {

nn::Var Model::hidden(nn::Tape& tape, const Sequences& sequences, const Tensor& ids, State* state,
                      bool recompute) const {
  const Impl& model = *impl_;
  check_call(tape, sequences, ids, state);
  const LayerCall call{sequences, state, state != nullptr && sequences.longest() <= 1};
  nn::Var x = nn::embedding(tape, ids, tape.parameter(*model.embeddings));
  for (const Block& block : model.blocks) {
    const auto run = [&model, call, &block](nn::Tape& inner, nn::Var input) {
      return model.block(inner, call, block, input);
    };
    x = tape.checkpoint(x, run, recompute);
  }
  if (state != nullptr && !tape.context().planning()) state->advance(sequences);
  return nn::rms_norm(tape, x, tape.parameter(*model.final_norm), model.config.norm_eps);
}

nn::Var Model::Impl::block(nn::Tape& tape, const LayerCall& call, const Block& block,
                           nn::Var x) const {
  const auto normed = [&](nn::Var value, const nn::Parameter* weight) {
    return nn::rms_norm(tape, value, tape.parameter(*weight), config.norm_eps);
  };
  x = nn::add(tape, x, block.mixing->forward(tape, call, normed(x, block.mixing_norm)));
  if (block.mlp == nullptr) return x;
  return nn::add(tape, x, block.mlp->forward(tape, normed(x, block.mlp_norm)));
}

void Model::check_call(const nn::Tape& tape, const Sequences& sequences, const Tensor& ids,
                       const State* state) const {
  require(ids.defined() && ids.dtype() == Dtype::i32 && ids.count() == sequences.rows(),
          "[model] ids must be i32, one for each of {} rows", sequences.rows());
  if (state == nullptr) return;
  require(!tape.recording(), "[model] a state can not be trained through (pass none)");
  require(state->sequences() == sequences.count(),
          "[model] the state has {} sequences, the call {} (must be equal)", state->sequences(),
          sequences.count());
  require(state->room() >= sequences.longest(),
          "[model] the KV cache has no room for {} more tokens (call State::reserve first)",
          sequences.longest());
}

}  // namespace rankone::model
