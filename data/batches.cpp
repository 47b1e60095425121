// The order of training: pieces of documents, shuffled anew each epoch.
//
// All epochs are one endless stream of rows; batch s is the rows from s * batch_tokens on. A row is
// a token that has a next one in its document.

#include <algorithm>
#include <mutex>
#include <utility>

#include "core/random.hpp"
#include "core/status.hpp"
#include "data/tokens.hpp"

namespace rankone::data {
namespace {

// Streams of the one random generator: an epoch each.
constexpr std::uint64_t kShuffleStream = 0x73687566ULL << 32;  // "shuf"

}  // namespace

struct Batches::Impl {
  const TokenFile* file = nullptr;
  std::int64_t seq_len = 0;
  std::int64_t batch_tokens = 0;
  std::uint64_t seed = 0;
  std::int64_t rows = 0;                     // of an epoch
  std::vector<std::int64_t> first_piece{0};  // [documents + 1]

  // The order of one epoch, kept for the next call.
  struct Order {
    std::int64_t epoch = -1;
    std::vector<std::int64_t> pieces;
    std::vector<std::int64_t> begin;  // [pieces + 1], row of the epoch
  };
  mutable std::mutex mutex;
  mutable Order order;

  // Tokens of a piece that are inputs: [first, second).
  std::pair<std::int64_t, std::int64_t> range(std::int64_t piece) const {
    const auto next = std::upper_bound(first_piece.begin(), first_piece.end(), piece);
    const std::int64_t document = next - first_piece.begin() - 1;
    const std::int64_t begin = file->begin(document) + (piece - *(next - 1)) * seq_len;
    return {begin, std::min(begin + seq_len, file->end(document) - 1)};
  }

  void arrange(std::int64_t epoch) const;
  void append(Batch& batch, std::vector<std::int64_t>& boundaries, std::int64_t first,
              std::int64_t last) const;
};

void Batches::Impl::arrange(std::int64_t epoch) const {
  if (order.epoch == epoch) return;
  const auto count = static_cast<std::size_t>(first_piece.back());
  order.pieces.resize(count);
  order.begin.assign(1, 0);
  order.begin.reserve(count + 1);
  for (std::size_t i = 0; i < count; ++i) order.pieces[i] = static_cast<std::int64_t>(i);
  Random random(seed, kShuffleStream + static_cast<std::uint64_t>(epoch));
  for (std::size_t i = count; i > 1; --i) {  // Fisher and Yates
    std::swap(order.pieces[i - 1], order.pieces[random.below(i)]);
  }
  for (const std::int64_t piece : order.pieces) {
    const auto [first, last] = range(piece);
    order.begin.push_back(order.begin.back() + last - first);
  }
  order.epoch = epoch;
}

void Batches::Impl::append(Batch& batch, std::vector<std::int64_t>& boundaries, std::int64_t first,
                           std::int64_t last) const {
  for (std::int64_t token = first; token < last; ++token) {
    batch.ids.push_back((*file)[token]);
    batch.targets.push_back((*file)[token + 1]);
  }
  boundaries.push_back(static_cast<std::int64_t>(batch.ids.size()));
}

Batches::Batches(const TokenFile& file, std::int64_t seq_len, std::int64_t batch_tokens,
                 std::uint64_t seed)
    : impl_(std::make_unique<Impl>()) {
  require(seq_len >= 1, "[data] seq_len {} (at least 1)", seq_len);
  require(batch_tokens >= 1, "[data] batch_tokens {} (at least 1)", batch_tokens);
  impl_->file = &file;
  impl_->seq_len = seq_len;
  impl_->batch_tokens = batch_tokens;
  impl_->seed = seed;
  for (std::int64_t document = 0; document < file.documents(); ++document) {
    const std::int64_t inputs = file.end(document) - file.begin(document) - 1;
    impl_->rows += inputs;
    impl_->first_piece.push_back(impl_->first_piece.back() + (inputs + seq_len - 1) / seq_len);
  }
  require(impl_->rows > 0, "[data] no tokens to train on");
}
Batches::Batches(Batches&&) noexcept = default;
Batches& Batches::operator=(Batches&&) noexcept = default;
Batches::~Batches() = default;

Batch Batches::at(std::int64_t step) const {
  require(step >= 0, "[data] step {} (not negative)", step);
  std::int64_t row = 0;  // of the stream
  require(!__builtin_mul_overflow(step, impl_->batch_tokens, &row), "[data] step {} is too far",
          step);
  const std::lock_guard lock(impl_->mutex);
  Batch batch;
  batch.ids.reserve(static_cast<std::size_t>(impl_->batch_tokens));
  batch.targets.reserve(static_cast<std::size_t>(impl_->batch_tokens));
  std::vector<std::int64_t> boundaries{0};
  std::int64_t left = impl_->batch_tokens;
  while (left > 0) {
    impl_->arrange(row / impl_->rows);
    const std::int64_t in_epoch = row % impl_->rows;
    const auto& begin = impl_->order.begin;
    auto at = std::upper_bound(begin.begin(), begin.end(), in_epoch) - 1;
    std::int64_t skipped = in_epoch - *at;  // rows of this piece that the batch before has
    for (; left > 0 && at + 1 != begin.end(); ++at) {
      const auto [first, last] =
          impl_->range(impl_->order.pieces[static_cast<std::size_t>(at - begin.begin())]);
      const std::int64_t taken = std::min(last - first - skipped, left);
      impl_->append(batch, boundaries, first + skipped, first + skipped + taken);
      skipped = 0;
      left -= taken;
      row += taken;
    }
  }
  batch.scored = static_cast<std::int64_t>(batch.targets.size());
  batch.sequences = Sequences::packed(boundaries);
  return batch;
}

std::int64_t Batches::steps_per_epoch() const {
  return (impl_->rows + impl_->batch_tokens - 1) / impl_->batch_tokens;
}

}  // namespace rankone::data
