#pragma once

// Checkpoints of a training run: everything that resuming bit for bit needs. The file format is in
// docs/formats.md.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/safetensors.hpp"

namespace rankone::train {

// The order of the data and the initial weights come from a counter-based generator: seed and step
// are its whole state, and the position in the data.
struct Checkpoint {
  std::int64_t step = 0;    // optimiser steps done
  std::int64_t tokens = 0;  // trained on so far
  std::string config;       // JSON {"model", "train"}
  std::string data;         // hash of the training text
  std::string valid;        // hash of the validation text
  std::string tokenizer;    // hash of tokenizer.model
  TensorFile state;         // "parameter.NAME", "m.NAME", "v.NAME"
};

std::string format_checkpoint(const Checkpoint& checkpoint);
// Fails with corrupt, whatever the bytes are; `where` names them in the message.
Checkpoint parse_checkpoint(std::span<const std::byte> bytes, std::string_view where);

// Writes DIRECTORY/step-N.ckpt atomically and, once it is durable, removes all but the two newest.
void write_checkpoint(const std::filesystem::path& directory, const Checkpoint& checkpoint);

// Steps of the checkpoints in DIRECTORY, increasing; none if there is no such folder.
std::vector<std::int64_t> checkpoint_steps(const std::filesystem::path& directory);

// The newest checkpoint whose checksum holds. A damaged one is reported to `warn` and renamed to
// step-N.ckpt.corrupt, so that it does not count as one of the two that are kept. No checkpoint at
// all: nothing; all damaged: Error (corrupt). Removes what an interrupted write left behind.
std::optional<Checkpoint> newest_checkpoint(
    const std::filesystem::path& directory,
    const std::function<void(const std::string& message)>& warn);

}  // namespace rankone::train
