#pragma once

// How the rows of a call are cut into sequences. A call is dense, [B, T, ...], or packed: B = 1 and
// the boundaries cu_seqlens. In both the rows are numbered through, b * T + t, and a sequence is a
// range of rows, so a kernel needs only one loop. Everything that looks along time obeys it.

#include <cstdint>
#include <span>
#include <vector>

namespace rankone {

class Sequences {
 public:
  // B sequences of T rows each; B, T >= 0.
  static Sequences dense(std::int64_t batch, std::int64_t time);
  // cu_seqlens: N + 1 row numbers, first 0, non-decreasing; the last is the number of rows. Empty
  // sequences are legal. Fails with invalid_argument otherwise.
  static Sequences packed(std::span<const std::int64_t> cu_seqlens);

  std::int64_t count() const { return static_cast<std::int64_t>(boundaries_.size()) - 1; }
  std::int64_t rows() const { return boundaries_.back(); }
  std::int64_t begin(std::int64_t sequence) const {
    return boundaries_[static_cast<std::size_t>(sequence)];
  }
  std::int64_t end(std::int64_t sequence) const {
    return boundaries_[static_cast<std::size_t>(sequence) + 1];
  }
  std::int64_t length(std::int64_t sequence) const { return end(sequence) - begin(sequence); }
  std::int64_t longest() const;
  // Whether all sequences have one length, as in every dense call.
  bool even() const { return even_; }
  std::span<const std::int64_t> boundaries() const { return boundaries_; }

 private:
  std::vector<std::int64_t> boundaries_{0};
  bool even_ = true;
};

}  // namespace rankone
