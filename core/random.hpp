#pragma once

// The one random generator: Philox 4x32-10, a function of (seed, stream, index) alone, so a number
// does not depend on which thread draws it or on what was drawn before (Salmon et al., SC 2011).

#include <array>
#include <cstdint>

namespace rankone {

using Philox4 = std::array<std::uint32_t, 4>;

// Four random words for the 128-bit counter (index, stream) under key `seed`.
Philox4 philox(std::uint64_t seed, std::uint64_t stream, std::uint64_t index);

// A sequential reader of one stream.
class Random {
 public:
  explicit Random(std::uint64_t seed, std::uint64_t stream = 0) : seed_(seed), stream_(stream) {}

  std::uint32_t bits();
  double uniform();  // [0, 1), 53 bits
  double uniform(double low, double high) { return low + (high - low) * uniform(); }
  double normal();                           // mean 0, variance 1 (Box-Muller)
  std::uint64_t below(std::uint64_t bound);  // [0, bound), unbiased; bound > 0

  // How many words were drawn: with seed and stream the whole state of the generator.
  std::uint64_t position() const { return position_; }
  void seek(std::uint64_t position) { position_ = position; }

 private:
  std::uint64_t seed_;
  std::uint64_t stream_;
  std::uint64_t position_ = 0;
};

}  // namespace rankone
