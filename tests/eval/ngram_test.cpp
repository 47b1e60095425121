#include "eval/ngram.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "core/random.hpp"
#include "core/status.hpp"

namespace rankone::eval {
namespace {

using Documents = std::vector<std::vector<std::int32_t>>;

Ngram count(std::int32_t vocabulary, const Documents& documents) {
  Ngram ngram(vocabulary);
  for (const auto& document : documents) ngram.add_document(document);
  ngram.finish();
  return ngram;
}

// The definitions, by counting over again for every probability.
struct BruteForce {
  std::int32_t vocabulary;
  std::map<std::pair<std::int32_t, std::int32_t>, double> pairs;

  BruteForce(std::int32_t size, const Documents& documents) : vocabulary(size) {
    for (const auto& document : documents) {
      for (std::size_t i = 1; i < document.size(); ++i) ++pairs[{document[i - 1], document[i]}];
    }
  }
  template <class Wanted>
  double sum(Wanted wanted) const {
    double total = 0;
    for (const auto& [pair, n] : pairs) total += wanted(pair.first, pair.second) ? n : 0;
    return total;
  }
  template <class Wanted>
  double types(Wanted wanted) const {
    double total = 0;
    for (const auto& [pair, n] : pairs) total += wanted(pair.first, pair.second) ? 1 : 0;
    return total;
  }
  double seen_pieces() const {
    std::set<std::int32_t> pieces;
    for (const auto& [pair, n] : pairs) pieces.insert(pair.second);
    return static_cast<double>(pieces.size());
  }
  static double clip(double x) { return x > 0 ? x : 0; }

  double unigram(std::int32_t w) const {
    const double all = sum([](auto, auto) { return true; });
    if (all == 0) return 1.0 / vocabulary;
    const double own = sum([=](auto, auto piece) { return piece == w; });
    return clip(own - 0.75) / all + 0.75 * seen_pieces() / all / vocabulary;
  }
  double continuation(std::int32_t w) const {
    const double all = types([](auto, auto) { return true; });
    if (all == 0) return 1.0 / vocabulary;
    const double own = types([=](auto, auto piece) { return piece == w; });
    return clip(own - 0.75) / all + 0.75 * seen_pieces() / all / vocabulary;
  }
  double bigram(std::int32_t h, std::int32_t w) const {
    const double all = sum([=](auto previous, auto) { return previous == h; });
    if (all == 0) return continuation(w);
    const double own = sum([=](auto previous, auto piece) { return previous == h && piece == w; });
    const double different = types([=](auto previous, auto) { return previous == h; });
    return clip(own - 0.75) / all + 0.75 * different / all * continuation(w);
  }
};

void expect_matches(std::int32_t vocabulary, const Documents& documents) {
  const Ngram ngram = count(vocabulary, documents);
  const BruteForce brute(vocabulary, documents);
  double total = 0;
  for (std::int32_t w = 0; w < vocabulary; ++w) {
    EXPECT_NEAR(ngram.unigram(w), brute.unigram(w), 1e-14);
    EXPECT_GT(ngram.unigram(w), 0);
    total += ngram.unigram(w);
  }
  EXPECT_NEAR(total, 1, 1e-12);
  for (std::int32_t h = 0; h < vocabulary; ++h) {
    double row = 0;
    for (std::int32_t w = 0; w < vocabulary; ++w) {
      EXPECT_NEAR(ngram.bigram(h, w), brute.bigram(h, w), 1e-14) << h << ' ' << w;
      EXPECT_GT(ngram.bigram(h, w), 0);
      row += ngram.bigram(h, w);
    }
    EXPECT_NEAR(row, 1, 1e-12) << h;
  }
}

TEST(Ngram, ByHand) {
  // Pairs 01, 12, 21, 12.
  const Ngram ngram = count(3, {{0, 1, 2, 1, 2}});
  EXPECT_EQ(ngram.pairs(), 4);
  // c(2) = 2 of 4, two different pieces: 1.25 / 4 + 0.75 * 2 / 4 / 3.
  EXPECT_DOUBLE_EQ(ngram.unigram(2), 0.4375);
  // p_cont(2) = 0.25 / 3 + 0.75 * 2 / 3 / 3 = 0.25; p(2 | 1) = 1.25 / 2 + 0.75 / 2 * 0.25.
  EXPECT_DOUBLE_EQ(ngram.bigram(1, 2), 0.71875);
}

TEST(Ngram, MatchesBruteForceAndSumsToOne) {
  Random random(1);
  for (int round = 0; round < 20; ++round) {
    const auto vocabulary = static_cast<std::int32_t>(2 + random.below(12));
    // Pieces of the upper half are never seen, as previous ones neither.
    const auto used = static_cast<std::uint64_t>((vocabulary + 1) / 2);
    Documents documents;
    for (int d = 0; d < 5; ++d) {
      std::vector<std::int32_t> document;
      for (std::uint64_t i = random.below(30); i > 0; --i) {
        document.push_back(static_cast<std::int32_t>(random.below(used)));
      }
      documents.push_back(document);
    }
    expect_matches(vocabulary, documents);
  }
}

TEST(Ngram, NothingCountedIsUniform) {
  expect_matches(5, {});
  expect_matches(5, {{}, {3}});
}

TEST(Ngram, RefusesIdsOutsideTheVocabulary) {
  Ngram ngram(4);
  EXPECT_THROW(ngram.add_document(std::vector<std::int32_t>{0, 4}), Error);
  EXPECT_THROW(ngram.add_document(std::vector<std::int32_t>{-1}), Error);
  EXPECT_THROW(Ngram(0), Error);
}

TEST(NgramScorer, LossesAreNegativeLogsOfTheProbabilities) {
  const Ngram ngram = count(3, {{0, 1, 2, 1, 2}});
  const std::vector<std::int32_t> ids{1, 1, 2};
  const std::vector<std::int32_t> targets{2, -1, 1};
  std::vector<double> losses(3, 99);
  NgramScorer bigram(ngram, NgramScorer::Order::bigram);
  bigram.score(Sequences::dense(1, 3), ids, targets, losses);
  EXPECT_DOUBLE_EQ(losses[0], -std::log(ngram.bigram(1, 2)));
  EXPECT_EQ(losses[1], 0);
  EXPECT_DOUBLE_EQ(losses[2], -std::log(ngram.bigram(2, 1)));
  NgramScorer unigram(ngram, NgramScorer::Order::unigram);
  unigram.begin();
  unigram.score_next(ids, targets, losses);
  EXPECT_DOUBLE_EQ(losses[0], -std::log(ngram.unigram(2)));
}

}  // namespace
}  // namespace rankone::eval
