#pragma once

// A training run from its configuration to the model directory.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "train/config.hpp"
#include "train/validation.hpp"

namespace rankone::train {

struct RunOptions {
  RunConfig config;
  std::filesystem::path data;
  std::filesystem::path out;
  std::optional<std::filesystem::path> valid;
  std::optional<std::filesystem::path> tokenizer;
  int threads = 0;  // 0: as many as the machine allows
  bool resume = false;
};

struct RunResult {
  std::int64_t steps = 0;
  std::int64_t tokens = 0;
  double loss = 0;  // of the last step
  std::optional<Validation> validation;
  double tokens_per_s = 0;  // of the steps of this process, without validation and checkpoints
};

// Trains, or resumes, and leaves in options.out: config.json, model.safetensors, tokenizer.model,
// train.tokens and valid.tokens, metrics.jsonl, a TensorBoard event file and checkpoints/. Talks
// about its progress on standard output. Errors: invalid_argument for what can not be meant (a
// folder that holds a run already, a changed configuration), corrupt for damaged files, failed for
// a loss or gradient that is not finite and for a disk that refuses to be written.
RunResult run_training(const RunOptions& options);

}  // namespace rankone::train
