#pragma once

// The configuration of a training run: configs/NAME.json = {"model": {...}, "train": {...}}.

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.hpp"

namespace rankone::train {

// The keys of "train", with their defaults. Ranges are in config.cpp; docs/formats.md lists both.
struct TrainConfig {
  std::int64_t seq_len = 512;        // tokens of a training piece; the state is fresh at its start
  std::int64_t batch_tokens = 8192;  // tokens of one optimiser step
  std::int64_t micro_batch_tokens =
      0;  // at most so many at a time, gradients added; 0: all at once
  std::int64_t steps = 1000;
  double lr = 1e-3;              // peak learning rate
  double lr_min_fraction = 0.1;  // the cosine ends at lr * lr_min_fraction
  std::int64_t warmup = 0;       // steps of linear warm-up
  double weight_decay = 0.1;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double clip = 1.0;                 // largest norm of the gradient; 0: not clipped
  std::uint64_t seed = 42;           // of the initial weights and of the order of the data
  double valid_fraction = 0.05;      // held out of the training text where there is no --valid
  std::int64_t vocab_size = 4096;    // of the tokenizer that is made where --tokenizer is not given
  std::int64_t log_every = 1;        // steps of a line of metrics.jsonl
  std::int64_t eval_every = 100;     // steps between validations; 0: only at the end
  std::int64_t eval_tokens = 16384;  // validation tokens scored each time, always the same ones
  std::int64_t checkpoint_every = 0;  // steps between checkpoints; 0: every five minutes
  bool recompute = false;  // make the activations of a block again in its backward: less memory
};

// Reads and checks the value of "train". An unknown key fails with the name of the nearest one, a
// value out of its range with the range (Status::invalid_argument).
TrainConfig parse_train_config(const Json& value);
Json to_json(const TrainConfig& config);

// A whole run: the model's keys, which the model layer judges, and the training ones.
struct RunConfig {
  Json model;  // a config.json
  TrainConfig train;
};

// Changes to a configuration, from the command line.
struct Overrides {
  std::string mixer;  // a preset's name, or empty: all mixers become it, their sizes stay
  // "train.KEY=VALUE", "model.KEY=VALUE" or "mixer.KEY=VALUE" (short for model.mixer.KEY), applied
  // in this order and after `mixer`. VALUE is JSON, or else a string.
  std::vector<std::string> settings;
};
RunConfig read_run_config(const std::filesystem::path& file, const Overrides& overrides);
RunConfig parse_run_config(std::string_view text, std::string_view where,
                           const Overrides& overrides);

// The first difference between two JSON texts as "train.lr was 0.001, now 0.002"; empty: none.
std::string first_difference(std::string_view before, std::string_view now);

}  // namespace rankone::train
