#include "core/sequences.hpp"

#include <algorithm>

#include "core/status.hpp"

namespace rankone {

Sequences Sequences::dense(std::int64_t batch, std::int64_t time) {
  require(batch >= 0 && time >= 0, "[sequences] batch {} and time {} must not be negative", batch,
          time);
  constexpr std::int64_t kMostSequences = std::int64_t{1} << 31;
  std::int64_t rows = 0;
  require(batch <= kMostSequences && !__builtin_mul_overflow(batch, time, &rows),
          "[sequences] batch {} of time {} is too large (at most {} sequences)", batch, time,
          kMostSequences);
  Sequences result;
  result.boundaries_.reserve(static_cast<std::size_t>(batch) + 1);
  for (std::int64_t b = 1; b <= batch; ++b) result.boundaries_.push_back(b * time);
  return result;
}

Sequences Sequences::packed(std::span<const std::int64_t> cu_seqlens) {
  require(!cu_seqlens.empty(), "[sequences] cu_seqlens is empty (it holds N + 1 boundaries)");
  require(cu_seqlens[0] == 0, "[sequences] cu_seqlens[0] is {}, not 0", cu_seqlens[0]);
  for (std::size_t i = 1; i < cu_seqlens.size(); ++i) {
    require(cu_seqlens[i] >= cu_seqlens[i - 1],
            "[sequences] cu_seqlens[{}] = {} is less than cu_seqlens[{}] = {}", i, cu_seqlens[i],
            i - 1, cu_seqlens[i - 1]);
  }
  Sequences result;
  result.boundaries_.assign(cu_seqlens.begin(), cu_seqlens.end());
  for (std::int64_t i = 1; i < result.count(); ++i) {
    result.even_ = result.even_ && result.length(i) == result.length(0);
  }
  return result;
}

std::int64_t Sequences::longest() const {
  std::int64_t most = 0;
  for (std::int64_t i = 0; i < count(); ++i) most = std::max(most, length(i));
  return most;
}

}  // namespace rankone
