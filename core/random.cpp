#include "core/random.hpp"

#include <cassert>
#include <cmath>
#include <numbers>

namespace rankone {

Philox4 philox(std::uint64_t seed, std::uint64_t stream, std::uint64_t index) {
  Philox4 x{static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32),
            static_cast<std::uint32_t>(stream), static_cast<std::uint32_t>(stream >> 32)};
  auto key0 = static_cast<std::uint32_t>(seed);
  auto key1 = static_cast<std::uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = std::uint64_t{0xD2511F53U} * x[0];
    const std::uint64_t product1 = std::uint64_t{0xCD9E8D57U} * x[2];
    x = {static_cast<std::uint32_t>(product1 >> 32) ^ x[1] ^ key0,
         static_cast<std::uint32_t>(product1),
         static_cast<std::uint32_t>(product0 >> 32) ^ x[3] ^ key1,
         static_cast<std::uint32_t>(product0)};
    key0 += 0x9E3779B9U;
    key1 += 0xBB67AE85U;
  }
  return x;
}

std::uint32_t Random::bits() {
  const std::uint64_t at = position_++;
  return philox(seed_, stream_, at / 4)[at % 4];
}

double Random::uniform() {
  const std::uint64_t high = bits();
  const std::uint64_t low = bits();
  return static_cast<double>(((high << 32) | low) >> 11) * 0x1.0p-53;
}

double Random::normal() {
  const double radius = std::sqrt(-2.0 * std::log(1.0 - uniform()));
  return radius * std::cos(2.0 * std::numbers::pi * uniform());
}

std::uint64_t Random::below(std::uint64_t bound) {
  assert(bound > 0);
  // Rejects the part of the 64-bit range that would favour small results.
  const std::uint64_t limit = -bound % bound;
  while (true) {
    const std::uint64_t high = bits();
    const std::uint64_t draw = (high << 32) | bits();
    if (draw >= limit) return draw % bound;
  }
}

}  // namespace rankone
