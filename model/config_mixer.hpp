#pragma once

// The keys of a mixer and of an attention layer, their defaults from presets, and what goes
// together.

#include "model/config.hpp"
#include "model/config_reader.hpp"

namespace rankone::model {

// Reads the keys of `reader` over what `config` holds.
void read_mixer(ConfigReader& reader, MixerConfig& config);
Json write_mixer(const MixerConfig& config);
void read_attention(ConfigReader& reader, AttentionConfig& config);
Json write_attention(const AttentionConfig& config);

// The layer keys of a preset; sizes are kept.
void apply_preset(MixerConfig& config, const recurrence::MixerPreset& preset);
// Keys that have no effect beside the others get their defaults, so that equal mixers compare
// equal.
void normalise(MixerConfig& config);
// Fails where sizes are out of range or keys do not go together.
void check_mixer(const MixerConfig& config, const std::string& where);

}  // namespace rankone::model
