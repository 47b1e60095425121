#include "data/sentencepiece_check.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <limits>
#include <string>

#include "core/status.hpp"
#include "data/tokenizer.hpp"

namespace rankone::data {
namespace {

SentencePieceModel small() {
  SentencePieceModel model;
  model.kind = SentencePieceModel::Kind::bpe;
  model.unk = 0;
  model.bos = 1;
  model.eos = 2;
  model.unk_surface = " \xe2\x81\x87 ";
  model.remove_extra_whitespaces = false;
  model.add_dummy_prefix = false;
  model.pieces = {{"<unk>", 0, PieceType::unknown}, {"<s>", 0, PieceType::control},
                  {"</s>", 0, PieceType::control},  {"\n", 0, PieceType::user_defined},
                  {"ab", 0, PieceType::normal},     {"a", -1, PieceType::normal},
                  {"b", -2, PieceType::normal},     {"\xe2\x96\x81", -3, PieceType::normal}};
  return model;
}

std::string bytes_of(const std::function<void(SentencePieceModel&)>& change = {}) {
  SentencePieceModel model = small();
  if (change) change(model);
  return format_sentencepiece(model);
}

// Protobuf by hand: what our own writer never writes.
std::string varint(std::uint64_t value) {
  std::string out;
  for (; value >= 0x80; value >>= 7) out += static_cast<char>((value & 0x7fU) | 0x80U);
  return out + static_cast<char>(value);
}
std::string number(std::uint32_t field, std::uint64_t value) {
  return varint(field << 3) + varint(value);
}
std::string bytes(std::uint32_t field, std::string_view value) {
  return varint(field << 3 | 2U) + varint(value.size()) + std::string(value);
}
std::string real(std::uint32_t field, float value) {
  std::string out = varint(field << 3 | 5U) + std::string(4, '\0');
  std::memcpy(out.data() + out.size() - 4, &value, 4);
  return out;
}

// Status of the whole load: where our reader accepts, SentencePiece must too.
Status refusal(const std::string& model) {
  try {
    Tokenizer::parse(model, "here");
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()).rfind("[tokenizer] here: ", 0), 0U) << error.what();
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    return error.status();
  }
  return Status::ok;
}

TEST(SentencePieceCheck, AcceptsASmallModelAndKeepsIt) {
  const std::string model = bytes_of();
  ASSERT_EQ(refusal(model), Status::ok);
  EXPECT_EQ(format_sentencepiece(check_sentencepiece(model, "here")), model);
  const Tokenizer tokenizer = Tokenizer::parse(model, "here");
  EXPECT_EQ(tokenizer.encode("ab a\nb"), (std::vector<std::int32_t>{4, 7, 5, 3, 6}));
  EXPECT_EQ(tokenizer.piece_bytes(7), 1);
  EXPECT_EQ(tokenizer.piece_bytes(4), 2);
  EXPECT_EQ(tokenizer.encode("x"), std::vector<std::int32_t>{0});
}

TEST(SentencePieceCheck, KeepsEverySettingThatMatters) {
  for (int bits = 0; bits < 32; ++bits) {
    const std::string model = bytes_of([&](SentencePieceModel& m) {
      m.kind = (bits & 1) != 0 ? SentencePieceModel::Kind::unigram : SentencePieceModel::Kind::bpe;
      m.add_dummy_prefix = (bits & 2) != 0;
      m.remove_extra_whitespaces = (bits & 4) != 0;
      m.escape_whitespaces = (bits & 8) != 0;
      m.whitespace_as_suffix = (bits & 16) != 0;
    });
    EXPECT_EQ(format_sentencepiece(check_sentencepiece(model, "here")), model);
    EXPECT_EQ(refusal(model), Status::ok) << bits;
  }
}

TEST(SentencePieceCheck, IgnoresFieldsOfNewerVersions) {
  std::string model = bytes_of();
  model += number(77, 5) + bytes(200, "extension") + real(201, 1.0F);
  EXPECT_EQ(refusal(model), Status::ok);
  // Inside a piece too.
  model += bytes(1, bytes(1, "new") + number(9, 1) + bytes(10, "x"));
  EXPECT_EQ(refusal(model), Status::ok);
}

TEST(SentencePieceCheck, TruncationIsRefusedButBetweenParts) {
  const std::string model = bytes_of();
  int accepted = 0;
  for (std::size_t size = 0; size < model.size(); ++size) {
    if (refusal(model.substr(0, size)) == Status::ok) ++accepted;
  }
  // After each piece beyond the special ones, and after the trainer's part, a prefix is a model of
  // its own.
  EXPECT_EQ(accepted, 6);
}

TEST(SentencePieceCheck, RefusesBadProtobuf) {
  const std::string model = bytes_of();
  EXPECT_EQ(refusal(model + std::string("\x00", 1)), Status::corrupt);  // field 0
  EXPECT_EQ(refusal(model + "\x0b"), Status::corrupt);                  // a group
  EXPECT_EQ(refusal(model + "\x0c"), Status::corrupt);                  // its end
  EXPECT_EQ(refusal(model + "\x0e"), Status::corrupt);                  // wire type 6
  EXPECT_EQ(refusal(model + "\x0f"), Status::corrupt);                  // wire type 7
  EXPECT_EQ(refusal(model + "\x0a\x05"
                            "ab"),
            Status::corrupt);  // past the end
  EXPECT_EQ(refusal(model + "\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), Status::corrupt);
  EXPECT_EQ(refusal(model + number(77, 0).substr(0, 2) + std::string(9, '\xff') + "\x02"),
            Status::corrupt);  // more than 64 bits
  EXPECT_EQ(refusal(model + std::string(11, '\xff')), Status::corrupt);
  EXPECT_EQ(refusal(model + varint(std::uint64_t{1} << 35) + "\x01"), Status::corrupt);  // tag
  EXPECT_EQ(refusal(model + varint(201U << 3 | 5U) + "abc"), Status::corrupt);  // half a float
  EXPECT_EQ(refusal(std::string((16 << 20) + 1, '\0')), Status::corrupt);
}

TEST(SentencePieceCheck, RefusesWrongWireTypes) {
  const std::string model = bytes_of();
  EXPECT_EQ(refusal(model + number(1, 1)), Status::corrupt);
  EXPECT_EQ(refusal(number(2, 1) + model), Status::corrupt);
  EXPECT_EQ(refusal(model + bytes(1, number(1, 5))), Status::corrupt);  // piece text
  EXPECT_EQ(refusal(model + bytes(1, bytes(1, "x") + number(2, 5))), Status::corrupt);   // score
  EXPECT_EQ(refusal(model + bytes(1, bytes(1, "x") + bytes(3, "x"))), Status::corrupt);  // type
  EXPECT_EQ(refusal(bytes(2, bytes(3, "x"))), Status::corrupt);
  EXPECT_EQ(refusal(bytes(2, real(35, 1))), Status::corrupt);
  EXPECT_EQ(refusal(bytes(3, bytes(3, "x"))), Status::corrupt);
  EXPECT_EQ(refusal(bytes(3, number(2, 1))), Status::corrupt);
}

TEST(SentencePieceCheck, RefusesRepeatedParts) {
  const std::string model = bytes_of();
  EXPECT_EQ(refusal(model + bytes(2, "")), Status::corrupt);
  EXPECT_EQ(refusal(model + bytes(3, "")), Status::corrupt);
  EXPECT_EQ(refusal(model + bytes(5, "") + bytes(5, "")), Status::corrupt);
  EXPECT_EQ(refusal(model + bytes(1, bytes(1, "x") + bytes(1, "y"))), Status::corrupt);
  EXPECT_EQ(refusal(bytes(2, number(3, 2) + number(3, 1))), Status::corrupt);
}

TEST(SentencePieceCheck, RefusesBadPieces) {
  const auto with = [](Piece piece) {
    return refusal(bytes_of([&](SentencePieceModel& m) { m.pieces.push_back(piece); }));
  };
  EXPECT_EQ(with({"new", -4, PieceType::normal}), Status::ok);
  EXPECT_EQ(with({"new", -4, PieceType::unused}), Status::ok);
  EXPECT_EQ(with({std::string(512, 'x'), 0, PieceType::normal}), Status::ok);
  EXPECT_EQ(with({std::string(513, 'x'), 0, PieceType::normal}), Status::corrupt);
  EXPECT_EQ(with({"", 0, PieceType::normal}), Status::corrupt);
  EXPECT_EQ(with({std::string("a\0b", 3), 0, PieceType::normal}), Status::corrupt);
  EXPECT_EQ(with({"\xff", 0, PieceType::normal}), Status::corrupt);
  EXPECT_EQ(with({"ab", 0, PieceType::normal}), Status::corrupt);      // twice
  EXPECT_EQ(with({"other", 0, PieceType::unknown}), Status::corrupt);  // a second unknown
  EXPECT_EQ(with({"<0x41>", 0, PieceType::byte}), Status::corrupt);    // without byte fallback
  EXPECT_EQ(with({"x", 0, static_cast<PieceType>(0)}), Status::corrupt);
  EXPECT_EQ(with({"x", 0, static_cast<PieceType>(7)}), Status::corrupt);
  EXPECT_EQ(with({"x", std::numeric_limits<float>::infinity(), PieceType::normal}),
            Status::corrupt);
  EXPECT_EQ(with({"x", std::numeric_limits<float>::quiet_NaN(), PieceType::normal}),
            Status::corrupt);
  EXPECT_EQ(with({"x", 2e9F, PieceType::normal}), Status::corrupt);
  EXPECT_EQ(refusal(bytes_of() + bytes(1, "")), Status::corrupt);  // no text at all
  // A type beyond 32 bits that a 32-bit reader takes for 1.
  EXPECT_EQ(refusal(bytes_of() + bytes(1, bytes(1, "x") + number(3, (std::uint64_t{1} << 32) + 1))),
            Status::corrupt);
}

TEST(SentencePieceCheck, RefusesAnIncompleteByteFallback) {
  const auto with_bytes = [](int count) {
    return refusal(bytes_of([&](SentencePieceModel& m) {
      m.byte_fallback = true;
      for (int i = 0; i < count; ++i) {
        m.pieces.push_back({fmt::format("<0x{:02X}>", i), 0, PieceType::byte});
      }
    }));
  };
  EXPECT_EQ(with_bytes(256), Status::ok);
  EXPECT_EQ(with_bytes(255), Status::corrupt);
  EXPECT_EQ(with_bytes(0), Status::corrupt);
  for (const char* name : {"<0xaB>", "<0xG0>", "<0x100>", "0x41", "<0x4>"}) {
    EXPECT_EQ(refusal(bytes_of([&](SentencePieceModel& m) {
                m.byte_fallback = true;
                for (int i = 0; i < 255; ++i) {
                  m.pieces.push_back({fmt::format("<0x{:02X}>", i), 0, PieceType::byte});
                }
                m.pieces.push_back({name, 0, PieceType::byte});
              })),
              Status::corrupt)
        << name;
  }
}

TEST(SentencePieceCheck, RefusesTooManyPieces) {
  std::string model = bytes_of();
  const std::size_t own = small().pieces.size();
  for (std::size_t i = own; i < (1 << 18); ++i) model += bytes(1, bytes(1, std::to_string(i)));
  EXPECT_NO_THROW(check_sentencepiece(model, "here"));
  model += bytes(1, bytes(1, "one more"));
  EXPECT_EQ(refusal(model), Status::corrupt);
}

TEST(SentencePieceCheck, RefusesWhatItDoesNotSupport) {
  std::string pieces;
  for (const Piece& piece : small().pieces) {
    pieces += bytes(1, bytes(1, piece.text) + number(3, static_cast<std::uint64_t>(piece.type)));
  }
  ASSERT_EQ(refusal(pieces), Status::ok);  // all settings by default: unigram
  EXPECT_EQ(refusal(pieces + bytes(2, number(3, 3))), Status::unsupported);  // words
  EXPECT_EQ(refusal(pieces + bytes(2, number(3, 4))), Status::unsupported);  // characters
  EXPECT_EQ(refusal(pieces + bytes(2, number(3, 0))), Status::unsupported);
  EXPECT_EQ(refusal(pieces + bytes(3, bytes(2, "map"))), Status::unsupported);
  EXPECT_EQ(refusal(pieces + bytes(5, bytes(2, "map"))), Status::unsupported);
  EXPECT_EQ(refusal(pieces + bytes(4, bytes(1, "x"))), Status::unsupported);  // self test
  EXPECT_EQ(refusal(pieces + bytes(4, "")), Status::ok);
  EXPECT_EQ(refusal(pieces + bytes(2, bytes(46, "ab"))), Status::unsupported);    // no control
  EXPECT_EQ(refusal(pieces + bytes(2, bytes(47, "none"))), Status::unsupported);  // absent
  for (const std::uint32_t field : {40U, 41U, 42U, 43U}) {
    EXPECT_EQ(refusal(pieces + bytes(2, number(field, 7))), Status::ok);
    EXPECT_EQ(refusal(pieces + bytes(2, number(field, 8))), Status::corrupt);
    EXPECT_EQ(refusal(pieces + bytes(2, number(field, ~std::uint64_t{1}))), Status::corrupt);  // -2
  }
  EXPECT_EQ(refusal(""), Status::corrupt);
  EXPECT_EQ(refusal(bytes_of([](SentencePieceModel& m) { m.pieces[0].type = PieceType::normal; })),
            Status::corrupt);  // no unknown piece
}

}  // namespace
}  // namespace rankone::data
