#pragma once

// Two baselines that cost nothing to train: how well pieces are predicted by their frequency, and
// by the piece before them.

#include <cstdint>
#include <span>
#include <vector>

#include "eval/scorer.hpp"

namespace rankone::eval {

// Counts of a training text. A document adds its tokens as (previous, piece) pairs; its first token
// (BOS) is only a previous one.
//
// D is the discount 0.75, V the vocabulary. N1+ counts different pairs with a count of at least
// one.
//   unigram:  p(w)   = max(c(w) - D, 0) / c(.) + D N1+(.) / c(.) * 1 / V
//   bigram:   interpolated Kneser-Ney (Chen and Goodman 1999, section 2.7)
//     p(w | h) = max(c(h w) - D, 0) / c(h .) + D N1+(h .) / c(h .) * p_cont(w)
//     p_cont(w) = max(N1+(. w) - D, 0) / N1+(. .) + D |{w : N1+(. w) > 0}| / N1+(. .) * 1 / V
// with p(w | h) = p_cont(w) where h was never seen, and 1 / V where nothing was. Both are
// distributions over all V ids, so no target has probability zero.
class Ngram {
 public:
  static constexpr double kDiscount = 0.75;

  explicit Ngram(std::int32_t vocabulary);
  // Ids in [0, vocabulary).
  void add_document(std::span<const std::int32_t> tokens);
  // After the last document, before the first probability.
  void finish();

  double unigram(std::int32_t piece) const;
  double bigram(std::int32_t previous, std::int32_t piece) const;
  std::int64_t pairs() const { return total_; }  // counted in all

 private:
  double continuation(std::int32_t piece) const;

  std::int32_t vocabulary_;
  std::int64_t total_ = 0;
  std::vector<std::uint64_t> keys_;         // previous * V + piece; after finish() sorted, unique
  std::vector<std::int64_t> counts_;        // of keys_
  std::vector<std::int64_t> row_begin_;     // of previous, in keys_; V + 1
  std::vector<std::int64_t> row_total_;     // c(h .)
  std::vector<std::int64_t> piece_counts_;  // c(w)
  std::vector<std::int64_t> predecessors_;  // N1+(. w)
  std::int64_t different_pieces_ = 0;       // N1+(.)
};

class NgramScorer final : public Scorer {
 public:
  enum class Order { unigram, bigram };
  // `counts` must outlive it.
  NgramScorer(const Ngram& counts, Order order) : counts_(counts), order_(order) {}
  void score(const Sequences& sequences, std::span<const std::int32_t> ids,
             std::span<const std::int32_t> targets, std::span<double> losses) override;
  void begin() override {}
  void score_next(std::span<const std::int32_t> ids, std::span<const std::int32_t> targets,
                  std::span<double> losses) override;

 private:
  const Ngram& counts_;
  Order order_;
};

}  // namespace rankone::eval
