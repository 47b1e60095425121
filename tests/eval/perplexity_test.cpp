// Which targets are scored, given what, and how the figures follow; with predictors that only keep
// accounts.

#include "eval/perplexity.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <numbers>

#include "core/random.hpp"
#include "core/status.hpp"
#include "tests/data_layer/text.hpp"
#include "tests/support/scratch.hpp"

namespace rankone::eval {
namespace {

using data::Document;
using data::TokenFile;
using data::Tokenizer;

const Tokenizer& tokenizer() {
  static const Tokenizer result = [] {
    const std::string text = test::make_text(1, 30'000);
    const std::array<std::string_view, 1> texts{text};
    return Tokenizer::train(texts, 330);
  }();
  return result;
}

TokenFile token_file(const test::Scratch& scratch, const std::vector<std::size_t>& bytes) {
  std::vector<Document> documents;
  for (const std::size_t size : bytes) {
    documents.push_back({"text", size == 0 ? "" : test::make_text(documents.size() + 5, size)});
  }
  TokenFile::build(scratch / "tokens", documents, tokenizer());
  return TokenFile::open(scratch / "tokens");
}

// Remembers what each target was given, if wanted. Its loss depends on that.
class Recorder final : public Scorer {
 public:
  explicit Recorder(bool contexts = true) : contexts_(contexts) {}
  struct Entry {
    std::vector<std::int32_t> context;  // since the fresh state
    std::int32_t target;
    double loss;
  };
  std::vector<Entry> entries;
  std::size_t largest_call = 0;

  void score(const Sequences& sequences, std::span<const std::int32_t> ids,
             std::span<const std::int32_t> targets, std::span<double> losses) override {
    EXPECT_EQ(sequences.rows(), static_cast<std::int64_t>(ids.size()));
    for (std::int64_t n = 0; n < sequences.count(); ++n) {
      const auto first = static_cast<std::size_t>(sequences.begin(n));
      const auto length = static_cast<std::size_t>(sequences.length(n));
      begin();
      read(ids.subspan(first, length), targets.subspan(first, length),
           losses.subspan(first, length));
    }
    largest_call = std::max(largest_call, ids.size());
  }
  void begin() override { context_.clear(); }
  void score_next(std::span<const std::int32_t> ids, std::span<const std::int32_t> targets,
                  std::span<double> losses) override {
    read(ids, targets, losses);
    largest_call = std::max(largest_call, ids.size());
  }

 private:
  void read(std::span<const std::int32_t> ids, std::span<const std::int32_t> targets,
            std::span<double> losses) {
    for (std::size_t i = 0; i < ids.size(); ++i) {
      context_.push_back(ids[i]);
      losses[i] = 0;
      if (targets[i] < 0) continue;
      const double loss = 1.0 + 0.001 * static_cast<double>(context_.size() % 97) +
                          0.01 * (targets[i] % 13) + 0.02 * (ids[i] % 7);
      entries.push_back({contexts_ ? context_ : std::vector<std::int32_t>{}, targets[i], loss});
      losses[i] = loss;
    }
  }
  bool contexts_;
  std::vector<std::int32_t> context_;
};

std::vector<std::int32_t> tokens_of(const TokenFile& file, std::int64_t document) {
  std::vector<std::int32_t> tokens;
  for (std::int64_t at = file.begin(document); at < file.end(document); ++at) {
    tokens.push_back(file[at]);
  }
  return tokens;
}

TEST(Perplexity, WholeDocumentsScoreEveryPieceOnceGivenAllBefore) {
  const test::Scratch scratch;
  const TokenFile file = token_file(scratch, {900, 0, 12'000, 1, 300});
  const Vocabulary vocabulary = vocabulary_of(tokenizer());
  for (const std::int64_t rows : {1, 7, 512, 100'000}) {
    Recorder recorder;
    PerplexityOptions options;
    options.rows = rows;
    const std::vector<Score> scores = evaluate(recorder, file, vocabulary, options);
    ASSERT_EQ(scores.size(), 1U);
    EXPECT_LE(recorder.largest_call, static_cast<std::size_t>(rows));
    std::size_t next = 0;
    double nats = 0;
    std::int64_t bytes = 0;
    for (std::int64_t document = 0; document < file.documents(); ++document) {
      const std::vector<std::int32_t> tokens = tokens_of(file, document);
      bytes += file.document_bytes(document);
      // The last token is EOS.
      for (std::size_t i = 1; i + 1 < tokens.size(); ++i, ++next) {
        ASSERT_LT(next, recorder.entries.size());
        const Recorder::Entry& entry = recorder.entries[next];
        EXPECT_EQ(entry.target, tokens[i]);
        ASSERT_EQ(entry.context.size(), i);
        EXPECT_TRUE(std::equal(entry.context.begin(), entry.context.end(), tokens.begin()));
        nats += entry.loss;
      }
    }
    EXPECT_EQ(next, recorder.entries.size());
    const Score& score = scores[0];
    EXPECT_EQ(score.length, 0);
    EXPECT_EQ(score.targets, static_cast<std::int64_t>(next));
    EXPECT_EQ(score.documents, 4);
    EXPECT_EQ(score.bytes, bytes);
    EXPECT_NEAR(score.nats.value, nats / static_cast<double>(next), 1e-12);
    EXPECT_NEAR(score.perplexity, std::exp(nats / static_cast<double>(next)), 1e-12);
    EXPECT_NEAR(score.bits_per_byte.value, nats / std::numbers::ln2 / static_cast<double>(bytes),
                1e-12);
  }
}

TEST(Perplexity, EveryLengthScoresTheSameBlocksGivenItsOwnContext) {
  const test::Scratch scratch;
  const TokenFile file = token_file(scratch, {900, 30'000, 9'000, 300});
  const Vocabulary vocabulary = vocabulary_of(tokenizer());
  const std::vector<std::int64_t> lengths{512, 1000, 2048};
  std::vector<std::vector<std::int32_t>> all_tokens;
  for (std::int64_t d = 0; d < file.documents(); ++d) all_tokens.push_back(tokens_of(file, d));
  for (const std::int64_t rows : {300, 5000}) {
    Recorder recorder;
    PerplexityOptions options;
    options.lengths = lengths;
    options.rows = rows;
    const std::vector<Score> scores = evaluate(recorder, file, vocabulary, options);
    ASSERT_EQ(scores.size(), 3U);
    // The targets that the issue describes, counted anew: all pieces in blocks that end at 2,048,
    // 2,560, ... pieces into a document.
    std::vector<std::pair<std::int64_t, std::int64_t>> right;  // document, piece
    for (std::int64_t document = 0; document < file.documents(); ++document) {
      const std::int64_t pieces = file.end(document) - file.begin(document) - 2;
      for (std::int64_t end = 2048; end <= pieces; end += 512) {
        for (std::int64_t piece = end - 512; piece < end; ++piece) {
          right.emplace_back(document, piece);
        }
      }
    }
    ASSERT_GE(right.size(), 1024U);
    ASSERT_EQ(recorder.entries.size(), 3 * right.size());
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      EXPECT_EQ(scores[i].length, lengths[i]);
      EXPECT_EQ(scores[i].targets, static_cast<std::int64_t>(right.size()));
      EXPECT_EQ(scores[i].bytes, scores[0].bytes);
      for (std::size_t j = 0; j < right.size(); ++j) {
        const auto [document, piece] = right[j];
        const Recorder::Entry& entry = recorder.entries[i * right.size() + j];
        const std::vector<std::int32_t>& tokens = all_tokens[static_cast<std::size_t>(document)];
        const auto at = static_cast<std::size_t>(piece) + 1;  // after BOS
        EXPECT_EQ(entry.target, tokens[at]);
        // BOS, then the L - 512 pieces before the block and those of the block.
        const std::size_t before =
            static_cast<std::size_t>(lengths[i]) - 512 + j % 512;  // pieces since BOS
        ASSERT_EQ(entry.context.size(), before + 1);
        EXPECT_EQ(entry.context[0], tokenizer().bos());
        EXPECT_TRUE(std::equal(entry.context.begin() + 1, entry.context.end(),
                               tokens.begin() + static_cast<std::ptrdiff_t>(at - before)));
      }
    }
  }
}

TEST(Perplexity, FewerBlocksAreSpreadOverTheText) {
  const test::Scratch scratch;
  const TokenFile file = token_file(scratch, {60'000});
  PerplexityOptions options;
  options.lengths = {512};
  Recorder all;
  const Score whole = evaluate(all, file, vocabulary_of(tokenizer()), options)[0];
  ASSERT_GE(whole.targets, 8 * 512);
  options.most_blocks = 4;
  Recorder some;
  const Score part = evaluate(some, file, vocabulary_of(tokenizer()), options)[0];
  EXPECT_EQ(part.targets, 4 * 512);
  const auto blocks = static_cast<std::size_t>(whole.targets / 512);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(some.entries[i * 512].context, all.entries[i * blocks / 4 * 512].context);
    EXPECT_EQ(some.entries[i * 512].target, all.entries[i * blocks / 4 * 512].target);
  }
}

TEST(Perplexity, ErrorsAreOverDocumentsOrOverBlocksOfTargets) {
  const test::Scratch scratch;
  const Vocabulary vocabulary = vocabulary_of(tokenizer());
  for (const std::size_t documents : {19U, 20U}) {
    const TokenFile file = token_file(scratch, std::vector<std::size_t>(documents, 6'000));
    Recorder recorder(false);
    const Score score = evaluate(recorder, file, vocabulary, {})[0];
    EXPECT_EQ(score.documents, static_cast<std::int64_t>(documents));
    EXPECT_EQ(score.units_are_documents, documents == 20);
    std::vector<Unit> units;
    std::size_t next = 0;
    for (std::int64_t document = 0; document < file.documents(); ++document) {
      const std::int64_t pieces = file.end(document) - file.begin(document) - 2;
      for (std::int64_t i = 0; i < pieces; ++i, ++next) {
        if (i == 0 || (documents < 20 && i % 1024 == 0)) units.emplace_back();
        units.back().total += recorder.entries[next].loss;
        units.back().size += 1;
      }
    }
    EXPECT_EQ(score.units, static_cast<std::int64_t>(units.size()));
    EXPECT_NEAR(score.nats.standard_error, mean_of(units).standard_error, 1e-12);
    EXPECT_GT(score.nats.standard_error, 0);
    EXPECT_NEAR(score.perplexity_error, score.perplexity * score.nats.standard_error, 1e-12);
    EXPECT_GT(score.bits_per_byte.standard_error, 0);
  }
}

TEST(Perplexity, ProgressCountsAllRows) {
  const test::Scratch scratch;
  const TokenFile file = token_file(scratch, {9'000});
  PerplexityOptions options;
  options.lengths = {512, 700};
  options.rows = 600;
  std::int64_t last = 0, all = 0;
  options.progress = [&](std::int64_t done, std::int64_t rows) {
    EXPECT_GT(done, last);
    last = done;
    all = rows;
  };
  Recorder recorder(false);
  evaluate(recorder, file, vocabulary_of(tokenizer()), options);
  EXPECT_GT(all, 0);
  EXPECT_EQ(last, all);
}

template <class Call>
std::string refusal(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), Status::invalid_argument);
    return error.what();
  }
  return "accepted";
}

TEST(Perplexity, RefusesWhatCanNotBeScored) {
  const test::Scratch scratch;
  const Vocabulary vocabulary = vocabulary_of(tokenizer());
  Recorder recorder(false);
  const auto evaluated = [&](const TokenFile& file, PerplexityOptions options) {
    return refusal([&] { evaluate(recorder, file, vocabulary, options); });
  };
  const auto at = [](std::vector<std::int64_t> lengths) {
    PerplexityOptions options;
    options.lengths = std::move(lengths);
    return options;
  };
  {
    const TokenFile file = token_file(scratch, {9'000, 300});
    const std::int64_t pieces = file.end(0) - file.begin(0) - 2;
    EXPECT_EQ(
        evaluated(file, at({512, 100'000})),
        "[eval] length 100000 is more than any document has pieces, the longest usable length "
        "is " +
            std::to_string(pieces));
    EXPECT_EQ(evaluated(file, at({pieces})), "accepted");
    EXPECT_NE(evaluated(file, at({pieces + 1})), "accepted");
    EXPECT_EQ(evaluated(file, at({511})), "[eval] length 511 is less than a block of 512 targets");
    PerplexityOptions none;
    none.rows = 0;
    EXPECT_NE(evaluated(file, none), "accepted");
    PerplexityOptions negative;
    negative.most_blocks = -1;
    EXPECT_NE(evaluated(file, negative), "accepted");
    Vocabulary small = vocabulary;
    small.piece_bytes.resize(10);
    EXPECT_NE(refusal([&] { evaluate(recorder, file, small, {}); }), "accepted");
  }
  {
    const TokenFile file = token_file(scratch, {0, 0});
    EXPECT_EQ(evaluated(file, {}), "[eval] the text has no piece to score");
  }
}

}  // namespace
}  // namespace rankone::eval
