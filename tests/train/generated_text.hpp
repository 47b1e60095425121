#pragma once

// English-like text that tests make themselves: every sentence has a subject, whose verb and object
// follow from it, so that a model with memory does much better than one that counts pieces.

#include <array>
#include <cstdint>
#include <string>

#include "core/random.hpp"

namespace rankone::test {

inline std::string generated_text(std::uint64_t seed, std::size_t bytes) {
  constexpr std::array kAdjectives = {"old", "small", "quiet", "golden", "tired", "clever"};
  constexpr std::array kSubjects = {"miller", "sailor", "farmer", "teacher", "painter", "doctor"};
  constexpr std::array kVerbs = {"grinds", "steers", "ploughs", "explains", "colours", "heals"};
  constexpr std::array kObjects = {"corn", "ships", "fields", "sums", "walls", "wounds"};
  Random random(seed);
  std::string text;
  while (text.size() < bytes) {
    const auto subject = static_cast<std::size_t>(random.below(kSubjects.size()));
    text += "the ";
    text += kAdjectives[static_cast<std::size_t>(random.below(kAdjectives.size()))];
    text += " ";
    text += kSubjects[subject];
    text += " ";
    text += kVerbs[subject];
    text += " the ";
    text += kObjects[subject];
    text += random.below(8) == 0 ? ".\n" : ". ";
  }
  return text + "\n";
}

}  // namespace rankone::test
