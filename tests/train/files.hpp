#pragma once

// Whole files in and out, for tests; a folder to keep them in is support/scratch.hpp.

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "tests/support/scratch.hpp"

namespace rankone::test {

inline std::string slurp(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline void spill(const std::filesystem::path& file, const std::string& content) {
  std::ofstream(file, std::ios::binary) << content;
}

}  // namespace rankone::test
