// The shape of the source tree: which layer may include which, how long a file may be, and words
// that mark unfinished work.

#include <gtest/gtest.h>

#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "layering/source_tree.hpp"

namespace rankone::test {
namespace {

using Layers = std::map<std::string, std::set<std::string>>;

// What each layer may include beside itself. Siblings of one level are not in each other's set, so
// no cycle can form; train and eval may use data.
const Layers& allowed() {
  static const Layers layers = {
      {"core", {}},
      {"recurrence", {"core"}},
      {"nn", {"core", "recurrence"}},
      {"model", {"core", "recurrence", "nn"}},
      {"data", {"core"}},
      {"train", {"core", "recurrence", "nn", "model", "data"}},
      {"eval", {"core", "recurrence", "nn", "model", "data"}},
      {"capi", {"core", "recurrence", "rankone"}},
      {"apps", {"core", "recurrence", "nn", "model", "data", "train", "eval"}},
      {"examples", {"rankone"}},
      {"include", {}},
  };
  return layers;
}

std::string first_folder(const std::string& path) { return path.substr(0, path.find('/')); }

bool is_code(const std::string& path) {
  static const std::regex kCode(R"(\.(cpp|hpp|c|h|cu|cuh|cmake)$|CMakeLists\.txt$)");
  return std::regex_search(path, kCode);
}

std::vector<std::string> upward_includes(const std::vector<SourceFile>& files) {
  static const std::regex kInclude(R"re(^\s*#\s*include\s+["<]([^">]+)[">])re");
  std::vector<std::string> found;
  for (const SourceFile& file : files) {
    const auto layer = allowed().find(first_folder(file.path));
    if (layer == allowed().end() || !is_code(file.path)) continue;
    std::istringstream lines(file.text);
    std::smatch match;
    for (std::string line; std::getline(lines, line);) {
      if (!std::regex_search(line, match, kInclude)) continue;
      const std::string header = match[1];
      const std::string other = first_folder(header);
      const bool ours = other == "rankone" || allowed().contains(other) || other == "tests";
      if (!ours || header.find('/') == std::string::npos) continue;
      if (other != layer->first && !layer->second.contains(other)) {
        found.push_back(file.path + " includes " + header);
      }
      // Backends stand side by side: the oracle must not lean on what it judges.
      if (file.path.find("/reference/") != std::string::npos &&
          (header.find("/cpu/") != std::string::npos ||
           header.find("/cuda/") != std::string::npos)) {
        found.push_back(file.path + " includes " + header);
      }
    }
  }
  return found;
}

std::string join(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

TEST(Layering, NoIncludePointsUpward) {
  const std::vector<std::string> found = upward_includes(source_tree());
  EXPECT_TRUE(found.empty()) << join(found);
}

TEST(Layering, AnUpwardIncludeIsSeen) {
  const std::vector<SourceFile> files = {
      {"core/a.cpp", "#include \"core/b.hpp\"\n  #include \"nn/operators.hpp\"\n"},
      {"train/a.cpp", "#include \"eval/perplexity.hpp\"\n#include <vector>\n"},
      {"nn/reference/a.cpp", "#include \"nn/cpu/cpu_backend.hpp\"\n"},
      {"tests/core/a.cpp", "#include \"model/model.hpp\"\n"}};
  EXPECT_EQ(upward_includes(files).size(), 3U) << join(upward_includes(files));
}

TEST(Layering, NoCodeFileIsLongerThan700Lines) {
  int files = 0;
  for (const SourceFile& file : source_tree()) {
    if (!is_code(file.path)) continue;
    ++files;
    const auto lines = std::count(file.text.begin(), file.text.end(), '\n');
    EXPECT_LE(lines, 700) << file.path;
  }
  EXPECT_GT(files, 20) << "the source tree was not found";
}

TEST(Layering, NoWordOfUnfinishedWork) {
  // In pieces, so that this file does not hold what it looks for.
  const std::regex pattern(std::string("TO") + "DO|FIX" + "ME|not " + "implemented");
  for (const SourceFile& file : source_tree()) {
    std::istringstream lines(file.text);
    int number = 0;
    for (std::string line; std::getline(lines, line);) {
      ++number;
      EXPECT_FALSE(std::regex_search(line, pattern)) << file.path << ":" << number << ": " << line;
    }
  }
}

}  // namespace
}  // namespace rankone::test
