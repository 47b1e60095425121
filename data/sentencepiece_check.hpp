#pragma once

// The judge in front of SentencePiece, whose packaged version (0.1.97) crashes on some hostile
// models. A tokenizer.model is read by our own bounded protobuf reader, and SentencePiece gets a
// fresh encoding of what was understood, never the file itself: nothing that was skipped or that
// the two readers might take differently reaches it.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace rankone::data {

enum class PieceType : std::uint8_t {
  normal = 1,
  unknown = 2,
  control = 3,
  user_defined = 4,
  unused = 5,
  byte = 6,
};

struct Piece {
  std::string text;  // UTF-8, 1 to 512 bytes, no NUL
  float score = 0.0F;
  PieceType type = PieceType::normal;
};

struct SentencePieceModel {
  enum class Kind : std::uint8_t { unigram = 1, bpe = 2 };

  Kind kind = Kind::unigram;
  std::vector<Piece> pieces;  // 1 to 2^18, distinct
  std::int32_t unk = -1;      // the one piece of type unknown
  std::int32_t bos = -1;      // the control pieces that the model names
  std::int32_t eos = -1;
  std::string unk_surface;  // what an unknown piece is decoded to
  bool byte_fallback = false;
  bool whitespace_as_suffix = false;
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;
};

// Reads a model file of at most 16 MiB. Fails with corrupt where it contradicts the format or the
// limits, with unsupported where it is no BPE or unigram model, normalises by a character map,
// holds self-test samples, or names no BOS and EOS. `where` names the source in messages.
SentencePieceModel check_sentencepiece(std::string_view bytes, std::string_view where);

// The same model as a protobuf message, with the fields above and no others.
std::string format_sentencepiece(const SentencePieceModel& model);

}  // namespace rankone::data
