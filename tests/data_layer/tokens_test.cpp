#include "data/tokens.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <functional>
#include <map>
#include <optional>
#include <set>

#include "core/files.hpp"
#include "core/status.hpp"
#include "tests/data_layer/text.hpp"
#include "tests/support/scratch.hpp"

namespace rankone::data {
namespace {

namespace fs = std::filesystem;
using test::make_text;
using test::Scratch;

std::string message_of(const std::function<void()>& work, Status expected) {
  try {
    work();
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), expected) << error.what();
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return {};
}

bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

const Tokenizer& tokenizer() {
  static const Tokenizer result = [] {
    const std::string text = make_text(1, 30'000);
    const std::array<std::string_view, 1> texts{text};
    return Tokenizer::train(texts, 330);
  }();
  return result;
}

void put(const fs::path& file, std::string_view text) {
  fs::create_directories(file.parent_path());
  write_file(file, text);
}

TEST(Documents, AFolderIsReadInByteOrderOfItsPaths) {
  const Scratch scratch;
  put(scratch / "b.txt", "b");
  put(scratch / "a" / "z.txt", "z");
  put(scratch / "a-b.txt", "dash");
  put(scratch / "B.txt", "B");
  put(scratch / "a" / "empty.txt", "");
  put(scratch / ".hidden", "no");
  put(scratch / ".git" / "x.txt", "no");
  put(scratch / "c.jsonl",
      "{\"text\": \"one\", \"id\": 1}\n\n{\"text\":\"\"}\r\n{\"text\":\"t\\u00e9\"}");
  fs::create_directory_symlink(scratch.path(), scratch / "a" / "loop");
  fs::create_symlink(scratch / "b.txt", scratch / "d.txt");
  const auto documents = read_documents(scratch.path());
  std::string order;
  for (const Document& document : documents) {
    order += document.name.substr(scratch.path().string().size() + 1) + "=" + document.text + " ";
  }
  EXPECT_EQ(order,
            "B.txt=B a-b.txt=dash a/z.txt=z b.txt=b c.jsonl:1=one c.jsonl:4=t\xc3\xa9 d.txt=b ");
  EXPECT_EQ(read_documents(scratch / "b.txt").size(), 1U);
}

TEST(Documents, RefusalsNameFileAndPlace) {
  const Scratch scratch;
  put(scratch / "latin.txt", "caf\xe9");
  EXPECT_TRUE(contains(message_of([&] { read_documents(scratch.path()); }, Status::corrupt),
                       "latin.txt: byte 3 (0xe9) is not UTF-8"));
  put(scratch / "x" / "bad.jsonl", "{\"text\": \"ok\"}\n{\"text\": 1}\n");
  EXPECT_TRUE(contains(message_of([&] { read_documents(scratch / "x"); }, Status::corrupt),
                       "bad.jsonl:2: no object with a string \"text\""));
  for (const char* line : {"{\"text\": \"a\"", "[1]", "\"text\"", "{\"txt\": \"a\"}", "null", "{}",
                           "{\"text\": \"a\", \"text\": \"b\"}", "{\"text\": \"\\ud800\"}"}) {
    put(scratch / "x" / "bad.jsonl", std::string("\n") + line);
    EXPECT_TRUE(contains(message_of([&] { read_documents(scratch / "x"); }, Status::corrupt),
                         "bad.jsonl:2"))
        << line;
  }
  message_of([&] { read_documents(scratch / "absent"); }, Status::io);
  fs::create_directory(scratch / "empty");
  message_of([&] { read_documents(scratch / "empty"); }, Status::invalid_argument);
  put(scratch / "nothing.txt", "");
  message_of([&] { read_documents(scratch / "nothing.txt"); }, Status::invalid_argument);
}

TEST(Documents, HoldOutCutsAtLineEnds) {
  const std::string longer = make_text(1, 200'000);
  const std::string shorter = make_text(2, 90'000);
  const std::string one_line(150'000, 'x');
  const std::string last_line = std::string(140'000, 'x') + "\n" + std::string(60'000, 'y');
  const Split split = hold_out(
      {{"long", longer}, {"short", shorter}, {"line", one_line}, {"last", last_line}}, 0.05);
  ASSERT_EQ(split.train.size(), 4U);
  ASSERT_EQ(split.valid.size(), 2U);
  EXPECT_EQ(split.train[0].text + split.valid[0].text, longer);
  EXPECT_EQ(split.train[0].text.back(), '\n');
  EXPECT_NEAR(static_cast<double>(split.valid[0].text.size()), 10'000, 1'000);
  EXPECT_EQ(split.train[1].text, shorter);
  EXPECT_EQ(split.train[2].text, one_line);
  EXPECT_EQ(split.valid[1].text, std::string(60'000, 'y'));  // the line end is before the mark
  EXPECT_EQ(split.valid[1].name, "last");
  EXPECT_TRUE(hold_out({{"long", longer}}, 0).valid.empty());
  message_of([&] { hold_out({}, 1.0); }, Status::invalid_argument);
  message_of([&] { hold_out({}, -0.1); }, Status::invalid_argument);
}

std::vector<Document> documents() {
  return {{"a", make_text(3, 900'000)},  // several blocks
          {"b", "x"},
          {"c", make_text(4, 3'000)},
          {"d", "\n"},
          {"e", std::string(700'000, 'z')}};
}

TEST(TokenFile, HoldsEveryDocumentBetweenBosAndEos) {
  const Scratch scratch;
  const auto input = documents();
  TokenFile::build(scratch / "tokens", input, tokenizer());
  const TokenFile file = TokenFile::open(scratch / "tokens");
  ASSERT_EQ(file.documents(), 5);
  EXPECT_EQ(file.vocabulary(), 330);
  EXPECT_EQ(file.tokenizer_hash(), tokenizer().hash());
  EXPECT_EQ(file.end(4), file.tokens());
  for (std::int64_t d = 0; d < file.documents(); ++d) {
    std::vector<std::int32_t> ids;
    for (std::int64_t t = file.begin(d); t < file.end(d); ++t) ids.push_back(file[t]);
    const Document& document = input[static_cast<std::size_t>(d)];
    EXPECT_EQ(file.document_bytes(d), static_cast<std::int64_t>(document.text.size()));
    std::vector<std::int32_t> expected{1};
    const auto pieces = tokenizer().encode(document.text);
    expected.insert(expected.end(), pieces.begin(), pieces.end());
    expected.push_back(2);
    EXPECT_EQ(ids, expected) << d;
  }
  TokenFile::build(scratch / "again", input, tokenizer());
  EXPECT_EQ(read_file(scratch / "tokens", 1 << 30), read_file(scratch / "again", 1 << 30));
  TokenFile::build(scratch / "empty", {}, tokenizer());
  EXPECT_EQ(TokenFile::open(scratch / "empty").tokens(), 0);
}

// The footer's checksum over a changed body, so that the other rules are reached.
std::string sealed(std::string bytes) {
  bytes.resize(bytes.size() - 64);
  return bytes + sha256(std::as_bytes(std::span<const char>(bytes.data(), bytes.size())));
}

class HostileTokens : public testing::Test {
 protected:
  HostileTokens() {
    const std::vector<Document> input{{"a", "the river"}, {"b", "stone\n"}};
    TokenFile::build(scratch_ / "tokens", input, tokenizer());
    bytes_ = read_file(scratch_ / "tokens", 1 << 20);
    tokens_ = TokenFile::open(scratch_ / "tokens").tokens();
  }
  Status open(const std::string& bytes) {
    write_file(scratch_ / "changed", bytes);
    try {
      TokenFile::open(scratch_ / "changed");
    } catch (const Error& error) {
      return error.status();
    }
    return Status::ok;
  }
  template <class T>
  std::string with(std::size_t at, T value) {
    std::string changed = bytes_;
    std::memcpy(changed.data() + at, &value, sizeof(T));
    return sealed(changed);
  }
  std::size_t table() const { return (80 + static_cast<std::size_t>(tokens_) * 2 + 7) / 8 * 8; }
  std::size_t footer() const { return bytes_.size() - 80; }

  Scratch scratch_;
  std::string bytes_;
  std::int64_t tokens_ = 0;
};

TEST_F(HostileTokens, TruncationAndDamageAnywhereAreRefused) {
  EXPECT_EQ(open(bytes_), Status::ok);
  EXPECT_EQ(open(sealed(bytes_)), Status::ok);
  for (std::size_t size = 0; size < bytes_.size(); ++size) {
    ASSERT_EQ(open(bytes_.substr(0, size)), Status::corrupt) << size;
  }
  for (std::size_t at = 0; at < bytes_.size(); ++at) {
    std::string changed = bytes_;
    changed[at] = static_cast<char>(changed[at] ^ 1);
    ASSERT_EQ(open(changed), Status::corrupt) << at;
  }
  EXPECT_EQ(open(bytes_ + "x"), Status::corrupt);
}

TEST_F(HostileTokens, EachRuleHolds) {
  EXPECT_EQ(open(with<std::uint32_t>(8, 4)), Status::corrupt);  // width
  EXPECT_EQ(open(with<std::uint32_t>(8, 0)), Status::corrupt);
  EXPECT_EQ(open(with<std::uint32_t>(12, 0)), Status::corrupt);  // vocabulary
  EXPECT_EQ(open(with<std::uint32_t>(12, 0xffffffffU)), Status::corrupt);
  EXPECT_EQ(open(with<std::uint32_t>(12, 100)), Status::corrupt);  // tokens beyond it
  EXPECT_EQ(open(with<char>(16, 'Z')), Status::corrupt);           // hash is not hex
  EXPECT_EQ(open(with<std::uint16_t>(80, 330)), Status::corrupt);  // a token beyond
  EXPECT_EQ(open(with<std::uint16_t>(80, 329)), Status::ok);
  const std::size_t at = table();
  EXPECT_EQ(open(with<std::uint64_t>(at, 1)), Status::corrupt);      // first offset
  EXPECT_EQ(open(with<std::uint64_t>(at + 8, 1)), Status::corrupt);  // one token
  EXPECT_EQ(open(with<std::uint64_t>(at + 8, ~std::uint64_t{0})), Status::corrupt);
  EXPECT_EQ(open(with<std::uint64_t>(at + 16, 0)), Status::corrupt);  // reversed
  EXPECT_EQ(open(with<std::uint64_t>(at + 16, tokens_ - 1)), Status::corrupt);
  EXPECT_EQ(open(with<std::uint64_t>(footer(), tokens_ + 100)), Status::corrupt);
  EXPECT_EQ(open(with<std::uint64_t>(footer(), ~std::uint64_t{0} / 2 + 2)), Status::corrupt);
  EXPECT_EQ(open(with<std::uint64_t>(footer() + 8, 1)), Status::corrupt);
  EXPECT_EQ(open(with<std::uint64_t>(footer() + 8, std::uint64_t{1} << 60)), Status::corrupt);
}

// ---- batches ----

class BatchesTest : public testing::Test {
 protected:
  BatchesTest() {
    const std::vector<Document> input{{"a", make_text(5, 4'000)},
                                      {"b", "x"},
                                      {"c", make_text(6, 2'500)},
                                      {"d", make_text(7, 300)}};
    TokenFile::build(scratch_ / "tokens", input, tokenizer());
    file_.emplace(TokenFile::open(scratch_ / "tokens"));
    rows_ = file_->tokens() - file_->documents();
  }
  Scratch scratch_;
  std::optional<TokenFile> file_;
  std::int64_t rows_ = 0;
};

std::multiset<std::pair<std::int32_t, std::int32_t>> pairs_of(const TokenFile& file) {
  std::multiset<std::pair<std::int32_t, std::int32_t>> pairs;
  for (std::int64_t d = 0; d < file.documents(); ++d) {
    for (std::int64_t t = file.begin(d); t + 1 < file.end(d); ++t)
      pairs.emplace(file[t], file[t + 1]);
  }
  return pairs;
}

TEST_F(BatchesTest, EveryRowOncePerEpochWithoutPadding) {
  for (const std::int64_t seq_len : {1, 7, 64, 100'000}) {
    for (const std::int64_t batch_tokens : {std::int64_t{1} << 6, rows_, 3 * rows_ + 5}) {
      const Batches batches(*file_, seq_len, batch_tokens, 9);
      std::vector<std::pair<std::int32_t, std::int32_t>> stream;
      for (std::int64_t step = 0; stream.size() < static_cast<std::size_t>(2 * rows_); ++step) {
        const Batch batch = batches.at(step);
        ASSERT_EQ(static_cast<std::int64_t>(batch.ids.size()), batch_tokens);
        ASSERT_EQ(batch.targets.size(), batch.ids.size());
        ASSERT_EQ(batch.sequences.rows(), batch_tokens);
        ASSERT_EQ(batch.scored, batch_tokens);
        ASSERT_LE(batch.sequences.longest(), seq_len);
        for (std::size_t i = 0; i < batch.ids.size(); ++i) {
          stream.emplace_back(batch.ids[i], batch.targets[i]);
        }
        for (std::int64_t s = 0; s < batch.sequences.count(); ++s) {
          ASSERT_GT(batch.sequences.length(s), 0);
          // Inside a sequence the target of a row is the next row.
          for (std::int64_t r = batch.sequences.begin(s); r + 1 < batch.sequences.end(s); ++r) {
            ASSERT_EQ(batch.targets[static_cast<std::size_t>(r)],
                      batch.ids[static_cast<std::size_t>(r) + 1]);
          }
        }
      }
      const auto expected = pairs_of(*file_);
      for (int epoch = 0; epoch < 2; ++epoch) {
        const auto begin = stream.begin() + epoch * rows_;
        EXPECT_EQ((std::multiset<std::pair<std::int32_t, std::int32_t>>(begin, begin + rows_)),
                  expected);
      }
      EXPECT_EQ(batches.steps_per_epoch(), (rows_ + batch_tokens - 1) / batch_tokens);
    }
  }
}

TEST_F(BatchesTest, SequencesStartWhereDocumentsDo) {
  const Batches batches(*file_, 1'000'000, rows_, 3);
  const Batch batch = batches.at(0);
  ASSERT_EQ(batch.sequences.count(), file_->documents());
  for (std::int64_t s = 0; s < batch.sequences.count(); ++s) {
    EXPECT_EQ(batch.ids[static_cast<std::size_t>(batch.sequences.begin(s))], 1);        // BOS
    EXPECT_EQ(batch.targets[static_cast<std::size_t>(batch.sequences.end(s)) - 1], 2);  // EOS
  }
}

TEST_F(BatchesTest, AStepIsAFunctionOfItsNumberAlone) {
  const Batches forward(*file_, 50, 300, 4);
  std::map<std::int64_t, std::vector<std::int32_t>> seen;
  for (std::int64_t step = 0; step < 30; ++step) seen[step] = forward.at(step).ids;
  const Batches fresh(*file_, 50, 300, 4);
  for (const std::int64_t step : {29, 0, 17, 17, 3, 28}) {  // as after a resume, in any order
    EXPECT_EQ(fresh.at(step).ids, seen[step]);
  }
  const Batches other_seed(*file_, 50, 300, 5);
  EXPECT_NE(other_seed.at(0).ids, seen[0]);
  const Batches whole(*file_, 50, rows_, 4);
  EXPECT_NE(whole.at(0).ids, whole.at(1).ids);  // another order in the next epoch
}

TEST_F(BatchesTest, RefusesBadArguments) {
  message_of([&] { Batches(*file_, 0, 10, 0); }, Status::invalid_argument);
  message_of([&] { Batches(*file_, 10, 0, 0); }, Status::invalid_argument);
  const Batches batches(*file_, 10, 1000, 0);
  message_of([&] { batches.at(-1); }, Status::invalid_argument);
  message_of([&] { batches.at(std::int64_t{1} << 62); }, Status::invalid_argument);
  TokenFile::build(scratch_ / "empty", {}, tokenizer());
  const TokenFile empty = TokenFile::open(scratch_ / "empty");
  message_of([&] { Batches(empty, 10, 10, 0); }, Status::invalid_argument);
}

}  // namespace
}  // namespace rankone::data
