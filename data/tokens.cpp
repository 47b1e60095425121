// The token file. Numbers are little-endian; docs/formats.md has the table.
//
//   magic "RANKTOK1", u32 bytes per token (2 or 4), u32 vocabulary, 64 characters tokenizer hash
//   tokens, zeros up to a multiple of 8
//   u64 offsets [documents + 1] of the documents in tokens, u64 bytes of text [documents]
//   u64 tokens, u64 documents, 64 characters: SHA-256 of everything before them

#include "data/tokens.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <fstream>
#include <system_error>
#include <type_traits>

#include "core/files.hpp"
#include "core/progress.hpp"
#include "core/status.hpp"
#include "core/threads.hpp"

namespace rankone::data {
namespace {

namespace fs = std::filesystem;

static_assert(std::endian::native == std::endian::little, "token files are mapped as they are");

constexpr std::string_view kMagic = "RANKTOK1";
constexpr std::size_t kHash = 64;  // hex digits
constexpr std::size_t kHeader = 8 + 4 + 4 + kHash;
constexpr std::size_t kFooter = 8 + 8 + kHash;
constexpr std::size_t kBlock = std::size_t{256} << 10;  // text one task encodes

template <class T>
T load(std::span<const std::byte> bytes, std::size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(T));
  return value;
}

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span<const char>(text.data(), text.size()));
}

// Writes and hashes.
class Writer {
 public:
  explicit Writer(const fs::path& file) : file_(file) {}

  void put(std::span<const std::byte> bytes) {
    hash_.update(bytes);
    file_.write(bytes);
    size_ += bytes.size();
  }
  template <class T>
  void put(std::span<const T> values) {
    put(std::as_bytes(values));
  }
  template <class T>
  requires std::is_integral_v<T>
  void put(T value) { put(std::as_bytes(std::span<const T>(&value, 1))); }
  std::size_t size() const { return size_; }
  void commit() {
    file_.write(hash_.finish());
    file_.commit();
  }

 private:
  AtomicFile file_;
  Sha256 hash_;
  std::size_t size_ = 0;
};

// A part of a document that one task encodes.
struct Block {
  std::size_t document = 0;
  std::string_view text;
  bool first = false;
  bool last = false;
};

std::vector<Block> cut_blocks(std::span<const Document> documents, bool at_newlines) {
  std::vector<Block> blocks;
  for (std::size_t i = 0; i < documents.size(); ++i) {
    const std::string_view text = documents[i].text;
    std::size_t at = 0;
    do {
      std::size_t end = text.size();
      if (at_newlines && text.size() - at > kBlock) {
        end = std::min(text.find('\n', at + kBlock), text.size());
      }
      blocks.push_back({i, text.substr(at, end - at), at == 0, end == text.size()});
      at = end;
    } while (at < text.size());
  }
  return blocks;
}

void put_tokens(Writer& writer, std::span<const std::int32_t> ids, std::size_t width) {
  if (width == 4) return writer.put(ids);
  const std::vector<std::uint16_t> narrow(ids.begin(), ids.end());
  writer.put(std::span<const std::uint16_t>(narrow));
}

std::size_t width_of(std::int64_t vocabulary) { return vocabulary <= 65536 ? 2 : 4; }

}  // namespace

void TokenFile::build(const fs::path& file, std::span<const Document> documents,
                      const Tokenizer& tokenizer) {
  const std::size_t width = width_of(tokenizer.size());
  const std::vector<Block> blocks = cut_blocks(documents, tokenizer.splits_at_newlines());
  std::vector<std::uint64_t> offsets{0};
  std::vector<std::uint64_t> text_bytes;
  double total = 0;
  for (const Document& document : documents) {
    text_bytes.push_back(document.text.size());
    total += static_cast<double>(document.text.size());
  }
  Writer writer(file);
  writer.put(bytes_of(kMagic));
  writer.put(static_cast<std::uint32_t>(width));
  writer.put(static_cast<std::uint32_t>(tokenizer.size()));
  writer.put(bytes_of(tokenizer.hash()));

  Progress progress("tokenising", total, "MB", 1e6);
  double done = 0;
  std::uint64_t tokens = 0;
  ThreadPool pool;
  // Rounds of a few blocks a thread: the ids of a round are in memory, no more.
  std::vector<std::vector<std::int32_t>> round(static_cast<std::size_t>(pool.size()) * 4);
  for (std::size_t at = 0; at < blocks.size(); at += round.size()) {
    const std::size_t count = std::min(round.size(), blocks.size() - at);
    pool.run(static_cast<std::int64_t>(count), [&](std::int64_t task, int) {
      const Block& block = blocks[at + static_cast<std::size_t>(task)];
      std::vector<std::int32_t> ids;
      if (block.first) ids.push_back(tokenizer.bos());
      const auto pieces = tokenizer.encode(block.text, !block.first);
      ids.insert(ids.end(), pieces.begin(), pieces.end());
      if (block.last) ids.push_back(tokenizer.eos());
      round[static_cast<std::size_t>(task)] = std::move(ids);
    });
    for (std::size_t i = 0; i < count; ++i) {
      put_tokens(writer, round[i], width);
      tokens += round[i].size();
      if (blocks[at + i].last) offsets.push_back(tokens);
      done += static_cast<double>(blocks[at + i].text.size());
    }
    progress.update(done);
  }
  const std::vector<std::byte> padding((8 - writer.size() % 8) % 8);
  writer.put(std::span<const std::byte>(padding));
  writer.put(std::span<const std::uint64_t>(offsets));
  writer.put(std::span<const std::uint64_t>(text_bytes));
  writer.put(tokens);
  writer.put(static_cast<std::uint64_t>(documents.size()));
  writer.commit();
}

struct TokenFile::Impl {
  explicit Impl(const fs::path& file) : map(file) {}

  MappedFile map;
  std::size_t width = 0;
  std::uint32_t vocabulary = 0;
  const std::byte* tokens = nullptr;
  const std::uint64_t* offsets = nullptr;
  const std::uint64_t* text_bytes = nullptr;
  std::uint64_t token_count = 0;
  std::uint64_t document_count = 0;
  std::string tokenizer_hash;
  std::string hash;

  void lay_out(std::string_view where);
  void validate(std::string_view where) const;
  template <class T>
  void validate_ids(std::string_view where) const;
};

namespace {

[[noreturn]] void corrupt(std::string_view where, std::string_view what) {
  fail(Status::corrupt, "[tokens] {}: {}", where, what);
}

bool is_hex(std::string_view text) {
  return text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

}  // namespace

// Finds the parts by the counts in the footer, which must add up to the size exactly.
void TokenFile::Impl::lay_out(std::string_view where) {
  const std::span<const std::byte> bytes = map.bytes();
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (bytes.size() < kHeader + 8 + kFooter || !text.starts_with(kMagic)) {
    corrupt(where, "no token file");
  }
  width = load<std::uint32_t>(bytes, 8);
  vocabulary = load<std::uint32_t>(bytes, 12);
  tokenizer_hash = text.substr(16, kHash);
  const std::size_t footer = bytes.size() - kFooter;
  token_count = load<std::uint64_t>(bytes, footer);
  document_count = load<std::uint64_t>(bytes, footer + 8);
  hash = text.substr(footer + 16);
  if (vocabulary == 0 || vocabulary > 0x7fffffffU || width != width_of(vocabulary) ||
      !is_hex(tokenizer_hash) || !is_hex(hash)) {
    corrupt(where, "a header that no token file has");
  }
  const std::size_t body = footer - kHeader;
  // Each part is compared with what is left before it is multiplied.
  if (document_count > body / 16 || token_count > body / width) {
    corrupt(where, fmt::format("{} tokens of {} documents in {} bytes", token_count, document_count,
                               body));
  }
  const std::size_t token_bytes = (token_count * width + 7) / 8 * 8;
  const std::size_t table_bytes = 8 * (2 * document_count + 1);
  if (token_bytes > body || table_bytes != body - token_bytes) {
    corrupt(where, fmt::format("{} tokens of {} documents in {} bytes", token_count, document_count,
                               body));
  }
  tokens = bytes.data() + kHeader;
  offsets = reinterpret_cast<const std::uint64_t*>(tokens + token_bytes);
  text_bytes = offsets + document_count + 1;
}

template <class T>
void TokenFile::Impl::validate_ids(std::string_view where) const {
  const auto* ids = reinterpret_cast<const T*>(tokens);
  const auto* bad = std::find_if(ids, ids + token_count, [&](T id) { return id >= vocabulary; });
  if (bad != ids + token_count) {
    corrupt(where, fmt::format("token {} is {} (below {})", bad - ids, *bad, vocabulary));
  }
}

void TokenFile::Impl::validate(std::string_view where) const {
  const std::span<const std::byte> bytes = map.bytes();
  if (sha256(bytes.first(bytes.size() - kHash)) != hash) corrupt(where, "the checksum is wrong");
  for (std::uint64_t i = 0; i < document_count; ++i) {
    // BOS and EOS at least. Reversed offsets would wrap.
    if (offsets[i + 1] > token_count || offsets[i + 1] < offsets[i] ||
        offsets[i + 1] - offsets[i] < 2) {
      corrupt(where, fmt::format("document {} from token {} to {}", i, offsets[i], offsets[i + 1]));
    }
  }
  if (offsets[0] != 0 || offsets[document_count] != token_count) {
    corrupt(where, "the documents do not cover the tokens");
  }
  if (width == 2) {
    validate_ids<std::uint16_t>(where);
  } else {
    validate_ids<std::uint32_t>(where);
  }
}

TokenFile::TokenFile(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TokenFile::TokenFile(TokenFile&&) noexcept = default;
TokenFile& TokenFile::operator=(TokenFile&&) noexcept = default;
TokenFile::~TokenFile() = default;

bool TokenFile::recognises(const fs::path& file) {
  std::error_code none;
  if (!fs::is_regular_file(file, none)) return false;
  std::string first(kMagic.size(), '\0');
  std::ifstream stream(file, std::ios::binary);
  stream.read(first.data(), static_cast<std::streamsize>(first.size()));
  return stream && first == kMagic;
}

TokenFile TokenFile::open(const fs::path& file) {
  auto impl = std::make_unique<Impl>(file);
  impl->lay_out(file.string());
  impl->validate(file.string());
  return TokenFile(std::move(impl));
}

std::int64_t TokenFile::tokens() const { return static_cast<std::int64_t>(impl_->token_count); }
std::int64_t TokenFile::documents() const {
  return static_cast<std::int64_t>(impl_->document_count);
}
std::int64_t TokenFile::begin(std::int64_t document) const {
  return static_cast<std::int64_t>(impl_->offsets[document]);
}
std::int64_t TokenFile::end(std::int64_t document) const {
  return static_cast<std::int64_t>(impl_->offsets[document + 1]);
}
std::int64_t TokenFile::document_bytes(std::int64_t document) const {
  return static_cast<std::int64_t>(impl_->text_bytes[document]);
}
std::int32_t TokenFile::operator[](std::int64_t token) const {
  if (impl_->width == 2) return reinterpret_cast<const std::uint16_t*>(impl_->tokens)[token];
  return reinterpret_cast<const std::int32_t*>(impl_->tokens)[token];
}
std::int32_t TokenFile::vocabulary() const { return static_cast<std::int32_t>(impl_->vocabulary); }
std::string TokenFile::tokenizer_hash() const { return impl_->tokenizer_hash; }
std::string TokenFile::hash() const { return impl_->hash; }

}  // namespace rankone::data
