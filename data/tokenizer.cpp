#include "data/tokenizer.hpp"

#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "core/files.hpp"
#include "core/random.hpp"
#include "core/status.hpp"
#include "core/text.hpp"
#include "data/sentencepiece_check.hpp"

// Exported by the library, declared only in a header that is not installed.
namespace sentencepiece::logging {
void SetMinLogLevel(int level);  // NOLINT(readability-identifier-naming)
}

namespace rankone::data {
namespace {

constexpr std::size_t kLargestModel = std::size_t{16} << 20;
constexpr std::size_t kLongestText = std::size_t{1} << 30;  // SentencePiece counts with int
// Training on more text than this changes a vocabulary little and takes minutes.
constexpr std::size_t kTrainingBytes = std::size_t{16} << 20;
// SentencePiece leaves out longer lines without a word.
constexpr std::size_t kLongestLine = 4096;
constexpr std::string_view kWhitespace = "\xe2\x96\x81";  // U+2581, a space inside a piece

// SentencePiece logs to standard error; what matters comes back as a status.
void silence() {
  constexpr int kFatal = 3;
  sentencepiece::logging::SetMinLogLevel(kFatal);
}

void check(const sentencepiece::util::Status& status, Status as, std::string_view where) {
  if (status.ok()) return;
  // "file.cc(line) [condition] what is wrong"
  std::string message = status.message();
  if (const std::size_t end = message.rfind("] "); end != std::string::npos) {
    message.erase(0, end + 2);
  }
  message.resize(std::min<std::size_t>(message.size(), 200));
  std::replace(message.begin(), message.end(), '\n', ' ');
  fail(as, "[tokenizer] {}: SentencePiece says: {}", where, message);
}

std::int32_t text_bytes(const Piece& piece, bool escaped) {
  switch (piece.type) {
    case PieceType::byte:
      return 1;
    case PieceType::unknown:
    case PieceType::control:
      return 0;
    default:
      break;
  }
  std::size_t bytes = piece.text.size();
  for (std::size_t at = 0; escaped && (at = piece.text.find(kWhitespace, at)) != std::string::npos;
       at += kWhitespace.size()) {
    bytes -= kWhitespace.size() - 1;
  }
  return static_cast<std::int32_t>(bytes);
}

// Cuts texts into the lines that SentencePiece trains on. With more text than kTrainingBytes every
// line is kept or not by a draw of its own, so that all documents keep their share.
class Lines final : public sentencepiece::SentenceIterator {
 public:
  explicit Lines(std::span<const std::string_view> texts) : texts_(texts) {
    std::size_t total = 0;
    for (const std::string_view text : texts) total += text.size();
    share_ = total > kTrainingBytes
                 ? static_cast<double>(kTrainingBytes) / static_cast<double>(total)
                 : 1.0;
    advance();
  }

  bool done() const override { return done_; }
  void Next() override { advance(); }
  const std::string& value() const override { return line_; }
  sentencepiece::util::Status status() const override { return {}; }

 private:
  void advance() {
    while (next_line()) {
      if (share_ >= 1.0 || random_.uniform() < share_) return;
    }
    done_ = true;
  }

  // The next line that is not empty, without its end; long ones in parts, cut at a space if any.
  bool next_line() {
    for (; text_ < texts_.size(); ++text_, at_ = 0) {
      const std::string_view text = texts_[text_];
      while (at_ < text.size() && text[at_] == '\n') ++at_;
      if (at_ == text.size()) continue;
      std::string_view line = text.substr(at_, text.find('\n', at_) - at_);
      if (line.size() > kLongestLine) line = line.substr(0, cut(line));
      at_ += line.size();
      line_ = line;
      return true;
    }
    return false;
  }

  static std::size_t cut(std::string_view line) {
    const std::size_t space = line.rfind(' ', kLongestLine);
    if (space != std::string_view::npos && space > 0) return space;
    std::size_t end = kLongestLine;
    while ((static_cast<unsigned char>(line[end]) & 0xc0U) == 0x80U) --end;  // inside a character
    return end;
  }

  std::span<const std::string_view> texts_;
  std::size_t text_ = 0;
  std::size_t at_ = 0;
  double share_ = 1.0;
  Random random_{0};  // a fixed seed: the same texts give the same tokenizer
  std::string line_;
  bool done_ = false;
};

}  // namespace

struct Tokenizer::Impl {
  std::string bytes;
  std::string hash;
  std::int32_t bos = 0;
  std::int32_t eos = 0;
  std::vector<std::int32_t> piece_bytes;
  sentencepiece::SentencePieceProcessor processor;
  bool splits_at_newlines = false;
  std::size_t prefix = 0;  // ids of the dummy prefix, where texts are split

  std::vector<int> encode(std::string_view text) const {
    require(text.size() <= kLongestText, "[tokenizer] a text of {} bytes (at most {})", text.size(),
            kLongestText);
    std::vector<int> ids;
    check(processor.Encode(absl::string_view(text.data(), text.size()), &ids),
          Status::invalid_argument, "encode");
    return ids;
  }

  void prepare_splitting(const SentencePieceModel& model);
};

// A line break is a border that no BPE merge crosses if no other piece contains one. Then a text is
// encoded line by line (the time grows faster than the length), each line led by the break before
// it, so that whatever SentencePiece puts in front of a text can be told from the line and dropped.
void Tokenizer::Impl::prepare_splitting(const SentencePieceModel& model) {
  bool known = false;
  for (const Piece& piece : model.pieces) {
    if (piece.text == "\n") {
      known = piece.type == PieceType::normal || piece.type == PieceType::user_defined;
    } else if (piece.text.find('\n') != std::string::npos) {
      return;
    }
  }
  if (model.kind != SentencePieceModel::Kind::bpe || model.remove_extra_whitespaces ||
      model.whitespace_as_suffix || !(known || model.byte_fallback)) {
    return;
  }
  const std::size_t one = encode("\n").size();
  const std::size_t two = encode("\n\n").size();
  splits_at_newlines = true;
  prefix = 2 * one - two;
}

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Tokenizer Tokenizer::load(const std::filesystem::path& file) {
  return parse(read_file(file, kLargestModel), file.string());
}

Tokenizer Tokenizer::parse(std::string bytes, std::string_view where) {
  silence();
  const SentencePieceModel model = check_sentencepiece(bytes, where);
  auto impl = std::make_unique<Impl>();
  const std::string passed = format_sentencepiece(model);
  check(impl->processor.LoadFromSerializedProto(absl::string_view(passed.data(), passed.size())),
        Status::unsupported, where);
  impl->bos = model.bos;
  impl->eos = model.eos;
  for (const Piece& piece : model.pieces) {
    impl->piece_bytes.push_back(text_bytes(piece, model.escape_whitespaces));
  }
  impl->hash = sha256(std::as_bytes(std::span<const char>(bytes.data(), bytes.size())));
  impl->bytes = std::move(bytes);
  impl->prepare_splitting(model);
  return Tokenizer(std::move(impl));
}

Tokenizer Tokenizer::train(std::span<const std::string_view> texts, std::int64_t vocab_size) {
  // unk, bos, eos, the line break and 256 bytes are in every vocabulary.
  constexpr std::int64_t kFewest = 4 + 256 + 1;
  constexpr std::int64_t kMost = std::int64_t{1} << 18;
  require(vocab_size >= kFewest && vocab_size <= kMost, "[tokenizer] vocab_size {} ({} to {})",
          vocab_size, kFewest, kMost);
  for (const std::string_view text : texts) {
    require(utf8_error(text) == text.size(), "[tokenizer] the training text is not UTF-8");
  }
  silence();
  Lines lines(texts);
  require(!lines.done(), "[tokenizer] no text to train on");
  const std::unordered_map<std::string, std::string> settings{
      {"model_type", "bpe"},
      {"vocab_size", std::to_string(vocab_size)},
      {"byte_fallback", "true"},
      {"normalization_rule_name", "identity"},
      {"remove_extra_whitespaces", "false"},
      {"add_dummy_prefix", "false"},
      {"allow_whitespace_only_pieces", "true"},
      {"split_digits", "true"},
      {"user_defined_symbols", "\n"},
      {"character_coverage", "0.9999"},
      {"max_sentence_length", std::to_string(2 * kLongestLine)},
      {"unk_id", "0"},
      {"bos_id", "1"},
      {"eos_id", "2"},
      {"pad_id", "-1"},
      {"num_threads", "1"},
      {"minloglevel", "3"},
  };
  std::string bytes;
  check(sentencepiece::SentencePieceTrainer::Train(settings, &lines, &bytes),
        Status::invalid_argument, fmt::format("training {} pieces", vocab_size));
  return parse(std::move(bytes), "the trained tokenizer");
}

std::int32_t Tokenizer::size() const {
  return static_cast<std::int32_t>(impl_->piece_bytes.size());
}
std::int32_t Tokenizer::bos() const { return impl_->bos; }
std::int32_t Tokenizer::eos() const { return impl_->eos; }
bool Tokenizer::splits_at_newlines() const { return impl_->splits_at_newlines; }

std::vector<std::int32_t> Tokenizer::encode(std::string_view text, bool continued) const {
  if (!impl_->splits_at_newlines) {
    require(!continued, "[tokenizer] this model has no borders to continue a text at");
    return impl_->encode(text);
  }
  require(!continued || text.starts_with('\n'), "[tokenizer] a continued text without a newline");
  std::vector<std::int32_t> ids;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at + 1), text.size());
    const std::vector<int> line = impl_->encode(text.substr(at, end - at));
    const std::size_t dropped = at > 0 || continued ? impl_->prefix : 0;
    ids.insert(ids.end(), line.begin() + static_cast<std::ptrdiff_t>(dropped), line.end());
    at = end;
  }
  return ids;
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids) const {
  for (const std::int32_t id : ids) {
    require(id >= 0 && id < size(), "[tokenizer] the piece {} (0 to {})", id, size() - 1);
  }
  std::string text;
  check(impl_->processor.Decode(std::vector<int>(ids.begin(), ids.end()), &text),
        Status::invalid_argument, "decode");
  return text;
}

std::int32_t Tokenizer::piece_bytes(std::int32_t id) const {
  require(id >= 0 && id < size(), "[tokenizer] the piece {} (0 to {})", id, size() - 1);
  return impl_->piece_bytes[static_cast<std::size_t>(id)];
}

const std::string& Tokenizer::bytes() const { return impl_->bytes; }
std::string Tokenizer::hash() const { return impl_->hash; }

void Tokenizer::save(const std::filesystem::path& file) const { write_file(file, impl_->bytes); }

}  // namespace rankone::data
