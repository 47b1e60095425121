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

// Reads a file or a folder (recursively, in byte order of the paths) of UTF-8 text, or JSONL with a
// text field. Text that is not UTF-8 is refused with file and offset.
std::vector<Document> read_documents(const std::filesystem::path& path);

struct Split {
  std::vector<Document> train;
  std::vector<Document> valid;
};
// Without --valid: the last `fraction` of every document over 100 kB, cut at a line end, is held
// out.
Split hold_out(std::vector<Document> documents, double fraction);

// Documents as tokens: BOS, pieces, EOS each. u16 or u32 on disk; documented in docs/formats.md.
class TokenFile {
 public:
  // Tokenises (with progress on long work) and writes `file` atomically.
  static void build(const std::filesystem::path& file, std::span<const Document> documents,
                    const Tokenizer& tokenizer);
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
  std::string hash() const;  // of the content; stored in the header

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

// All pieces of at most seq_len rows of all documents, shuffled anew each epoch by (seed, epoch)
// and packed into batches of exactly batch_tokens rows where possible (a piece may be cut at the
// end of a batch, its rest starting the next one; nothing is padded). A pure function of (file,
// seq_len, batch_tokens, seed, step): a resumed run needs only the step number.
class Batches {
 public:
  Batches(const TokenFile& file, std::int64_t seq_len, std::int64_t batch_tokens,
          std::uint64_t seed);
  Batch at(std::int64_t step) const;
  std::int64_t steps_per_epoch() const;

 private:
  const TokenFile* file_;
  std::int64_t seq_len_;
  std::int64_t batch_tokens_;
  std::uint64_t seed_;
};

}  // namespace rankone::data
