#pragma once

// A language model: configuration, parameters and the one data path tokens -> embedding -> layers
// -> norm, which serves training, prefill and decode.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include "core/context.hpp"
#include "core/sequences.hpp"
#include "model/config.hpp"
#include "model/state.hpp"
#include "nn/parameter.hpp"
#include "nn/tape.hpp"

namespace rankone::model {

class Model {
 public:
  // A new model, initialised as the papers' code does from the one seeded generator. dtype: f32, or
  // f64 for the reference backend.
  static Model create(const ModelConfig& config, Dtype dtype, std::uint64_t seed);
  // Reads config.json and model.safetensors (or shards). dtype f32 or f64 widens; bf16 and f16 keep
  // matrices as weight storage for inference.
  static Model load(const std::filesystem::path& directory, Dtype dtype);
  // Writes config.json and model.safetensors atomically; dtype f32, bf16 or f16.
  void save(const std::filesystem::path& directory, Dtype dtype = Dtype::f32) const;

  Model(Model&&) noexcept;
  Model& operator=(Model&&) noexcept;
  ~Model();

  const ModelConfig& config() const;
  Dtype dtype() const;  // of the activations: f32 or f64
  std::vector<nn::Parameter*> parameters();
  std::int64_t parameter_count() const;  // tied weights counted once
  std::int64_t non_embedding_parameter_count() const;
  void enable_gradients();  // allocates Parameter::grad, zero

  // The hidden states after the final norm, [R, hidden]. ids: i32 [R], already checked to be in
  // [0, vocabulary). state: one row per sequence, read and advanced; null: fresh and not kept. With
  // `recompute` a block's activations are made again during backward.
  nn::Var hidden(nn::Tape& tape, const Sequences& sequences, const Tensor& ids, State* state,
                 bool recompute = false) const;
  // [vocabulary, hidden]: the head, or the embedding where they are tied.
  const nn::Parameter& output_weight() const;
  // Logits of some rows of hidden, [n, vocabulary] in the arena.
  Tensor logits(Context& context, const Tensor& hidden, std::span<const std::int64_t> rows) const;

  State make_state(std::int64_t sequences) const;

  struct Impl;

 private:
  explicit Model(std::unique_ptr<Impl> impl);
  void check_call(const nn::Tape& tape, const Sequences& sequences, const Tensor& ids,
                  const State* state) const;
  std::unique_ptr<Impl> impl_;
};

// What a model of a configuration takes, computed from shapes alone.
struct LayerSummary {
  std::int64_t state_bytes = 0;  // of one sequence, float32
  std::int64_t cache_bytes_per_token = 0;
};
struct ModelSummary {
  std::int64_t parameters = 0;
  std::int64_t embedding_parameters = 0;  // embedding and head, once where they are tied
  std::int64_t state_bytes = 0;           // of one sequence, without KV caches
  std::int64_t cache_bytes_per_token = 0;
  std::vector<LayerSummary> layers;
};
ModelSummary summarise(const ModelConfig& config);

}  // namespace rankone::model
