// A model as a scorer: its losses are those of its logits, however a text is cut.

#include "eval/model_scorer.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "core/files.hpp"
#include "core/random.hpp"
#include "core/status.hpp"
#include "eval/text.hpp"
#include "tests/data_layer/text.hpp"
#include "tests/support/scratch.hpp"

namespace rankone::eval {
namespace {

constexpr std::int64_t kVocabulary = 330;

model::Model make_model(const std::string& type, std::int64_t vocabulary = kVocabulary) {
  const std::string softmax = R"({"model_type": "llama", "hidden_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 3, "intermediate_size": 64, "vocab_size": )";
  const std::string recurrent = R"({"model_type": "kla", "hidden_size": 48, "num_hidden_layers": 2,
    "num_heads": 2, "head_dim": 16, "expand_v": 1.0, "intermediate_size": 64, "vocab_size": )";
  const std::string text =
      (type == "llama" ? softmax : recurrent) + std::to_string(vocabulary) + "}";
  model::Model model = model::Model::create(model::parse_config(text, "test"), Dtype::f32, 3);
  // A new model predicts all pieces alike; larger weights make it depend on what it read.
  for (nn::Parameter* parameter : model.parameters()) {
    if (parameter->value.rank() != 2) continue;
    for (float& weight : parameter->value.span<float>()) weight *= 3;
  }
  return model;
}

std::vector<std::int32_t> random_ids(Random& random, std::size_t count) {
  std::vector<std::int32_t> ids(count);
  for (std::int32_t& id : ids) id = static_cast<std::int32_t>(random.below(kVocabulary));
  return ids;
}

std::vector<double> losses_of_logits(const model::Model& model, Context& context,
                                     const Sequences& sequences, std::vector<std::int32_t> ids,
                                     const std::vector<std::int32_t>& targets) {
  const ArenaScope scope(context.arena());
  nn::Tape tape(context, nn::Tape::Mode::inference);
  const Tensor view = Tensor::view(ids.data(), {sequences.rows()}, Dtype::i32);
  const Tensor hidden = tape.value(model.hidden(tape, sequences, view, nullptr));
  std::vector<std::int64_t> rows;
  for (std::int64_t row = 0; row < sequences.rows(); ++row) rows.push_back(row);
  const Tensor logits = model.logits(context, hidden, rows).to(Dtype::f64);
  std::vector<double> losses;
  for (std::size_t row = 0; row < ids.size(); ++row) {
    const double* all = logits.data<double>() + static_cast<std::int64_t>(row) * kVocabulary;
    double total = 0;
    for (std::int64_t i = 0; i < kVocabulary; ++i) total += std::exp(all[i]);
    losses.push_back(targets[row] < 0 ? 0 : std::log(total) - all[targets[row]]);
  }
  return losses;
}

TEST(ModelScorer, LossesAreThoseOfTheLogits) {
  Random random(1);
  for (const char* type : {"kla", "llama"}) {
    const model::Model model = make_model(type);
    Context context({.threads = 2});
    const std::vector<std::int64_t> cu{0, 40, 41, 41, 130};
    const Sequences sequences = Sequences::packed(cu);
    const std::vector<std::int32_t> ids = random_ids(random, 130);
    std::vector<std::int32_t> targets = random_ids(random, 130);
    for (std::size_t i = 0; i < targets.size(); i += 3) targets[i] = -1;
    const std::vector<double> right = losses_of_logits(model, context, sequences, ids, targets);
    std::vector<double> losses(130, 99);
    ModelScorer scorer(model, context);
    scorer.score(sequences, ids, targets, losses);
    double spread = 0;
    for (std::size_t i = 0; i < losses.size(); ++i) {
      EXPECT_NEAR(losses[i], right[i], 1e-4) << type << ' ' << i;
      spread = std::max(spread, std::abs(losses[i] - losses[1]));
    }
    EXPECT_GT(spread, 0.5);
    // Nothing scored, nothing said.
    std::fill(targets.begin(), targets.end(), -1);
    scorer.score(sequences, ids, targets, losses);
    for (const double loss : losses) EXPECT_EQ(loss, 0);
  }
}

TEST(ModelScorer, PiecesGoOnFromTheStateOfTheLast) {
  Random random(2);
  for (const char* type : {"kla", "llama"}) {
    const model::Model model = make_model(type);
    Context context({.threads = 2});
    const std::vector<std::int32_t> ids = random_ids(random, 300);
    const std::vector<std::int32_t> targets = random_ids(random, 300);
    std::vector<double> whole(300), pieces(300);
    ModelScorer scorer(model, context);
    scorer.score(Sequences::dense(1, 300), ids, targets, whole);
    for (int round = 0; round < 2; ++round) {  // begin() forgets the first round
      scorer.begin();
      std::size_t at = 0;
      for (const std::size_t length : {1UL, 2UL, 100UL, 64UL, 133UL}) {
        scorer.score_next(std::span(ids).subspan(at, length),
                          std::span(targets).subspan(at, length),
                          std::span(pieces).subspan(at, length));
        at += length;
      }
      for (std::size_t i = 0; i < 300; ++i) EXPECT_NEAR(pieces[i], whole[i], 1e-4) << type << i;
    }
  }
}

TEST(ModelScorer, EvaluatesTextWhateverTheMemory) {
  const std::string text = test::make_text(1, 30'000);
  const std::array<std::string_view, 1> texts{text};
  const data::Tokenizer tokenizer = data::Tokenizer::train(texts, kVocabulary);
  const test::Scratch scratch;
  const std::vector<data::Document> documents{{"a", test::make_text(2, 6'000)},
                                              {"b", test::make_text(3, 500)}};
  data::TokenFile::build(scratch / "tokens", documents, tokenizer);
  const data::TokenFile file = data::TokenFile::open(scratch / "tokens");
  const Vocabulary vocabulary = vocabulary_of(tokenizer);
  const model::Model model = make_model("kla");
  Context context({.threads = 2});
  PerplexityOptions options;
  const Score whole = evaluate(model, context, file, vocabulary, options).front();
  options.rows = 190;
  const Score cut = evaluate(model, context, file, vocabulary, options).front();
  EXPECT_EQ(whole.targets, file.tokens() - 2 * file.documents());
  EXPECT_EQ(cut.targets, whole.targets);
  EXPECT_NEAR(cut.nats.value, whole.nats.value, 1e-5);
  EXPECT_GT(whole.nats.value, 1);
  options.lengths = {512, 700};
  const std::vector<Score> scores = evaluate(model, context, file, vocabulary, options);
  EXPECT_EQ(scores[0].targets, scores[1].targets);
  EXPECT_NE(scores[0].nats.value, scores[1].nats.value);

  const model::Model small = make_model("kla", 100);
  EXPECT_THROW(evaluate(small, context, file, vocabulary, {}), Error);
}

TEST(Text, ReadsTextAndTokenFilesOfTheTokenizer) {
  const std::string text = test::make_text(1, 30'000);
  const std::array<std::string_view, 1> texts{text};
  const data::Tokenizer tokenizer = data::Tokenizer::train(texts, kVocabulary);
  const data::Tokenizer other = data::Tokenizer::train(texts, kVocabulary - 5);
  const test::Scratch scratch;
  write_file(scratch / "text.txt", text);
  const data::TokenFile from_text = open_text(scratch / "text.txt", tokenizer);
  data::TokenFile::build(scratch / "text.tokens", std::vector<data::Document>{{"text", text}},
                         tokenizer);
  const data::TokenFile from_tokens = open_text(scratch / "text.tokens", tokenizer);
  ASSERT_EQ(from_text.tokens(), from_tokens.tokens());
  for (std::int64_t i = 0; i < from_text.tokens(); ++i) EXPECT_EQ(from_text[i], from_tokens[i]);
  EXPECT_THROW(open_text(scratch / "text.tokens", other), Error);
  EXPECT_THROW(open_text(scratch / "nothing", tokenizer), Error);

  // EOS is no pair's second piece.
  const Ngram counts = count_ngrams(from_text);
  EXPECT_EQ(counts.pairs(), from_text.tokens() - 2);
  EXPECT_LT(counts.unigram(tokenizer.eos()), 1.0 / static_cast<double>(counts.pairs()));
}

}  // namespace
}  // namespace rankone::eval
