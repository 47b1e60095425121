#pragma once

// English-like text for tests: words of a fixed list drawn by seed.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/random.hpp"

namespace rankone::test {

inline std::string make_text(std::uint64_t seed, std::size_t bytes) {
  static constexpr std::array<std::string_view, 24> kWords{
      "the",    "a",       "river",  "stone",  "walked", "Walking",
      "under",  "night",   "their",  "three",  "house",  "window",
      "opened", "slowly",  "and",    "or",     "letter", "caf\xc3\xa9",
      "42",     "reading", "reader", "unread", "--",     "\xe2\x80\x9csays\xe2\x80\x9d"};
  Random random(seed);
  std::string text;
  while (text.size() < bytes) {
    text += kWords[random.below(kWords.size())];
    const std::uint64_t end = random.below(20);
    text += end == 0 ? ".\n" : end == 1 ? ",  " : end == 2 ? "\n\n" : " ";
  }
  return text;
}

}  // namespace rankone::test
