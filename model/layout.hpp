#pragma once

// The tensor names of each model type. A layer declares its tensors by role (the names of the table
// of "rankone", docs/formats.md); a layout renames roles to what the type's files hold.

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/config.hpp"
#include "model/parameters.hpp"

namespace rankone::model {

struct Layout {
  std::string embeddings = "model.embeddings.weight";
  std::string embeddings_alias;
  std::string final_norm = "model.norm.weight";
  std::string head = "lm_head.weight";
  std::string layers = "model.layers.";
  std::string mixer = "attn.";
  std::string mixer_norm = "attn_norm.weight";
  std::string mlp = "mlp.";
  std::string mlp_norm = "mlp_norm.weight";
  // Role prefix -> name prefix; the first that fits, so that longer ones come first.
  std::vector<std::pair<std::string_view, std::string_view>> roles;
  // Role -> another name its tensor may have in a file.
  std::vector<std::pair<std::string_view, std::string_view>> aliases;

  std::string renamed(std::string_view role) const;
  std::string alias(std::string_view role) const;  // empty: none
};

const Layout& layout_of(std::string_view model_type);

// Declares the tensors of one layer (or of none: index -1) under its names.
class Declare {
 public:
  Declare(ParameterSet& set, const ModelConfig& config, int layer)
      : set_(set), config_(config), layout_(layout_of(config.model_type)), layer_(layer) {}

  const ModelConfig& config() const { return config_; }
  const Layout& layout() const { return layout_; }
  int layer() const { return layer_; }
  bool kaiming() const { return config_.initializer == Initializer::kaiming_uniform; }

  // A matrix [out, in] of the mixer; `rescale` divides a new value (depth scaling).
  const nn::Parameter* linear(std::string_view role, std::int64_t out, std::int64_t in) const;
  const nn::Parameter* linear(std::string_view role, std::int64_t out, std::int64_t in,
                              Init init) const;
  const nn::Parameter* bias(std::string_view role, std::int64_t size) const;
  // A convolution [channels, width], [channels, 1, width] in the file.
  const nn::Parameter* convolution(std::string_view role, std::int64_t channels,
                                   std::int64_t width) const;
  // Anything else: no weight decay.
  const nn::Parameter* vector(std::string_view role, const Shape& shape, const Shape& file_shape,
                              Init init) const;
  // The MLP's and the block's own, by their full names.
  const nn::Parameter* add(ParameterSpec spec) const { return set_.add(std::move(spec)); }
  std::string prefix() const;  // of the layer
  Init matrix_init(std::int64_t fan_in) const;

 private:
  ParameterSpec spec(std::string_view role, const Shape& shape, Init init) const;

  ParameterSet& set_;
  const ModelConfig& config_;
  const Layout& layout_;
  int layer_;
};

}  // namespace rankone::model
