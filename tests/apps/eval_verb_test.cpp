// rankone eval ppl and eval curves as a process.

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/files.hpp"
#include "data/tokenizer.hpp"
#include "data/tokens.hpp"
#include "model/model.hpp"
#include "tests/data_layer/text.hpp"
#include "tests/support/command.hpp"
#include "tests/support/scratch.hpp"

namespace rankone {
namespace {

using nlohmann::json;
using test::expect_refusal;
using test::run_rankone;

constexpr std::int64_t kVocabulary = 330;

class EvalVerb : public testing::Test {
 protected:
  EvalVerb() {
    const std::string text = test::make_text(1, 30'000);
    const std::array<std::string_view, 1> texts{text};
    const data::Tokenizer tokenizer = data::Tokenizer::train(texts, kVocabulary);
    const std::string config =
        R"({"model_type": "kla", "hidden_size": 32, "num_hidden_layers": 1, "num_heads": 2,
            "head_dim": 16, "expand_v": 1.0, "intermediate_size": 32, "vocab_size": )" +
        std::to_string(kVocabulary) + "}";
    const auto model = model::Model::create(model::parse_config(config, "test"), Dtype::f32, 1);
    std::filesystem::create_directory(scratch_ / "model");
    model.save(scratch_ / "model");
    tokenizer.save(scratch_ / "model/tokenizer.model");
    write_file(scratch_ / "train.txt", text);
    write_file(scratch_ / "held.txt", test::make_text(2, 8'000));
    const std::vector<data::Document> held{{"held", test::make_text(2, 8'000)}};
    data::TokenFile::build(scratch_ / "held.tokens", held, tokenizer);
  }
  std::string path(const char* name) const { return (scratch_ / name).string(); }
  json figures() const { return json::parse(read_file(scratch_ / "out.json", 1 << 20)); }
  std::vector<std::string> ppl(std::vector<std::string> more) const {
    std::vector<std::string> arguments{"eval",        "ppl",    "--model",
                                       path("model"), "--json", path("out.json")};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }

  test::Scratch scratch_;
};

TEST_F(EvalVerb, WholeDocumentsWithBaselines) {
  const auto result =
      run_rankone(ppl({"--data", path("held.txt"), "--train-data", path("train.txt")}));
  ASSERT_EQ(result.status, 0) << result.err;
  const json all = figures();
  ASSERT_EQ(all["rows"].size(), 3U);
  const json& model = all["rows"][0];
  EXPECT_EQ(model["name"], "model");
  EXPECT_TRUE(model["length"].is_null());
  EXPECT_EQ(model["bytes"], test::make_text(2, 8'000).size());
  EXPECT_EQ(model["unit"], "block");
  EXPECT_NEAR(model["perplexity"].get<double>(), std::exp(model["nats_per_target"].get<double>()),
              1e-9);
  // An untrained model is no better than the uniform distribution; the counts know the words.
  EXPECT_GT(model["nats_per_target"].get<double>(), std::log(kVocabulary));
  EXPECT_LT(model["nats_per_target"].get<double>(), std::log(kVocabulary) + 1);
  const json& bigram = all["rows"][1];
  const json& unigram = all["rows"][2];
  EXPECT_EQ(bigram["name"], "bigram");
  EXPECT_LT(bigram["bits_per_byte"].get<double>(), unigram["bits_per_byte"].get<double>());
  EXPECT_LT(unigram["bits_per_byte"].get<double>(), model["bits_per_byte"].get<double>());
  for (const json& row : all["rows"]) EXPECT_EQ(row["targets"], model["targets"]);
  for (const char* part : {"perplexity", "bits per byte", "model", "bigram", "unigram",
                           "1 document; standard errors over"}) {
    EXPECT_NE(result.out.find(part), std::string::npos) << part << "\n" << result.out;
  }
}

TEST_F(EvalVerb, TokenFilesAndTextGiveTheSameFigures) {
  ASSERT_EQ(run_rankone(ppl({"--data", path("held.txt")})).status, 0);
  const json text = figures()["rows"];
  ASSERT_EQ(run_rankone(ppl({"--data", path("held.tokens"), "--threads", "1"})).status, 0);
  EXPECT_EQ(figures()["rows"], text);
}

TEST_F(EvalVerb, LengthsScoreTheSameTargets) {
  const auto result = run_rankone(ppl(
      {"--data", path("held.txt"), "--lengths", "512,1024", "--train-data", path("train.txt")}));
  ASSERT_EQ(result.status, 0) << result.err;
  const json rows = figures()["rows"];
  ASSERT_EQ(rows.size(), 4U);
  EXPECT_EQ(rows[0]["length"], 512);
  EXPECT_EQ(rows[1]["length"], 1024);
  for (const json& row : rows) EXPECT_EQ(row["targets"], rows[0]["targets"]);
  EXPECT_EQ(rows[0]["targets"].get<int>() % 512, 0);
  ASSERT_EQ(
      run_rankone(ppl({"--data", path("held.txt"), "--lengths", "512", "--blocks", "1"})).status,
      0);
  EXPECT_EQ(figures()["rows"][0]["targets"], 512);
}

TEST_F(EvalVerb, BadInputIsRefusedInOneLine) {
  expect_refusal(run_rankone(ppl({"--data", path("held.txt"), "--lengths", "512,99999"})),
                 "the longest usable length is");
  expect_refusal(run_rankone(ppl({"--data", path("held.txt"), "--lengths", "100"})),
                 "length 100 is less than a block");
  expect_refusal(run_rankone(ppl({"--data", path("held.txt"), "--blocks", "2"})), "--lengths");
  expect_refusal(run_rankone(ppl({"--data", path("nothing")})), "nothing");
  expect_refusal(run_rankone(ppl({})), "--data");
  expect_refusal(run_rankone({"eval"}), "subcommand");
  write_file(scratch_ / "empty.txt", "");
  expect_refusal(run_rankone(ppl({"--data", path("empty.txt")})), "empty.txt");
  write_file(scratch_ / "bad.txt", "\xff\xfe");
  expect_refusal(run_rankone(ppl({"--data", path("bad.txt")})), "bad.txt");
  std::filesystem::remove(scratch_ / "model/tokenizer.model");
  expect_refusal(run_rankone(ppl({"--data", path("held.txt")})), "tokenizer.model");
}

TEST_F(EvalVerb, CurvesAreDrawnFromTheLogs) {
  std::filesystem::create_directory(scratch_ / "run");
  write_file(scratch_ / "run/metrics.jsonl",
             "{\"step\":1,\"tokens\":10,\"loss\":5}\n{\"step\":2,\"tokens\":20,\"loss\":4}\n");
  const auto curves = [&](std::vector<std::string> more) {
    std::vector<std::string> arguments{"eval", "curves", "--svg", path("curves.svg")};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_rankone(arguments);
  };
  ASSERT_EQ(curves({"--run", "kla=" + path("run"), "--run", "gdn=" + path("run/metrics.jsonl"),
                    "--level", "bigram=4.5", "--log-x"})
                .status,
            0);
  const std::string svg = read_file(scratch_ / "curves.svg", 1 << 20);
  for (const char* part : {"kla, training", "gdn, training", "bigram"}) {
    EXPECT_NE(svg.find(part), std::string::npos) << part;
  }
  expect_refusal(curves({"--run", path("run")}), "NAME=VALUE");
  expect_refusal(curves({"--run", "x=" + path("run"), "--level", "y=1x"}), "--level");
  expect_refusal(curves({"--run", "x=" + path("model")}), "metrics.jsonl");
}

}  // namespace
}  // namespace rankone
