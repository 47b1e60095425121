#pragma once

// SentencePiece tokenizers. A tokenizer.model is hostile input: our own bounded protobuf reader
// passes judgement first (data/sentencepiece_check.hpp), and SentencePiece sees only what it
// accepted.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace rankone::data {

class Tokenizer {
 public:
  static Tokenizer load(const std::filesystem::path& file);
  static Tokenizer parse(std::string bytes, std::string_view where);
  // Trains a BPE model of `vocab_size` pieces: byte fallback, identity normalisation, newline a
  // piece of its own, nothing put in front of a text. The same texts give the same bytes. `texts`
  // are whole documents; of more than 16 MiB, lines drawn evenly are used. 261 <= vocab_size <=
  // 2^18; fails with invalid_argument where the text has too few or too many different pieces.
  static Tokenizer train(std::span<const std::string_view> texts, std::int64_t vocab_size);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  std::int32_t size() const;
  std::int32_t bos() const;
  std::int32_t eos() const;
  // Without BOS and EOS. A text may be cut in front of newlines if splits_at_newlines(): the ids of
  // its first part, then those of the others with `continued`, are the ids of the whole.
  std::vector<std::int32_t> encode(std::string_view text, bool continued = false) const;
  bool splits_at_newlines() const;
  // Pieces that are no UTF-8 together become U+FFFD.
  std::string decode(std::span<const std::int32_t> ids) const;
  // UTF-8 bytes of the text that a piece stands for (a byte piece: 1; control and unknown pieces:
  // 0). Over the pieces of a text they add up to its bytes, and a leading space where the model
  // puts one in front of every text.
  std::int32_t piece_bytes(std::int32_t id) const;
  const std::string& bytes() const;                    // of the model file
  std::string hash() const;                            // hex, of bytes()
  void save(const std::filesystem::path& file) const;  // atomic

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace rankone::data
