#pragma once

// The model types: how each reads and writes the keys of its config.json.

#include <span>
#include <string_view>

#include "model/config.hpp"
#include "model/config_reader.hpp"

namespace rankone::model {

struct ModelType {
  std::string_view name;
  std::string_view architecture;  // the class that other readers load it with; empty: none
  Initializer initializer;        // of a new model where the config names none
  // Fills the layers and what the type has of its own; the common keys are read before.
  void (*read)(ConfigReader& reader, ModelConfig& config);
  // Adds its keys. May write less than the config holds: what it writes is read back and compared.
  void (*write)(const ModelConfig& config, Json& root);
};

std::span<const ModelType> fla_types();    // of flash-linear-attention, beside mamba2
std::span<const ModelType> other_types();  // mamba2, llama, kla, rankone
// Null: there is none of this name.
const ModelType* find_type(std::string_view name);

// Shared by the types.
std::int64_t read_layer_count(ConfigReader& reader, std::int64_t otherwise);
std::int64_t read_intermediate_size(ConfigReader& reader, std::int64_t hidden_size);
// All layers with this mixer and MLP, but those that the `attn` key gives to softmax attention.
void fill_layers(ConfigReader& reader, ModelConfig& config, const MixerConfig& mixer,
                 std::int64_t default_layers = 24);
void write_layers(const ModelConfig& config, Json& root);
// The first mixer of the config: the type's keys describe it, and so all others.
const MixerConfig& first_mixer(const ModelConfig& config);
// Factor f such that int(size * f) == width.
double factor_of(std::int64_t width, std::int64_t size);

// The keys of gated_deltanet, which kla shares.
MixerConfig read_gated_deltanet(ConfigReader& reader);
void write_gated_deltanet(const MixerConfig& mixer, Json& root);

}  // namespace rankone::model
