// rankone generate, rankone info and rankone golden on models, as processes.

#include <gtest/gtest.h>

#include <array>

#include "core/files.hpp"
#include "core/text.hpp"
#include "data/tokenizer.hpp"
#include "model/model.hpp"
#include "support/paths.hpp"
#include "tests/data_layer/text.hpp"
#include "tests/support/command.hpp"
#include "tests/support/scratch.hpp"

namespace rankone {
namespace {

using test::expect_refusal;
using test::run_rankone;

constexpr std::int64_t kVocabulary = 330;

class GenerateVerb : public testing::Test {
 protected:
  GenerateVerb() {
    const std::string text = test::make_text(1, 30'000);
    const std::array<std::string_view, 1> texts{text};
    const data::Tokenizer tokenizer = data::Tokenizer::train(texts, kVocabulary);
    // No token ends the text, and ids beyond the tokenizer's pieces are never chosen.
    const std::string config =
        R"({"model_type": "kla", "hidden_size": 32, "num_hidden_layers": 1, "num_heads": 2,
            "head_dim": 16, "expand_v": 1.0, "intermediate_size": 32, "eos_token_id": 399,
            "vocab_size": 400})";
    model::Model::create(model::parse_config(config, "test"), Dtype::f32, 1).save(scratch_.path());
    tokenizer.save(scratch_ / "tokenizer.model");
  }
  std::vector<std::string> command(std::vector<std::string> more) const {
    std::vector<std::string> arguments{"generate", "--model", scratch_.path(), "--prompt",
                                       "the house"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
  std::string text_of(std::vector<std::string> more) const {
    const auto result = run_rankone(command(std::move(more)));
    EXPECT_EQ(result.status, 0) << result.err;
    EXPECT_TRUE(result.out.starts_with("the house")) << result.out;
    EXPECT_TRUE(result.out.ends_with("\n"));
    EXPECT_EQ(utf8_error(result.out), result.out.size());
    return result.out;
  }

  test::Scratch scratch_;
};

TEST_F(GenerateVerb, TheSeedDecides) {
  const std::string once = text_of({"--tokens", "40", "--seed", "3"});
  EXPECT_EQ(once, text_of({"--tokens", "40", "--seed", "3"}));
  EXPECT_NE(once, text_of({"--tokens", "40", "--seed", "4"}));
  EXPECT_EQ(text_of({"--tokens", "0"}), "the house\n");
}

TEST_F(GenerateVerb, GreedyNeedsNoSeed) {
  const std::string greedy = text_of({"--tokens", "30", "--temperature", "0"});
  EXPECT_EQ(greedy, text_of({"--tokens", "30", "--temperature", "0", "--seed", "9"}));
  EXPECT_EQ(greedy, text_of({"--tokens", "30", "--top-k", "1"}));
  EXPECT_GT(text_of({"--tokens", "30", "--temperature", "0", "--dtype", "bf16"}).size(), 10U);
  // A longer text begins with the shorter one: what is shown first is final.
  const std::string longer = text_of({"--tokens", "200", "--temperature", "0"});
  EXPECT_TRUE(longer.starts_with(greedy.substr(0, greedy.size() - 1))) << longer;
}

TEST_F(GenerateVerb, BadOptionsAreRefused) {
  expect_refusal(run_rankone(command({"--temperature", "-1"})), "temperature");
  expect_refusal(run_rankone(command({"--top-p", "0"})), "top-p");
  expect_refusal(run_rankone(command({"--top-k", "-4"})), "top-k");
  expect_refusal(run_rankone(command({"--tokens", "-1"})), "tokens");
  expect_refusal(run_rankone({"generate", "--model", scratch_.path(), "--prompt", "\xff"}),
                 "UTF-8");
  expect_refusal(run_rankone({"generate", "--model", "absent", "--prompt", "x"}), "absent");
  write_file(scratch_ / "tokenizer.model", "no tokenizer");
  expect_refusal(run_rankone(command({})), "tokenizer.model");
}

TEST_F(GenerateVerb, InfoSaysWhatTheModelHas) {
  const auto result = run_rankone({"info", scratch_.path()});
  ASSERT_EQ(result.status, 0) << result.err;
  const model::Model model = model::Model::load(scratch_.path(), Dtype::f32);
  EXPECT_NE(result.out.find("kla"), std::string::npos);
  EXPECT_NE(result.out.find("kaczmarz"), std::string::npos);
  std::string digits;
  for (const char letter : result.out) {
    if (letter != ',') digits += letter;
  }
  for (const std::int64_t number : {model.parameter_count(), model.non_embedding_parameter_count(),
                                    static_cast<std::int64_t>(model.make_state(1).bytes())}) {
    EXPECT_NE(digits.find(" " + std::to_string(number)), std::string::npos) << result.out;
  }
  expect_refusal(run_rankone({"info", "absent"}), "absent");
  write_file(scratch_ / "config.json", R"({"model_type": "kla", "hidden_size": 99999999})");
  expect_refusal(run_rankone({"info", scratch_.path()}), "hidden_size");
}

TEST(GoldenVerb, AModelDirectoryIsComparedInFullAndByStep) {
  const auto folder = test::shared_dir() / "golden" / "models";
  if (!std::filesystem::exists(folder)) {
    GTEST_SKIP() << folder << " is not here: the full set is the developers'";
  }
  const auto result = run_rankone({"golden", folder, "--backend", "reference", "--backend", "cpu"});
  EXPECT_EQ(result.status, 0) << result.out << result.err;
  EXPECT_TRUE(result.out.ends_with("24 passed, 0 failed\n")) << result.out;
}

}  // namespace
}  // namespace rankone
