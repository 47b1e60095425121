#pragma once

// Perplexity and bits per byte of held-out text. Only pieces of the text are scored: BOS is given,
// EOS is scored nowhere, and there is no padding.

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "data/tokenizer.hpp"
#include "data/tokens.hpp"
#include "eval/scorer.hpp"
#include "eval/statistics.hpp"

namespace rankone::eval {

// What evaluation needs to know of a tokenizer.
struct Vocabulary {
  std::int32_t bos = 0;
  std::vector<std::int32_t> piece_bytes;  // UTF-8 bytes that each id stands for
};
Vocabulary vocabulary_of(const data::Tokenizer& tokenizer);

inline constexpr std::int64_t kTargetBlock = 512;     // pieces scored together by length
inline constexpr std::int64_t kUnitTargets = 1024;    // of a unit where documents are few
inline constexpr std::int64_t kFewestDocuments = 20;  // that are units themselves

struct PerplexityOptions {
  // Empty: every document is read from its start with its state carried, and every piece is scored.
  // Else context lengths, each at least kTargetBlock. Targets are the blocks of 512 pieces that end
  // at least max(lengths) pieces into a document, one after the other; at length L a block is
  // scored after BOS and the L - 512 pieces before it, from a fresh state, so every length scores
  // the same targets.
  std::vector<std::int64_t> lengths;
  std::int64_t most_blocks = 0;  // with lengths: score only so many, spread evenly; 0: all
  std::int64_t rows = 4096;      // most rows in one call: bounds the memory
  std::function<void(std::int64_t done, std::int64_t rows)> progress;  // after each call
};

struct Score {
  std::int64_t length = 0;  // of the context and the block; 0: whole documents
  std::int64_t targets = 0;
  std::int64_t bytes = 0;            // UTF-8 bytes of the targets
  std::int64_t documents = 0;        // that have targets
  std::int64_t units = 0;            // over which the standard errors are taken
  bool units_are_documents = false;  // else blocks of at most kUnitTargets targets of one document
  Mean nats;                         // per target
  Mean bits_per_byte;
  double perplexity = 0;
  double perplexity_error = 0;  // standard error, exp linearised
};

// One score for each length in the order given, or one for whole documents. Fails with
// invalid_argument where there is nothing to score: the message says the longest usable length.
std::vector<Score> evaluate(Scorer& scorer, const data::TokenFile& file,
                            const Vocabulary& vocabulary, const PerplexityOptions& options);

}  // namespace rankone::eval
