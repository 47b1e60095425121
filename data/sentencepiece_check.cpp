#include "data/sentencepiece_check.hpp"

#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <unordered_map>

#include "core/status.hpp"
#include "core/text.hpp"

namespace rankone::data {
namespace {

constexpr std::size_t kLargestFile = std::size_t{16} << 20;
constexpr std::size_t kMostPieces = std::size_t{1} << 18;
constexpr std::size_t kLongestPiece = 512;
constexpr float kLargestScore = 1e9F;  // sums over a line stay finite

// Wire types of the protobuf encoding; groups (3, 4) are obsolete and refused.
enum class Wire : std::uint8_t { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };

struct Field {
  std::uint32_t number = 0;
  Wire wire = Wire::varint;
  std::uint64_t value = 0;  // varint, fixed64, fixed32
  std::string_view bytes;
};

// The fields of one message, none of which reaches past its end.
class Message {
 public:
  Message(std::string_view rest, std::string_view where) : rest_(rest), where_(where) {}

  bool next(Field& field) {
    if (rest_.empty()) return false;
    const std::uint64_t tag = varint();
    field = Field{};
    if (tag > std::numeric_limits<std::uint32_t>::max() || tag >> 3 == 0) {
      corrupt(fmt::format("a field with the tag {}", tag));
    }
    field.number = static_cast<std::uint32_t>(tag >> 3);
    switch (tag & 7) {
      case 0:
        field.wire = Wire::varint;
        field.value = varint();
        return true;
      case 1:
        field.wire = Wire::fixed64;
        field.value = fixed(8);
        return true;
      case 2:
        field.wire = Wire::bytes;
        field.bytes = take(varint());
        return true;
      case 5:
        field.wire = Wire::fixed32;
        field.value = fixed(4);
        return true;
      default:
        corrupt(fmt::format("a field of wire type {}", tag & 7));
    }
  }

  [[noreturn]] void corrupt(std::string_view what) const {
    fail(Status::corrupt, "[tokenizer] {}: {}", where_, what);
  }

 private:
  std::string_view take(std::uint64_t size) {
    if (size > rest_.size()) {
      corrupt(fmt::format("a field of {} bytes where {} are left", size, rest_.size()));
    }
    const std::string_view taken = rest_.substr(0, static_cast<std::size_t>(size));
    rest_.remove_prefix(taken.size());
    return taken;
  }

  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1)[0]);
      if (shift == 63 && byte > 1) break;  // bit 64
      value |= static_cast<std::uint64_t>(byte & 0x7fU) << shift;
      if (byte < 0x80) return value;
    }
    corrupt("a number of more than 64 bits");
  }

  std::uint64_t fixed(std::size_t size) {
    const std::string_view taken = take(size);
    std::uint64_t value = 0;
    for (std::size_t i = size; i-- > 0;) {
      value = value << 8 | static_cast<unsigned char>(taken[i]);
    }
    return value;
  }

  std::string_view rest_;
  std::string_view where_;
};

// Typed reads of a field, with the wire type its declaration asks for.
class Reader {
 public:
  Reader(Message& message, std::string_view name) : message_(message), name_(name) {}

  std::string_view bytes(const Field& field) const {
    expect(field, Wire::bytes);
    return field.bytes;
  }
  bool boolean(const Field& field) const {
    expect(field, Wire::varint);
    return field.value != 0;
  }
  // int32 and enums: negative numbers are written as 64-bit ones.
  std::int32_t number(const Field& field) const {
    expect(field, Wire::varint);
    const auto value = std::bit_cast<std::int64_t>(field.value);
    if (value < std::numeric_limits<std::int32_t>::min() ||
        value > std::numeric_limits<std::int32_t>::max()) {
      message_.corrupt(fmt::format("{}.{} is {}, no 32-bit number", name_, field.number, value));
    }
    return static_cast<std::int32_t>(value);
  }
  float real(const Field& field) const {
    expect(field, Wire::fixed32);
    return std::bit_cast<float>(static_cast<std::uint32_t>(field.value));
  }
  std::string text(const Field& field, std::size_t longest) const {
    const std::string_view value = bytes(field);
    if (value.empty() || value.size() > longest || value.find('\0') != std::string_view::npos ||
        utf8_error(value) != value.size()) {
      message_.corrupt(fmt::format("{}.{} is {} of {} bytes (UTF-8 without NUL, 1 to {} bytes)",
                                   name_, field.number, printable(value), value.size(), longest));
    }
    return std::string(value);
  }
  // Protobuf lets the last of several win; readers that differ on it must not be played off.
  void once(bool& seen, const Field& field) const {
    if (seen) message_.corrupt(fmt::format("{}.{} stands twice", name_, field.number));
    seen = true;
  }

 private:
  void expect(const Field& field, Wire wire) const {
    if (field.wire != wire) {
      message_.corrupt(fmt::format("{}.{} has wire type {} (not {})", name_, field.number,
                                   static_cast<int>(field.wire), static_cast<int>(wire)));
    }
  }

  Message& message_;
  std::string_view name_;
};

struct Seen {
  std::array<bool, 64> fields{};
  bool& operator[](std::uint32_t number) { return fields[number < 64 ? number : 0]; }
};

// What the trainer's part says of special pieces.
struct Names {
  std::string bos = "<s>";
  std::string eos = "</s>";
  std::array<std::int32_t, 4> ids{0, 1, 2, -1};  // unk, bos, eos, pad
};

Piece read_piece(std::string_view bytes, std::string_view where) {
  Message message(bytes, where);
  const Reader read(message, "piece");
  Seen seen;
  Field field;
  Piece piece;
  while (message.next(field)) {
    if (field.number > 3) continue;
    read.once(seen[field.number], field);
    if (field.number == 1) piece.text = read.text(field, kLongestPiece);
    if (field.number == 2) piece.score = read.real(field);
    if (field.number == 3) {
      const std::int32_t type = read.number(field);
      if (type < 1 || type > 6)
        message.corrupt(fmt::format("a piece of the unknown type {}", type));
      piece.type = static_cast<PieceType>(type);
    }
  }
  if (piece.text.empty()) message.corrupt("a piece without text");
  if (!std::isfinite(piece.score) || std::abs(piece.score) > kLargestScore) {
    message.corrupt(fmt::format("piece {} has the score {} (finite, at most {})",
                                printable(piece.text), piece.score, kLargestScore));
  }
  return piece;
}

void read_trainer(std::string_view bytes, std::string_view where, SentencePieceModel& model,
                  Names& names) {
  Message message(bytes, where);
  const Reader read(message, "trainer_spec");
  Seen seen;
  Field field;
  while (message.next(field)) {
    switch (field.number) {
      case 3: {
        read.once(seen[3], field);
        const std::int32_t kind = read.number(field);
        if (kind != 1 && kind != 2) {
          fail(Status::unsupported, "[tokenizer] {}: the model type {} (1, unigram, or 2, BPE)",
               where, kind);
        }
        model.kind = static_cast<SentencePieceModel::Kind>(kind);
        break;
      }
      case 24:
        read.once(seen[24], field);
        model.whitespace_as_suffix = read.boolean(field);
        break;
      case 35:
        read.once(seen[35], field);
        model.byte_fallback = read.boolean(field);
        break;
      case 40:
      case 41:
      case 42:
      case 43:
        read.once(seen[field.number], field);
        names.ids[field.number - 40] = read.number(field);
        break;
      case 44:
        read.once(seen[44], field);
        model.unk_surface = read.text(field, kLongestPiece);
        break;
      case 46:
        read.once(seen[46], field);
        names.bos = read.text(field, kLongestPiece);
        break;
      case 47:
        read.once(seen[47], field);
        names.eos = read.text(field, kLongestPiece);
        break;
      default:
        break;  // how it was trained
    }
  }
}

// `model` may be null: for the denormaliser, where only the character map matters.
void read_normalizer(std::string_view bytes, std::string_view where, SentencePieceModel* model) {
  Message message(bytes, where);
  const Reader read(message, "normalizer_spec");
  Seen seen;
  Field field;
  while (message.next(field)) {
    if (field.number < 2 || field.number > 5) continue;
    read.once(seen[field.number], field);
    if (field.number == 2) {
      if (!read.bytes(field).empty()) {
        fail(Status::unsupported,
             "[tokenizer] {}: it normalises text by a character map (train with "
             "normalization_rule_name=identity)",
             where);
      }
      continue;
    }
    const bool value = read.boolean(field);
    if (model == nullptr) continue;
    if (field.number == 3) model->add_dummy_prefix = value;
    if (field.number == 4) model->remove_extra_whitespaces = value;
    if (field.number == 5) model->escape_whitespaces = value;
  }
}

// The value of "<0xAB>", or -1.
int byte_value(std::string_view text) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  if (text.size() != 6 || text.substr(0, 3) != "<0x" || text[5] != '>') return -1;
  const std::size_t high = kDigits.find(text[3]);
  const std::size_t low = kDigits.find(text[4]);
  if (high == std::string_view::npos || low == std::string_view::npos) return -1;
  return static_cast<int>(high * 16 + low);
}

using Ids = std::unordered_map<std::string_view, std::int32_t>;

Ids check_pieces(SentencePieceModel& model, const Message& message) {
  Ids ids;
  int bytes = 0;
  for (std::size_t i = 0; i < model.pieces.size(); ++i) {
    const Piece& piece = model.pieces[i];
    const auto id = static_cast<std::int32_t>(i);
    if (!ids.emplace(piece.text, id).second) {
      message.corrupt(fmt::format("piece {} stands twice", printable(piece.text)));
    }
    if (piece.type == PieceType::unknown) {
      if (model.unk >= 0) message.corrupt("two pieces of type unknown");
      model.unk = id;
    }
    if (piece.type == PieceType::byte) {
      ++bytes;
      if (byte_value(piece.text) < 0) {
        message.corrupt(fmt::format("the byte piece {} (<0x00> to <0xFF>)", printable(piece.text)));
      }
    }
  }
  if (model.unk < 0) message.corrupt("no piece of type unknown");
  // Distinct and of that form, so 256 of them are all bytes.
  if (bytes != (model.byte_fallback ? 256 : 0)) {
    message.corrupt(fmt::format("{} byte pieces {} byte fallback", bytes,
                                model.byte_fallback ? "with" : "without"));
  }
  return ids;
}

std::int32_t control_piece(const SentencePieceModel& model, const Ids& ids, const std::string& name,
                           std::string_view where) {
  const auto found = ids.find(name);
  if (found == ids.end() ||
      model.pieces[static_cast<std::size_t>(found->second)].type != PieceType::control) {
    fail(Status::unsupported, "[tokenizer] {}: no control piece {} to mark documents", where,
         printable(name));
  }
  return found->second;
}

void append_varint(std::string& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>((value & 0x7fU) | 0x80U);
  out += static_cast<char>(value);
}

void append_number(std::string& out, std::uint32_t number, std::uint64_t value) {
  append_varint(out, number << 3);
  append_varint(out, value);
}

void append_bytes(std::string& out, std::uint32_t number, std::string_view bytes) {
  append_varint(out, number << 3 | 2U);
  append_varint(out, bytes.size());
  out += bytes;
}

void append_real(std::string& out, std::uint32_t number, float value) {
  append_varint(out, number << 3 | 5U);
  const auto bits = std::bit_cast<std::uint32_t>(value);
  for (int i = 0; i < 4; ++i) out += static_cast<char>(bits >> 8 * i & 0xffU);
}

}  // namespace

SentencePieceModel check_sentencepiece(std::string_view bytes, std::string_view where) {
  if (bytes.size() > kLargestFile) {
    fail(Status::corrupt, "[tokenizer] {}: {} bytes (at most {})", where, bytes.size(),
         kLargestFile);
  }
  Message message(bytes, where);
  const Reader read(message, "model");
  SentencePieceModel model;
  model.unk_surface = " \xe2\x81\x87 ";  // the format's default, U+2047
  Names names;
  Seen seen;
  Field field;
  while (message.next(field)) {
    switch (field.number) {
      case 1:
        if (model.pieces.size() == kMostPieces) {
          message.corrupt(fmt::format("more than {} pieces", kMostPieces));
        }
        model.pieces.push_back(read_piece(read.bytes(field), where));
        break;
      case 2:
        read.once(seen[2], field);
        read_trainer(read.bytes(field), where, model, names);
        break;
      case 3:
        read.once(seen[3], field);
        read_normalizer(read.bytes(field), where, &model);
        break;
      case 4:
        if (!read.bytes(field).empty()) {
          fail(Status::unsupported, "[tokenizer] {}: it holds self-test samples", where);
        }
        break;
      case 5:
        read.once(seen[5], field);
        read_normalizer(read.bytes(field), where, nullptr);
        break;
      default:
        break;  // extensions, which SentencePiece never sees
    }
  }
  if (model.pieces.empty()) message.corrupt("no pieces");
  const Ids ids = check_pieces(model, message);
  for (const std::int32_t id : names.ids) {
    if (id < -1 || id >= static_cast<std::int32_t>(model.pieces.size())) {
      message.corrupt(
          fmt::format("the special piece {} (-1, none, to {})", id, model.pieces.size() - 1));
    }
  }
  model.bos = control_piece(model, ids, names.bos, where);
  model.eos = control_piece(model, ids, names.eos, where);
  return model;
}

std::string format_sentencepiece(const SentencePieceModel& model) {
  const auto text_of = [&](std::int32_t id) -> const std::string& {
    return model.pieces[static_cast<std::size_t>(id)].text;
  };
  std::string out;
  for (const Piece& piece : model.pieces) {
    std::string part;
    append_bytes(part, 1, piece.text);
    append_real(part, 2, piece.score);
    append_number(part, 3, static_cast<std::uint64_t>(piece.type));
    append_bytes(out, 1, part);
  }
  std::string trainer;
  append_number(trainer, 3, static_cast<std::uint64_t>(model.kind));
  append_number(trainer, 4, model.pieces.size());
  append_number(trainer, 24, model.whitespace_as_suffix ? 1 : 0);
  append_number(trainer, 35, model.byte_fallback ? 1 : 0);
  append_number(trainer, 40, static_cast<std::uint64_t>(model.unk));
  append_number(trainer, 41, static_cast<std::uint64_t>(model.bos));
  append_number(trainer, 42, static_cast<std::uint64_t>(model.eos));
  append_bytes(trainer, 44, model.unk_surface);
  append_bytes(trainer, 45, text_of(model.unk));
  append_bytes(trainer, 46, text_of(model.bos));
  append_bytes(trainer, 47, text_of(model.eos));
  append_bytes(out, 2, trainer);
  std::string normalizer;
  append_bytes(normalizer, 1, "identity");
  append_number(normalizer, 3, model.add_dummy_prefix ? 1 : 0);
  append_number(normalizer, 4, model.remove_extra_whitespaces ? 1 : 0);
  append_number(normalizer, 5, model.escape_whitespaces ? 1 : 0);
  append_bytes(out, 3, normalizer);
  return out;
}

}  // namespace rankone::data
