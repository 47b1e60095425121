#include "data/tokenizer.hpp"

#include <gtest/gtest.h>
#include <sentencepiece_processor.h>

#include <array>
#include <cstdio>
#include <fstream>
#include <numeric>
#include <sstream>

#include "core/files.hpp"
#include "core/status.hpp"
#include "support/paths.hpp"
#include "tests/data_layer/text.hpp"
#include "tests/support/scratch.hpp"

namespace rankone::data {
namespace {

namespace fs = std::filesystem;
using test::make_text;
using test::Scratch;

template <class Work>
Status status_of(Work&& work) {
  try {
    work();
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    return error.status();
  }
  return Status::ok;
}

const Tokenizer& trained() {
  static const Tokenizer tokenizer = [] {
    const std::string text = make_text(1, 40'000);
    const std::array<std::string_view, 1> texts{text};
    return Tokenizer::train(texts, 350);
  }();
  return tokenizer;
}

const std::vector<std::string>& awkward_texts() {
  static const std::vector<std::string> texts{
      "",
      "\n",
      "\n\n\n",
      " ",
      "   two  spaces   ",
      "no line end",
      "one\n",
      "\none",
      "a\nb\n\nc\n",
      "tab\tand return\r\n",
      std::string("nul \0 byte\n\0", 12),
      "\xe2\x82\xac and \xf0\x9f\x98\x80\n\xf0\x9f\x98\x80\xf0\x9f\x98\x80",
      "<s> </s> <unk> <0x0A> \\n",
      make_text(7, 5'000),
  };
  return texts;
}

TEST(Tokenizer, TrainingGivesTheSameBytes) {
  const std::string a = make_text(1, 20'000);
  const std::string b = make_text(2, 20'000);
  const std::array<std::string_view, 2> texts{a, b};
  const Tokenizer first = Tokenizer::train(texts, 330);
  const Tokenizer second = Tokenizer::train(texts, 330);
  EXPECT_EQ(first.bytes(), second.bytes());
  EXPECT_EQ(first.hash(), second.hash());
  EXPECT_EQ(first.size(), 330);
  EXPECT_EQ(first.bos(), 1);
  EXPECT_EQ(first.eos(), 2);
  EXPECT_TRUE(first.splits_at_newlines());
  EXPECT_NE(Tokenizer::train(std::span(texts).first(1), 330).bytes(), first.bytes());
}

TEST(Tokenizer, DecodingGivesTheTextBack) {
  const Tokenizer& tokenizer = trained();
  for (const std::string& text : awkward_texts()) {
    const auto ids = tokenizer.encode(text);
    EXPECT_EQ(tokenizer.decode(ids), text);
    std::size_t bytes = 0;
    for (const std::int32_t id : ids) {
      EXPECT_GT(id, tokenizer.eos());
      bytes += static_cast<std::size_t>(tokenizer.piece_bytes(id));
    }
    EXPECT_EQ(bytes, text.size());
  }
  EXPECT_EQ(tokenizer.encode("\n").size(), 1U);
  EXPECT_EQ(tokenizer.piece_bytes(0), 0);
  EXPECT_EQ(tokenizer.piece_bytes(1), 0);
  EXPECT_LT(tokenizer.encode(make_text(9, 1000)).size(), 500U);  // it did learn pieces
}

TEST(Tokenizer, SavedModelIsTheSame) {
  const Scratch scratch;
  trained().save(scratch / "tokenizer.model");
  const Tokenizer loaded = Tokenizer::load(scratch / "tokenizer.model");
  EXPECT_EQ(loaded.bytes(), trained().bytes());
  EXPECT_EQ(loaded.hash(), trained().hash());
  const std::string text = make_text(3, 2'000);
  EXPECT_EQ(loaded.encode(text), trained().encode(text));
}

TEST(Tokenizer, RefusesBadCalls) {
  const std::string text = make_text(1, 1'000);
  const std::array<std::string_view, 1> texts{text};
  EXPECT_EQ(status_of([&] { Tokenizer::train(texts, 260); }), Status::invalid_argument);
  EXPECT_EQ(status_of([&] { Tokenizer::train(texts, 300'000); }), Status::invalid_argument);
  // Fewer different pieces than asked for, and more different characters.
  EXPECT_EQ(status_of([&] { Tokenizer::train(texts, 20'000); }), Status::invalid_argument);
  EXPECT_EQ(status_of([&] { Tokenizer::train(texts, 265); }), Status::invalid_argument);
  EXPECT_EQ(status_of([&] { Tokenizer::train({}, 300); }), Status::invalid_argument);
  const std::array<std::string_view, 2> empty{"", "\n\n"};
  EXPECT_EQ(status_of([&] { Tokenizer::train(empty, 300); }), Status::invalid_argument);
  const std::array<std::string_view, 1> latin{"caf\xe9"};
  EXPECT_EQ(status_of([&] { Tokenizer::train(latin, 300); }), Status::invalid_argument);

  const Tokenizer& tokenizer = trained();
  for (const std::int32_t id : {-1, tokenizer.size(), 1 << 30}) {
    EXPECT_EQ(status_of([&] { tokenizer.decode(std::array<std::int32_t, 1>{id}); }),
              Status::invalid_argument);
    EXPECT_EQ(status_of([&] { tokenizer.piece_bytes(id); }), Status::invalid_argument);
  }
  EXPECT_EQ(status_of([&] { tokenizer.encode("no newline", true); }), Status::invalid_argument);
  EXPECT_EQ(status_of([] { Tokenizer::load("absent.model"); }), Status::io);
  EXPECT_EQ(status_of([] { Tokenizer::parse("", "here"); }), Status::corrupt);
}

TEST(Tokenizer, LongLinesAreCutAndNotLeftOut) {
  // One line of 400 kB: SentencePiece alone would drop it and find nothing to learn.
  std::string text;
  while (text.size() < 400'000) text += "syzygy abacus ";
  const std::array<std::string_view, 1> texts{text};
  const Tokenizer tokenizer = Tokenizer::train(texts, 285);
  EXPECT_LE(tokenizer.encode("syzygy abacus").size(), 6U);
  std::string no_spaces;
  while (no_spaces.size() < 50'000) no_spaces += "\xc3\xa9\xe2\x82\xac";
  const std::array<std::string_view, 1> runs{no_spaces};
  const Tokenizer second = Tokenizer::train(runs, 262);
  EXPECT_EQ(second.decode(second.encode(no_spaces)), no_spaces);
}

// What SentencePiece makes of the whole text at once, from the unchanged model file.
std::vector<int> direct(const std::string& model, const std::string& text) {
  sentencepiece::SentencePieceProcessor processor;
  EXPECT_TRUE(processor.LoadFromSerializedProto(model).ok());
  std::vector<int> ids;
  EXPECT_TRUE(processor.Encode(text, &ids).ok());
  return ids;
}

TEST(Tokenizer, CuttingAtNewlinesChangesNoIds) {
  const Tokenizer& tokenizer = trained();
  for (const std::string& text : awkward_texts()) {
    const auto whole = tokenizer.encode(text);
    EXPECT_EQ(whole, direct(tokenizer.bytes(), text));
    for (std::size_t at = text.find('\n', 1); at != std::string::npos;
         at = text.find('\n', at + 1)) {
      auto parts = tokenizer.encode(text.substr(0, at));
      const auto rest = tokenizer.encode(text.substr(at), true);
      parts.insert(parts.end(), rest.begin(), rest.end());
      ASSERT_EQ(parts, whole) << at;
    }
  }
}

class SharedModel : public testing::TestWithParam<const char*> {};

// This model puts a space in front of every text and has no piece for the newline but its byte.
TEST_P(SharedModel, GivesTheIdsOfSentencePiece) {
  const fs::path file = test::shared_dir() / "corpus" / GetParam();
  if (!fs::exists(file)) GTEST_SKIP() << file << " is not here";
  const Tokenizer tokenizer = Tokenizer::load(file);
  for (const std::string& text : awkward_texts()) {
    const auto ids = tokenizer.encode(text);
    EXPECT_EQ(ids, direct(tokenizer.bytes(), text));
    EXPECT_EQ(tokenizer.decode(ids), text);
    for (std::size_t at = text.find('\n', 1); at != std::string::npos;
         at = text.find('\n', at + 1)) {
      auto parts = tokenizer.encode(text.substr(0, at));
      const auto rest = tokenizer.encode(text.substr(at), true);
      parts.insert(parts.end(), rest.begin(), rest.end());
      ASSERT_EQ(parts, ids) << at;
    }
  }
}

// Golden: the command line of SentencePiece on the same model.
TEST_P(SharedModel, GivesTheIdsOfSpmEncode) {
  const fs::path file = test::shared_dir() / "corpus" / GetParam();
  if (!fs::exists(file)) GTEST_SKIP() << file << " is not here";
  if (std::system("command -v spm_encode > /dev/null") != 0) GTEST_SKIP() << "no spm_encode here";
  const Scratch scratch;
  const std::string text = make_text(11, 20'000);
  write_file(scratch / "in", text);
  const std::string command = "spm_encode --model='" + file.string() + "' --output_format=id < '" +
                              (scratch / "in").string() + "' > '" + (scratch / "out").string() +
                              "' 2> /dev/null";
  ASSERT_EQ(std::system(command.c_str()), 0);
  const Tokenizer tokenizer = Tokenizer::load(file);
  std::istringstream lines(text);
  std::ifstream golden(scratch / "out");
  std::string line;
  std::string expected;
  int count = 0;
  while (std::getline(lines, line) && std::getline(golden, expected)) {
    std::string ids;
    for (const std::int32_t id : tokenizer.encode(line)) {
      ids += (ids.empty() ? "" : " ") + std::to_string(id);
    }
    EXPECT_EQ(ids, expected);
    ++count;
  }
  EXPECT_GT(count, 100);
}

INSTANTIATE_TEST_SUITE_P(Corpus, SharedModel,
                         testing::Values("spm_16384.model", "spm_32000.model"));

}  // namespace
}  // namespace rankone::data
