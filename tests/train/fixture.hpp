#pragma once

// A tokenizer, token files and a small model, as the tests of training need them.

#include <string>
#include <vector>

#include "data/tokenizer.hpp"
#include "data/tokens.hpp"
#include "model/config.hpp"
#include "model/model.hpp"
#include "tests/train/files.hpp"
#include "train/config.hpp"
#include "train/generated_text.hpp"

namespace rankone::train::test {

using rankone::test::Scratch;

inline constexpr std::int64_t kVocabulary = 300;

inline Json model_json(const std::string& type) {
  return {{"model_type", type},      {"hidden_size", 32},
          {"num_heads", 2},          {"head_dim", 16},
          {"expand_v", 1.0},         {"num_hidden_layers", 2},
          {"intermediate_size", 64}, {"tie_word_embeddings", true}};
}

inline model::ModelConfig model_config(const std::string& type) {
  Json json = model_json(type);
  json["vocab_size"] = kVocabulary;
  return model::config_from_json(json, "test", true);
}

struct Corpus {
  explicit Corpus(const Scratch& folder, std::size_t bytes = 30000)
      : documents{{"a", rankone::test::generated_text(1, bytes)},
                  {"b", rankone::test::generated_text(2, bytes / 3)}},
        tokenizer(data::Tokenizer::train(texts(), kVocabulary)),
        file(make(folder)) {}

  std::vector<std::string_view> texts() const {
    std::vector<std::string_view> views;
    for (const data::Document& document : documents) views.emplace_back(document.text);
    return views;
  }
  data::TokenFile make(const Scratch& folder) const {
    data::TokenFile::build(folder / "corpus.tokens", documents, tokenizer);
    return data::TokenFile::open(folder / "corpus.tokens");
  }

  std::vector<data::Document> documents;
  data::Tokenizer tokenizer;
  data::TokenFile file;
};

inline TrainConfig train_config() {
  TrainConfig config;
  config.seq_len = 64;
  config.batch_tokens = 512;
  config.steps = 10;
  config.lr = 1e-2;
  config.warmup = 2;
  return config;
}

}  // namespace rankone::train::test
