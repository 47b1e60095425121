#pragma once

// Text as a memory-mapped file of tokens with document boundaries, and batches cut from it.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/sequences.hpp"
#include "data/tokenizer.hpp"

namespace rankone::data {

// One document of the input, held in memory or mapped.
struct Document {
  std::string name;  // file, and for JSONL the line
  std::string text;  // valid UTF-8
};

// Reads a file or a folder (recursively, in byte order of the paths; hidden files and links to
// folders are left out) of UTF-8 text; a file NAME.jsonl holds one object with a "text" a line.
// Text that is not UTF-8 is refused with file and offset, a bad line of JSONL with file and line.
// Empty texts are left out; no text at all fails with invalid_argument.
std::vector<Document> read_documents(const std::filesystem::path& path);

struct Split {
  std::vector<Document> train;
  std::vector<Document> valid;
};
// Without --valid: the last `fraction` of every document over 100 kB, cut at a line end, is held
// out. Documents without a line end stay whole; `valid` may be empty.
Split hold_out(std::vector<Document> documents, double fraction);

// Documents as tokens: BOS, pieces, EOS each. u16 or u32 on disk; documented in docs/formats.md.
class TokenFile {
 public:
  // Tokenises on all threads, with progress on long work, and writes `file` atomically. The same
  // documents and tokenizer give the same bytes.
  static void build(const std::filesystem::path& file, std::span<const Document> documents,
                    const Tokenizer& tokenizer);
  // Whether the file begins as a token file does; false for what can not be read.
  static bool recognises(const std::filesystem::path& file);
  // Maps and validates: a corrupt, truncated or foreign file fails with Status::corrupt.
  static TokenFile open(const std::filesystem::path& file);

  TokenFile(TokenFile&&) noexcept;
  TokenFile& operator=(TokenFile&&) noexcept;
  ~TokenFile();

  std::int64_t tokens() const;
  std::int64_t documents() const;
  std::int64_t begin(std::int64_t document) const;  // token index
  std::int64_t end(std::int64_t document) const;
  std::int64_t document_bytes(std::int64_t document) const;  // UTF-8 bytes of its text
  std::int32_t operator[](std::int64_t token) const;
  std::int32_t vocabulary() const;
  std::string tokenizer_hash() const;
  std::string hash() const;  // SHA-256 of all before it in the file, in hex

 private:
  struct Impl;
  explicit TokenFile(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// A training batch: packed sequences, each a piece of one document, the state reset at each start.
// The target of a row is the next token of the same document; the last token of a document (EOS)
// has none.
struct Batch {
  std::vector<std::int32_t> ids;      // [R]
  std::vector<std::int32_t> targets;  // [R]; -1: not scored
  Sequences sequences;                // over the R rows
  std::int64_t scored = 0;            // targets >= 0
};

// All pieces of at most seq_len rows of all documents, shuffled anew each epoch by (seed, epoch),
// one epoch after the other, cut into batches of exactly batch_tokens rows: a piece may be cut at
// the end of a batch, its rest starting the next one as a sequence of its own, and a batch may hold
// the end of one epoch and the start of the next; nothing is padded. Every token but the last of
// its document is an input once per epoch. A pure function of (file, seq_len, batch_tokens, seed,
// step): a resumed run needs only the step number. `file` must outlive it.
class Batches {
 public:
  // seq_len, batch_tokens >= 1; fails with invalid_argument where the file has no document.
  Batches(const TokenFile& file, std::int64_t seq_len, std::int64_t batch_tokens,
          std::uint64_t seed);
  Batches(Batches&&) noexcept;
  Batches& operator=(Batches&&) noexcept;
  ~Batches();
  Batch at(std::int64_t step) const;
  std::int64_t steps_per_epoch() const;  // rounded up

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace rankone::data
