#pragma once

// Held-out and training text as tokens of a model's tokenizer.

#include <filesystem>

#include "data/tokenizer.hpp"
#include "data/tokens.hpp"
#include "eval/ngram.hpp"

namespace rankone::eval {

// `path`: UTF-8 text or JSONL, a file or a folder; or a token file, as training leaves it beside
// the model, which must have been written with this tokenizer (invalid_argument otherwise).
data::TokenFile open_text(const std::filesystem::path& path, const data::Tokenizer& tokenizer);

// The counts of all documents of a text. EOS is no target, so it is not counted as one.
Ngram count_ngrams(const data::TokenFile& file);

}  // namespace rankone::eval
