#pragma once

// The text files of the project, for the tests that read them.

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "support/paths.hpp"

namespace rankone::test {

struct SourceFile {
  std::string path;  // relative to the project
  std::string text;
};

inline std::string read_text(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

// Sources, scripts and documents; not the build folders and what else git ignores at the top.
inline std::vector<SourceFile> source_tree() {
  namespace fs = std::filesystem;
  static const std::vector<std::string> folders = {
      "apps",    "capi",  "cmake", "configs",    "core", "data",    "docs",  "eval",  "examples",
      "include", "model", "nn",    "recurrence", "fuzz", "scripts", "tests", "train", ".ci"};
  std::vector<fs::path> paths;
  for (const std::string& folder : folders) {
    if (!fs::exists(source_dir() / folder)) continue;
    for (const auto& entry : fs::recursive_directory_iterator(source_dir() / folder)) {
      // The corpora of fuzz targets and test data are no text.
      const std::string path = entry.path().string();
      if (path.find("/corpus/") != std::string::npos ||
          path.find("/golden/") != std::string::npos ||
          path.find("/__pycache__/") != std::string::npos) {
        continue;
      }
      if (entry.is_regular_file()) paths.push_back(entry.path());
    }
  }
  for (const auto& entry : fs::directory_iterator(source_dir())) {
    if (entry.is_regular_file() && entry.path().filename() != ".git") paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  std::vector<SourceFile> files;
  for (const fs::path& path : paths) {
    files.push_back({fs::relative(path, source_dir()).generic_string(), read_text(path)});
  }
  return files;
}

}  // namespace rankone::test
