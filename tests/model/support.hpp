#pragma once

// Tiny models for the tests of this layer.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "core/random.hpp"
#include "model/config_mixer.hpp"
#include "model/model.hpp"
#include "recurrence/presets.hpp"

namespace rankone::test {

using model::AttentionConfig;
using model::LayerConfig;
using model::MixerConfig;
using model::Model;
using model::ModelConfig;
using model::State;

inline Context reference_context() { return Context({.threads = 1, .backends = {"reference"}}); }
inline Context cpu_context(int threads = 2) {
  return Context({.threads = threads, .backends = {"cpu", "reference"}});
}

// Grouped value heads: 2 key heads, 4 value heads.
inline MixerConfig tiny_mixer(std::string_view preset) {
  MixerConfig mixer;
  mixer.num_heads = mixer.num_key_heads = 2;
  mixer.num_value_heads = 4;
  mixer.key_dim = 4;
  mixer.value_dim = 3;
  model::apply_preset(mixer, recurrence::preset(preset));
  return mixer;
}

inline ModelConfig tiny_config(const MixerConfig& mixer, int layers = 2) {
  ModelConfig config;
  config.hidden_size = 8;
  config.vocab_size = 13;
  config.initializer = model::Initializer::kaiming_uniform;
  config.initializer_range = 0.5;
  LayerConfig layer;
  layer.mixer = mixer;
  layer.intermediate_size = 6;
  config.layers.assign(static_cast<std::size_t>(layers), layer);
  return config;
}

inline LayerConfig tiny_attention() {
  LayerConfig layer;
  AttentionConfig attention;
  attention.num_heads = 4;
  attention.num_kv_heads = 2;
  attention.head_dim = 2;
  layer.attention = attention;
  layer.intermediate_size = 6;
  return layer;
}

// The Transformer, a hybrid of it with GDN, and every preset.
struct NamedConfig {
  std::string name;
  ModelConfig config;
};
inline std::vector<NamedConfig> tiny_models() {
  std::vector<NamedConfig> list;
  for (const recurrence::MixerPreset& preset : recurrence::presets()) {
    list.push_back({std::string(preset.name), tiny_config(tiny_mixer(preset.name))});
  }
  ModelConfig transformer = tiny_config(tiny_mixer("gdn"));
  for (LayerConfig& layer : transformer.layers) layer = tiny_attention();
  transformer.layers[1].attention->window = 3;
  transformer.layers[1].attention->qkv_bias = true;
  list.push_back({"transformer", transformer});
  ModelConfig hybrid = tiny_config(tiny_mixer("gdn"), 3);
  hybrid.layers[1] = tiny_attention();
  list.push_back({"hybrid", hybrid});
  return list;
}

inline Tensor random_ids(std::int64_t count, std::int64_t vocabulary, std::uint64_t seed) {
  Random random(seed, 77);
  const Tensor ids = Tensor::empty({count}, Dtype::i32);
  for (std::int32_t& id : ids.span<std::int32_t>()) {
    id = static_cast<std::int32_t>(random.below(static_cast<std::uint64_t>(vocabulary)));
  }
  return ids;
}

// Hidden states of a call, a copy.
inline Tensor run_hidden(const Model& model, Context& context, const Sequences& sequences,
                         const Tensor& ids, State* state = nullptr) {
  const ArenaScope scope(context.arena());
  nn::Tape tape(context, nn::Tape::Mode::inference);
  return tape.value(model.hidden(tape, sequences, ids, state)).clone();
}

inline double inner(const Tensor& a, const Tensor& b) {
  const Tensor x = a.to(Dtype::f64), y = b.to(Dtype::f64);
  return std::inner_product(x.data<double>(), x.data<double>() + x.count(), y.data<double>(), 0.0);
}

inline double largest(const Tensor& a) {
  const Tensor x = a.to(Dtype::f64);
  double result = 0;
  for (const double value : x.span<double>()) {
    result = std::isfinite(value) ? std::max(result, std::abs(value)) : INFINITY;
  }
  return result;
}

inline double largest_difference(const Tensor& a, const Tensor& b) {
  const Tensor x = a.to(Dtype::f64), y = b.to(Dtype::f64);
  double result = 0;
  for (std::int64_t i = 0; i < x.count(); ++i) {
    const double difference = std::abs(x.data<double>()[i] - y.data<double>()[i]);
    result = std::isfinite(difference) ? std::max(result, difference) : INFINITY;
  }
  return result;
}

inline bool same_bits(const Tensor& a, const Tensor& b) {
  return a.dtype() == b.dtype() && a.shape() == b.shape() &&
         std::equal(static_cast<const char*>(a.raw()),
                    static_cast<const char*>(a.raw()) + a.bytes(),
                    static_cast<const char*>(b.raw()));
}

inline Tensor random_tensor(const Shape& shape, Dtype dtype, std::uint64_t seed) {
  Random random(seed, 99);
  const Tensor result = Tensor::empty(shape, Dtype::f64);
  for (double& value : result.span<double>()) value = random.normal();
  return result.to(dtype);
}

// Gradients of <hidden, cotangent> into Parameter::grad, which starts at zero.
inline void run_backward(Model& model, Context& context, const Sequences& sequences,
                         const Tensor& ids, const Tensor& cotangent, bool recompute = false) {
  model.enable_gradients();
  const ArenaScope scope(context.arena());
  nn::Tape tape(context, nn::Tape::Mode::training);
  const nn::Var hidden = model.hidden(tape, sequences, ids, nullptr, recompute);
  tape.backward(hidden, cotangent);
}

}  // namespace rankone::test
