#include "train/inputs.hpp"

#include <span>
#include <string_view>
#include <vector>

#include "core/files.hpp"
#include "core/status.hpp"
#include "train/writing.hpp"

namespace rankone::train {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kDefaultVocabulary = 4096;

// Of the texts in their order, whatever their files are called.
std::string hash_of(std::span<const data::Document> documents) {
  Sha256 hash;
  for (const data::Document& document : documents) {
    const std::uint64_t length = document.text.size();
    hash.update(std::as_bytes(std::span(&length, 1)));
    hash.update(std::as_bytes(std::span(document.text)));
  }
  return hash.finish();
}

void require_same(std::string_view what, const std::string& before, const std::string& now) {
  require(
      before == now,
      "[train] --resume: {} changed since the checkpoint, its hash was {:.12}, now {:.12} (resume "
      "with the same one, or train into another folder)",
      what, before, now);
}

std::int64_t vocabulary(const RunConfig& config) {
  if (config.train.vocab_size > 0) return config.train.vocab_size;
  const auto given = config.model.find("vocab_size");
  return given != config.model.end() && given->is_number_integer() ? given->get<std::int64_t>()
                                                                   : kDefaultVocabulary;
}

data::Tokenizer make_tokenizer(const RunOptions& options, std::span<const data::Document> texts,
                               bool resumed) {
  if (options.tokenizer) return data::Tokenizer::load(*options.tokenizer);
  if (resumed) return data::Tokenizer::load(options.out / "tokenizer.model");
  std::vector<std::string_view> views;
  for (const data::Document& document : texts) views.emplace_back(document.text);
  return data::Tokenizer::train(views, vocabulary(options.config));
}

// A token file that an earlier process of this run wrote, if it is whole and of this tokenizer.
std::optional<data::TokenFile> open_again(const fs::path& file, const data::Tokenizer& tokenizer) {
  if (!fs::exists(file)) return std::nullopt;
  try {
    data::TokenFile tokens = data::TokenFile::open(file);
    if (tokens.tokenizer_hash() == tokenizer.hash()) return tokens;
  } catch (const Error& error) {
    if (error.status() != Status::corrupt) throw;
  }
  return std::nullopt;
}

data::TokenFile make_tokens(const fs::path& file, std::span<const data::Document> documents,
                            const data::Tokenizer& tokenizer, bool resumed) {
  if (resumed) {
    if (auto tokens = open_again(file, tokenizer)) return std::move(*tokens);
  }
  writing([&] { data::TokenFile::build(file, documents, tokenizer); });
  return data::TokenFile::open(file);
}

}  // namespace

Inputs prepare_inputs(const RunOptions& options, const std::optional<Checkpoint>& resumed) {
  data::Split split;
  split.train = data::read_documents(options.data);
  const std::string data_hash = hash_of(split.train);
  if (resumed) require_same("the training text", resumed->data, data_hash);
  if (options.valid) {
    split.valid = data::read_documents(*options.valid);
  } else {
    split = data::hold_out(std::move(split.train), options.config.train.valid_fraction);
  }
  require(!split.train.empty(), "[train] {} holds no text", options.data.string());
  const std::string valid_hash = hash_of(split.valid);
  if (resumed) require_same("the validation text", resumed->valid, valid_hash);

  data::Tokenizer tokenizer = make_tokenizer(options, split.train, resumed.has_value());
  if (resumed) require_same("the tokenizer", resumed->tokenizer, tokenizer.hash());
  writing([&] { tokenizer.save(options.out / "tokenizer.model"); });
  data::TokenFile train =
      make_tokens(options.out / "train.tokens", split.train, tokenizer, resumed.has_value());
  std::optional<data::TokenFile> valid;
  if (!split.valid.empty()) {
    valid = make_tokens(options.out / "valid.tokens", split.valid, tokenizer, resumed.has_value());
  }
  return {std::move(tokenizer), std::move(train), std::move(valid), data_hash, valid_hash};
}

}  // namespace rankone::train
