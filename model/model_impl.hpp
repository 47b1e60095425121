#pragma once

#include <memory>
#include <string>
#include <vector>

#include "model/layers.hpp"
#include "model/model.hpp"

namespace rankone::model {

// One residual block: x + mixing(norm x), then x + mlp(norm x).
struct Block {
  const nn::Parameter* mixing_norm = nullptr;
  std::unique_ptr<TimeMixing> mixing;
  const nn::Parameter* mlp_norm = nullptr;
  std::unique_ptr<Mlp> mlp;  // null: none
};

struct Model::Impl {
  explicit Impl(ModelConfig config_);

  nn::Var block(nn::Tape& tape, const LayerCall& call, const Block& block, nn::Var x) const;
  State make_state(std::int64_t sequences) const;

  ModelConfig config;
  ParameterSet parameters;
  const nn::Parameter* embeddings = nullptr;
  const nn::Parameter* head = nullptr;  // the embeddings where they are tied
  const nn::Parameter* final_norm = nullptr;
  std::vector<Block> blocks;
  Dtype dtype = Dtype::f32;  // of the activations
};

}  // namespace rankone::model
