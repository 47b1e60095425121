#include "eval/perplexity.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/status.hpp"

namespace rankone::eval {
namespace {

// One sequence to read: BOS, then the pieces [context_begin, end) (token indices of the file), of
// which [target_begin, end) are scored.
struct Window {
  std::int64_t document;
  std::int64_t context_begin;
  std::int64_t target_begin;
  std::int64_t end;
  std::int64_t rows() const { return end - context_begin; }
};

// The pieces of a document, between BOS and EOS.
std::int64_t first_piece(const data::TokenFile& file, std::int64_t document) {
  return file.begin(document) + 1;
}
std::int64_t end_of_pieces(const data::TokenFile& file, std::int64_t document) {
  return std::max(file.end(document) - 1, first_piece(file, document));
}

std::vector<Window> whole_documents(const data::TokenFile& file) {
  std::vector<Window> windows;
  for (std::int64_t document = 0; document < file.documents(); ++document) {
    const std::int64_t begin = first_piece(file, document);
    const std::int64_t end = end_of_pieces(file, document);
    if (end > begin) windows.push_back({document, begin, begin, end});
  }
  require(!windows.empty(), "[eval] the text has no piece to score");
  return windows;
}

void require_long_enough(const data::TokenFile& file, std::int64_t longest) {
  std::int64_t usable = 0;
  for (std::int64_t document = 0; document < file.documents(); ++document) {
    usable = std::max(usable, end_of_pieces(file, document) - first_piece(file, document));
  }
  require(
      usable >= longest,
      "[eval] length {} is more than any document has pieces, the longest usable length is {}{}",
      longest, usable,
      usable < kTargetBlock ? fmt::format(" (and {} are needed)", kTargetBlock) : "");
}

// The target blocks, as windows of the longest length.
std::vector<Window> target_blocks(const data::TokenFile& file, std::int64_t longest,
                                  std::int64_t most) {
  require_long_enough(file, longest);
  std::vector<Window> blocks;
  for (std::int64_t document = 0; document < file.documents(); ++document) {
    const std::int64_t last = end_of_pieces(file, document);
    for (std::int64_t end = first_piece(file, document) + longest; end <= last;
         end += kTargetBlock) {
      blocks.push_back({document, end - longest, end - kTargetBlock, end});
    }
  }
  const auto count = static_cast<std::int64_t>(blocks.size());
  if (most <= 0 || most >= count) return blocks;
  std::vector<Window> spread;
  for (std::int64_t i = 0; i < most; ++i) {
    spread.push_back(blocks[static_cast<std::size_t>(i * count / most)]);
  }
  return spread;
}

struct Totals {
  std::vector<Unit> nats;   // over targets
  std::vector<Unit> bytes;  // the same nats over bytes
};

// Collects the loss of each target, in the order of the text, per document and per block of
// kUnitTargets targets of a document.
class Collector {
 public:
  explicit Collector(const Vocabulary& vocabulary) : vocabulary_(vocabulary) {}

  void add(std::int64_t document, std::int32_t target, double nats) {
    if (document != document_) {
      document_ = document;
      documents_.nats.emplace_back();
      documents_.bytes.emplace_back();
    }
    if (documents_.nats.back().size == 0 || blocks_.nats.back().size == kUnitTargets) {
      blocks_.nats.emplace_back();
      blocks_.bytes.emplace_back();
    }
    const std::int64_t bytes = vocabulary_.piece_bytes[static_cast<std::size_t>(target)];
    for (Totals* totals : {&documents_, &blocks_}) {
      totals->nats.back().total += nats;
      totals->nats.back().size += 1;
      totals->bytes.back().total += nats / std::numbers::ln2;
      totals->bytes.back().size += static_cast<double>(bytes);
    }
    ++targets_;
    bytes_ += bytes;
  }

  Score score(std::int64_t length) const {
    Score result;
    result.length = length;
    result.targets = targets_;
    result.bytes = bytes_;
    result.documents = static_cast<std::int64_t>(documents_.nats.size());
    result.units_are_documents = result.documents >= kFewestDocuments;
    const Totals& totals = result.units_are_documents ? documents_ : blocks_;
    result.units = static_cast<std::int64_t>(totals.nats.size());
    result.nats = mean_of(totals.nats);
    result.bits_per_byte = mean_of(totals.bytes);
    result.perplexity = std::exp(result.nats.value);
    result.perplexity_error = result.perplexity * result.nats.standard_error;
    return result;
  }

 private:
  const Vocabulary& vocabulary_;
  Totals documents_;
  Totals blocks_;
  std::int64_t document_ = -1;
  std::int64_t targets_ = 0;
  std::int64_t bytes_ = 0;
};

// Rows of one call to the scorer.
struct Rows {
  std::vector<std::int32_t> ids;
  std::vector<std::int32_t> targets;
  std::vector<double> losses;
  void clear() {
    ids.clear();
    targets.clear();
  }
};

class Evaluation {
 public:
  Evaluation(Scorer& scorer, const data::TokenFile& file, const Vocabulary& vocabulary,
             const PerplexityOptions& options, std::int64_t all_rows)
      : scorer_(scorer),
        file_(file),
        vocabulary_(vocabulary),
        options_(options),
        all_rows_(all_rows) {}

  // Short windows share a call; one that is longer than a call is read in pieces.
  Score run(std::span<const Window> windows, std::int64_t length) {
    Collector collector(vocabulary_);
    std::size_t next = 0;
    while (next < windows.size()) {
      if (windows[next].rows() > options_.rows) {
        run_long(windows[next++], collector);
        continue;
      }
      const std::size_t first = next;
      std::int64_t rows = 0;
      while (next < windows.size() && rows + windows[next].rows() <= options_.rows) {
        rows += windows[next++].rows();
      }
      run_together(windows.subspan(first, next - first), collector);
    }
    return collector.score(length);
  }

 private:
  // Appends the rows whose targets are the pieces [begin, end): row i reads the piece before.
  void append(const Window& window, std::int64_t begin, std::int64_t end) {
    for (std::int64_t at = begin; at < end; ++at) {
      rows_.ids.push_back(at == window.context_begin ? vocabulary_.bos : file_[at - 1]);
      rows_.targets.push_back(at >= window.target_begin ? file_[at] : -1);
    }
  }

  void collect(const Window& window, std::int64_t first_row, std::int64_t count,
               Collector& collector) const {
    for (std::int64_t i = first_row; i < first_row + count; ++i) {
      const auto row = static_cast<std::size_t>(i);
      if (rows_.targets[row] >= 0) {
        collector.add(window.document, rows_.targets[row], rows_.losses[row]);
      }
    }
  }

  void run_together(std::span<const Window> windows, Collector& collector) {
    rows_.clear();
    std::vector<std::int64_t> boundaries{0};
    for (const Window& window : windows) {
      append(window, window.context_begin, window.end);
      boundaries.push_back(static_cast<std::int64_t>(rows_.ids.size()));
    }
    rows_.losses.resize(rows_.ids.size());
    scorer_.score(Sequences::packed(boundaries), rows_.ids, rows_.targets, rows_.losses);
    for (std::size_t i = 0; i < windows.size(); ++i) {
      collect(windows[i], boundaries[i], boundaries[i + 1] - boundaries[i], collector);
    }
    report();
  }

  void run_long(const Window& window, Collector& collector) {
    scorer_.begin();
    for (std::int64_t at = window.context_begin; at < window.end; at += options_.rows) {
      rows_.clear();
      append(window, at, std::min(at + options_.rows, window.end));
      rows_.losses.resize(rows_.ids.size());
      scorer_.score_next(rows_.ids, rows_.targets, rows_.losses);
      collect(window, 0, static_cast<std::int64_t>(rows_.ids.size()), collector);
      report();
    }
  }

  void report() {
    done_ += static_cast<std::int64_t>(rows_.ids.size());
    if (options_.progress) options_.progress(done_, all_rows_);
  }

  Scorer& scorer_;
  const data::TokenFile& file_;
  const Vocabulary& vocabulary_;
  const PerplexityOptions& options_;
  std::int64_t all_rows_;
  std::int64_t done_ = 0;
  Rows rows_;
};

void check(const data::TokenFile& file, const Vocabulary& vocabulary,
           const PerplexityOptions& options) {
  require(options.rows >= 1, "[eval] rows is {} (must be at least 1)", options.rows);
  require(options.most_blocks >= 0, "[eval] the number of blocks is {} (must not be negative)",
          options.most_blocks);
  for (const std::int64_t length : options.lengths) {
    require(length >= kTargetBlock, "[eval] length {} is less than a block of {} targets", length,
            kTargetBlock);
  }
  require(file.vocabulary() <= static_cast<std::int64_t>(vocabulary.piece_bytes.size()),
          "[eval] the text was cut with {} pieces, the tokenizer has {}", file.vocabulary(),
          vocabulary.piece_bytes.size());
}

}  // namespace

Vocabulary vocabulary_of(const data::Tokenizer& tokenizer) {
  Vocabulary vocabulary{tokenizer.bos(), {}};
  for (std::int32_t id = 0; id < tokenizer.size(); ++id) {
    vocabulary.piece_bytes.push_back(tokenizer.piece_bytes(id));
  }
  return vocabulary;
}

std::vector<Score> evaluate(Scorer& scorer, const data::TokenFile& file,
                            const Vocabulary& vocabulary, const PerplexityOptions& options) {
  check(file, vocabulary, options);
  if (options.lengths.empty()) {
    const std::vector<Window> windows = whole_documents(file);
    std::int64_t rows = 0;
    for (const Window& window : windows) rows += window.rows();
    return {Evaluation(scorer, file, vocabulary, options, rows).run(windows, 0)};
  }
  const std::int64_t longest = *std::max_element(options.lengths.begin(), options.lengths.end());
  const std::vector<Window> blocks = target_blocks(file, longest, options.most_blocks);
  std::int64_t rows = 0;
  for (const std::int64_t length : options.lengths) {
    rows += length * static_cast<std::int64_t>(blocks.size());
  }
  Evaluation evaluation(scorer, file, vocabulary, options, rows);
  std::vector<Score> scores;
  for (const std::int64_t length : options.lengths) {
    std::vector<Window> windows = blocks;
    for (Window& window : windows) window.context_begin = window.end - length;
    scores.push_back(evaluation.run(windows, length));
  }
  return scores;
}

}  // namespace rankone::eval
