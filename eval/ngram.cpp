#include "eval/ngram.hpp"

#include <algorithm>
#include <cassert>
#include <cmath>

#include "core/status.hpp"

namespace rankone::eval {

Ngram::Ngram(std::int32_t vocabulary)
    : vocabulary_(vocabulary),
      row_begin_(static_cast<std::size_t>(vocabulary) + 1),
      row_total_(static_cast<std::size_t>(vocabulary)),
      piece_counts_(static_cast<std::size_t>(vocabulary)),
      predecessors_(static_cast<std::size_t>(vocabulary)) {
  require(vocabulary >= 1, "[ngram] vocabulary is {} (must be at least 1)", vocabulary);
}

void Ngram::add_document(std::span<const std::int32_t> tokens) {
  for (const std::int32_t token : tokens) {
    require(token >= 0 && token < vocabulary_, "[ngram] token {} is not in a vocabulary of {}",
            token, vocabulary_);
  }
  for (std::size_t i = 1; i < tokens.size(); ++i) {
    const auto previous = static_cast<std::uint64_t>(tokens[i - 1]);
    keys_.push_back(previous * static_cast<std::uint64_t>(vocabulary_) +
                    static_cast<std::uint64_t>(tokens[i]));
  }
}

void Ngram::finish() {
  const auto vocabulary = static_cast<std::uint64_t>(vocabulary_);
  total_ = static_cast<std::int64_t>(keys_.size());
  std::sort(keys_.begin(), keys_.end());
  std::size_t kept = 0;
  for (std::size_t i = 0; i < keys_.size();) {
    std::size_t next = i;
    while (next < keys_.size() && keys_[next] == keys_[i]) ++next;
    const auto count = static_cast<std::int64_t>(next - i);
    const std::uint64_t previous = keys_[i] / vocabulary;
    const std::uint64_t piece = keys_[i] % vocabulary;
    keys_[kept++] = keys_[i];
    counts_.push_back(count);
    ++row_begin_[previous + 1];
    row_total_[previous] += count;
    piece_counts_[piece] += count;
    if (predecessors_[piece]++ == 0) ++different_pieces_;
    i = next;
  }
  keys_.resize(kept);
  keys_.shrink_to_fit();
  for (std::size_t h = 0; h < vocabulary; ++h) row_begin_[h + 1] += row_begin_[h];
}

namespace {

// max(count - D, 0) / total + D different / total * lower
double interpolate(std::int64_t count, std::int64_t total, std::int64_t different, double lower) {
  constexpr double kDiscount = Ngram::kDiscount;
  const double kept = std::max(static_cast<double>(count) - kDiscount, 0.0);
  return (kept + kDiscount * static_cast<double>(different) * lower) / static_cast<double>(total);
}

}  // namespace

double Ngram::unigram(std::int32_t piece) const {
  const double uniform = 1.0 / vocabulary_;
  if (total_ == 0) return uniform;
  return interpolate(piece_counts_[static_cast<std::size_t>(piece)], total_, different_pieces_,
                     uniform);
}

double Ngram::continuation(std::int32_t piece) const {
  const double uniform = 1.0 / vocabulary_;
  if (keys_.empty()) return uniform;
  return interpolate(predecessors_[static_cast<std::size_t>(piece)],
                     static_cast<std::int64_t>(keys_.size()), different_pieces_, uniform);
}

double Ngram::bigram(std::int32_t previous, std::int32_t piece) const {
  const auto h = static_cast<std::size_t>(previous);
  const double lower = continuation(piece);
  const std::int64_t total = row_total_[h];
  if (total == 0) return lower;
  const auto begin = keys_.begin() + row_begin_[h];
  const auto end = keys_.begin() + row_begin_[h + 1];
  const std::uint64_t key =
      h * static_cast<std::uint64_t>(vocabulary_) + static_cast<std::uint64_t>(piece);
  const auto found = std::lower_bound(begin, end, key);
  const std::int64_t count =
      found != end && *found == key ? counts_[static_cast<std::size_t>(found - keys_.begin())] : 0;
  return interpolate(count, total, end - begin, lower);
}

// A row's piece is the whole context, so how rows make sequences is of no interest.
void NgramScorer::score(const Sequences& /*sequences*/, std::span<const std::int32_t> ids,
                        std::span<const std::int32_t> targets, std::span<double> losses) {
  score_next(ids, targets, losses);
}

void NgramScorer::score_next(std::span<const std::int32_t> ids,
                             std::span<const std::int32_t> targets, std::span<double> losses) {
  for (std::size_t i = 0; i < targets.size(); ++i) {
    losses[i] = 0;
    if (targets[i] < 0) continue;
    losses[i] = -std::log(order_ == Order::unigram ? counts_.unigram(targets[i])
                                                   : counts_.bigram(ids[i], targets[i]));
  }
}

}  // namespace rankone::eval
