#include <gtest/gtest.h>

#include "core/files.hpp"
#include "tests/data_layer/text.hpp"
#include "tests/support/command.hpp"

namespace rankone {
namespace {

namespace fs = std::filesystem;
using test::expect_refusal;
using test::run_rankone;
using test::Scratch;

class TokenizerVerb : public testing::Test {
 protected:
  TokenizerVerb() {
    write_file(scratch_ / "text", test::make_text(1, 30'000));
    const auto result = train(model());
    EXPECT_EQ(result.status, 0) << result.err;
    EXPECT_EQ(result.err, "");
    EXPECT_NE(result.out.find("330 pieces"), std::string::npos) << result.out;
  }
  std::string model() const { return (scratch_ / "tokenizer.model").string(); }
  test::CommandResult train(const std::string& out, const std::string& size = "330") const {
    return run_rankone({"tokenizer", "train", "--data", (scratch_ / "text").string(),
                        "--vocab-size", size, "--out", out});
  }
  Scratch scratch_;
};

TEST_F(TokenizerVerb, TrainsTheSameBytesTwice) {
  const std::string again = (scratch_ / "again.model").string();
  EXPECT_EQ(train(again).status, 0);
  EXPECT_EQ(read_file(model(), 1 << 20), read_file(again, 1 << 20));
}

TEST_F(TokenizerVerb, EncodesAndDecodesThroughPipesAndFiles) {
  const std::string text = "The caf\xc3\xa9\n\n by the  river \xf0\x9f\x98\x80";
  const auto ids = run_rankone({"tokenizer", "encode", "--model", model()}, text);
  ASSERT_EQ(ids.status, 0) << ids.err;
  EXPECT_EQ(ids.out.find('\n'), ids.out.size() - 1);
  const auto back = run_rankone({"tokenizer", "decode", "--model", model()}, ids.out);
  EXPECT_EQ(back.status, 0) << back.err;
  EXPECT_EQ(back.out, text);

  write_file(scratch_ / "in", text);
  EXPECT_EQ(
      run_rankone({"tokenizer", "encode", "--model", model(), "--in", (scratch_ / "in").string()})
          .out,
      ids.out);
  EXPECT_EQ(run_rankone({"tokenizer", "encode", "--model", model()}, "").out, "\n");
  EXPECT_EQ(run_rankone({"tokenizer", "decode", "--model", model()}, " \n").out, "");
}

TEST_F(TokenizerVerb, RefusesBadInput) {
  expect_refusal(run_rankone({"tokenizer", "encode", "--model", model()}, "caf\xe9"),
                 "standard input: byte 3 is not UTF-8");
  expect_refusal(run_rankone({"tokenizer", "decode", "--model", model()}, "5 6x 7"),
                 "byte 2: '6x' is no id");
  expect_refusal(run_rankone({"tokenizer", "decode", "--model", model()}, "5 330"), "(0 to 329)");
  expect_refusal(run_rankone({"tokenizer", "decode", "--model", model()}, "99999999999"), "no id");
  expect_refusal(run_rankone({"tokenizer", "encode", "--model", "absent.model"}), "absent.model");
  const std::string bytes = read_file(model(), 1 << 20);
  write_file(scratch_ / "cut.model", bytes.substr(0, bytes.size() / 2));
  expect_refusal(
      run_rankone({"tokenizer", "encode", "--model", (scratch_ / "cut.model").string()}, "x"),
      "cut.model");
  expect_refusal(train((scratch_ / "big.model").string(), "30000"), "Vocabulary size");
  EXPECT_FALSE(fs::exists(scratch_ / "big.model"));
  expect_refusal(train((scratch_ / "small.model").string(), "100"), "vocab_size 100");
  expect_refusal(train("/absent/tokenizer.model"), "/absent");
  expect_refusal(
      run_rankone({"tokenizer", "train", "--data", "absent", "--vocab-size", "300", "--out", "x"}),
      "absent");
  expect_refusal(run_rankone({"tokenizer"}), "subcommand");
  expect_refusal(run_rankone({"tokenizer", "encode"}), "--model");
}

TEST(TokenizerHelp, NamesEveryOption) {
  const auto result = run_rankone({"tokenizer", "train", "--help"});
  EXPECT_EQ(result.status, 0);
  for (const char* option : {"--data", "--vocab-size", "--out"}) {
    EXPECT_NE(result.out.find(option), std::string::npos);
  }
}

}  // namespace
}  // namespace rankone
