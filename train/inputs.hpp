#pragma once

// What a run reads: text, tokenizer, token files, and their hashes, by which a resumed run knows
// that it goes on with the same ones.

#include <filesystem>
#include <optional>
#include <string>

#include "data/tokenizer.hpp"
#include "data/tokens.hpp"
#include "train/checkpoint.hpp"
#include "train/loop.hpp"

namespace rankone::train {

struct Inputs {
  data::Tokenizer tokenizer;
  data::TokenFile train;
  std::optional<data::TokenFile> valid;  // none: no document is long enough to hold some out
  std::string data_hash;
  std::string valid_hash;
};

// Reads the text, makes or loads the tokenizer and writes train.tokens, valid.tokens and
// tokenizer.model into options.out. With `resumed`, text and tokenizer must be those of the
// checkpoint (invalid_argument names the one that changed), and token files that are still good are
// used again.
Inputs prepare_inputs(const RunOptions& options, const std::optional<Checkpoint>& resumed);

}  // namespace rankone::train
