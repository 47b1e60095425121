// The road of scripts/demo on a small text: train two mixers, compare them, let them write.

#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/command.hpp"
#include "tests/support/scratch.hpp"
#include "tests/train/files.hpp"
#include "tests/train/generated_text.hpp"

namespace rankone {
namespace {

using nlohmann::json;
using test::run_rankone;
using test::slurp;
using test::spill;

class Demo : public testing::Test {
 protected:
  static std::string path(const char* name) { return (*folder_ / name).string(); }

  // The same sizes as configs/*-tiny.json, cut down; trained once for all tests.
  static void SetUpTestSuite() {
    folder_ = std::make_unique<test::Scratch>();
    spill(path("text.txt"), test::generated_text(1, 30000));
    spill(path("valid.txt"), test::generated_text(2, 12000));
    const std::vector<std::string> sizes = {"--set",   "model.hidden_size=32",
                                            "--set",   "model.num_heads=2",
                                            "--set",   "model.head_dim=16",
                                            "--set",   "model.intermediate_size=64",
                                            "--set",   "model.num_hidden_layers=2",
                                            "--set",   "train.vocab_size=300",
                                            "--set",   "train.seq_len=64",
                                            "--set",   "train.batch_tokens=512",
                                            "--set",   "train.lr=0.01",
                                            "--set",   "train.warmup=2",
                                            "--steps", "60",
                                            "--data",  path("text.txt"),
                                            "--valid", path("valid.txt")};
    const auto train = [&](const char* name, const std::string& config,
                           std::vector<std::string> more) {
      std::vector<std::string> arguments = {"train", "--config",
                                            (test::source_dir() / "configs" / config).string(),
                                            "--out", path(name)};
      arguments.insert(arguments.end(), sizes.begin(), sizes.end());
      arguments.insert(arguments.end(), more.begin(), more.end());
      const auto result = run_rankone(arguments);
      ASSERT_EQ(result.status, 0) << result.err;
    };
    train("kla", "kla-tiny.json", {});
    train("gdn", "gdn-tiny.json", {"--tokenizer", path("kla/tokenizer.model")});
  }
  static void TearDownTestSuite() { folder_.reset(); }

 private:
  static inline std::unique_ptr<test::Scratch> folder_;
};

TEST_F(Demo, BothModelsBeatTheBigramAndTheTableSaysSo) {
  const auto result = run_rankone({"compare", path("kla"), path("gdn"), "--contexts", "64,2048",
                                   "--svg", path("curves.svg"), "--json", path("compare.json")});
  ASSERT_EQ(result.status, 0) << result.err;
  for (const char* word : {"kla", "gdn", "bigram", "unigram", "parameters", "state", "tokens/s",
                           "bits per byte", "ms/token at 2K", "standard errors"}) {
    EXPECT_NE(result.out.find(word), std::string::npos) << word << "\n" << result.out;
  }
  const json rows = json::parse(slurp(path("compare.json")));
  ASSERT_EQ(rows.size(), 4U);
  EXPECT_EQ(rows[0]["name"], "kla");
  EXPECT_EQ(rows[1]["name"], "gdn");
  EXPECT_EQ(rows[2]["name"], "bigram");
  for (int model = 0; model < 2; ++model) {
    EXPECT_LT(rows[model]["bits_per_byte"].get<double>() +
                  rows[model]["bits_per_byte_error"].get<double>(),
              rows[2]["bits_per_byte"].get<double>());
    EXPECT_EQ(rows[model]["targets"], rows[2]["targets"]);
    EXPECT_EQ(rows[model]["trained_tokens"], 60 * 512);
    EXPECT_GT(rows[model]["tokens_per_s"].get<double>(), 0.0);
    const json& decode = rows[model]["decode"];
    ASSERT_EQ(decode.size(), 2U);
    EXPECT_EQ(decode[0]["state_bytes"], decode[1]["state_bytes"]);
    EXPECT_EQ(decode[0]["workspace_bytes"], decode[1]["workspace_bytes"]);
  }
  // KLA has a bias of b_proj more: one number a head and layer.
  EXPECT_EQ(rows[0]["parameters"].get<int>() - rows[1]["parameters"].get<int>(), 4);
  EXPECT_LT(rows[2]["bits_per_byte"].get<double>(), rows[3]["bits_per_byte"].get<double>());
  const std::string svg = slurp(path("curves.svg"));
  EXPECT_NE(svg.find("<svg"), std::string::npos);
  EXPECT_NE(svg.find("bigram"), std::string::npos);
}

TEST_F(Demo, TheModelsWrite) {
  for (const char* name : {"kla", "gdn"}) {
    const auto result = run_rankone({"generate", "--model", path(name), "--prompt", "the old",
                                     "--tokens", "20", "--temperature", "0"});
    ASSERT_EQ(result.status, 0) << result.err;
    EXPECT_NE(result.out.find("the "), std::string::npos) << result.out;
  }
}

TEST_F(Demo, RunsThatCanNotBeComparedAreRefused) {
  const auto one_line = [](const std::string& text) {
    return !text.empty() && text.find('\n') == text.size() - 1;
  };
  std::filesystem::create_directories(path("other"));
  for (const auto& entry : std::filesystem::directory_iterator(path("gdn"))) {
    if (entry.is_regular_file()) {
      std::filesystem::copy_file(entry.path(), path("other") / entry.path().filename());
    }
  }
  std::filesystem::copy_file(path("gdn/train.tokens"), path("other/valid.tokens"),
                             std::filesystem::copy_options::overwrite_existing);
  for (const auto& runs : std::vector<std::vector<std::string>>{
           {path("kla"), path("other")}, {path("kla"), path("none")}, {path("text.txt")}, {}}) {
    std::vector<std::string> arguments = {"compare", "--contexts", "64"};
    arguments.insert(arguments.end(), runs.begin(), runs.end());
    const auto result = run_rankone(arguments);
    EXPECT_EQ(result.status, 2) << result.out;
    EXPECT_TRUE(one_line(result.err)) << result.err;
  }
}

TEST_F(Demo, BenchTrainAndBenchModelReportTheirFigures) {
  const std::string config = (test::source_dir() / "configs/kla-tiny.json").string();
  auto result = run_rankone({"bench", "train", "--config", config, "--shape", "2x32", "--set",
                             "model.hidden_size=32", "--set", "model.num_hidden_layers=1", "--json",
                             path("train.json")});
  ASSERT_EQ(result.status, 0) << result.err;
  const json train = json::parse(slurp(path("train.json"))).at(0);
  EXPECT_EQ(train["b"], 2);
  EXPECT_EQ(train["t"], 32);
  EXPECT_GT(train["tokens_per_s"].get<double>(), 0.0);
  EXPECT_GT(train["peak_bytes"].get<double>(), 0.0);
  result = run_rankone({"bench", "model", "--model", path("kla"), "--contexts", "16,256", "--json",
                        path("model.json")});
  ASSERT_EQ(result.status, 0) << result.err;
  const json steps = json::parse(slurp(path("model.json")));
  ASSERT_EQ(steps.size(), 2U);
  EXPECT_EQ(steps[1]["t"], 256);
  EXPECT_EQ(steps[0]["state_bytes"], steps[1]["state_bytes"]);
  EXPECT_EQ(run_rankone({"bench", "train", "--config", config, "--shape", "2x"}).status, 2);
  EXPECT_EQ(run_rankone({"bench", "model", "--model", path("none")}).status, 2);
}

}  // namespace
}  // namespace rankone
