// What the documents say about the tests is true: every test that PROMISES.md names exists, and
// every link of a document leads to a file.

#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <regex>
#include <set>
#include <sstream>
#include <string>

#include "layering/source_tree.hpp"

namespace rankone::test {
namespace {

#ifdef RANKONE_ALL_TESTS
std::set<std::string> tests_of_this_build() {
  FILE* pipe = popen(RANKONE_CTEST " -N --test-dir " RANKONE_BUILD_DIR, "r");
  std::set<std::string> names;
  if (pipe == nullptr) return names;
  std::array<char, 4096> line{};
  const std::string prefix = RANKONE_TEST_PREFIX;
  while (std::fgets(line.data(), static_cast<int>(line.size()), pipe) != nullptr) {
    // "  Test #12: layer.Suite.Name"
    std::string name = line.data();
    if (name.find("Test ") == std::string::npos || name.find(": ") == std::string::npos) continue;
    name = name.substr(name.find(": ") + 2);
    name.erase(name.find_last_not_of(" \n") + 1);
    names.insert(name.rfind(prefix, 0) == 0 ? name.substr(prefix.size()) : name);
  }
  pclose(pipe);
  return names;
}

// A name, or one that ends in * for all that begin so.
bool exists(const std::set<std::string>& tests, std::string name) {
  if (name.back() != '*') return tests.contains(name);
  name.pop_back();
  const auto found = tests.lower_bound(name);
  return found != tests.end() && found->rfind(name, 0) == 0;
}

TEST(Promises, EveryNamedTestExists) {
  const std::set<std::string> tests = tests_of_this_build();
  ASSERT_TRUE(tests.contains("documents.Promises.EveryNamedTestExists"));
  const std::string text = read_text(source_dir() / "PROMISES.md");
  // In the table: | P1 | promise | `test`, `test` |
  static const std::regex kName(R"(`((?:[a-z_]+\.)[^` ]+)`)");
  std::istringstream lines(text);
  int rows = 0;
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("| P", 0) != 0) continue;
    ++rows;
    const std::string cell = line.substr(line.rfind("| ", line.size() - 2));
    int named = 0;
    for (auto name = std::sregex_iterator(cell.begin(), cell.end(), kName);
         name != std::sregex_iterator(); ++name, ++named) {
      EXPECT_TRUE(exists(tests, (*name)[1])) << "no such test: " << (*name)[1] << "\nin: " << line;
    }
    EXPECT_GT(named, 0) << "no test in: " << line;
  }
  EXPECT_GE(rows, 10);
  EXPECT_FALSE(exists(tests, "core.Tensor.NoSuchTest"));
}
#endif

TEST(Documents, LinksAndNamedFilesExist) {
  static const std::regex kLink(R"(\]\(([^)#:]+)(?:#[^)]*)?\))");
  // A path in backticks or in running text: docs/x.md, recurrence/y.cpp.
  static const std::regex kPath(
      R"re(\b((?:docs|core|recurrence|nn|model|data|train|eval|apps|capi)/[\w/.-]+\.(?:md|hpp|cpp|h))\b)re");
  const auto check = [](const std::string& document, const std::string& path) {
    const auto file = source_dir() / std::filesystem::path(document).parent_path() / path;
    EXPECT_TRUE(std::filesystem::exists(file) || std::filesystem::exists(source_dir() / path))
        << document << " names " << path;
  };
  for (const SourceFile& file : source_tree()) {
    if (file.path.find(".md") == std::string::npos) continue;
    for (const std::regex& pattern : {kLink, kPath}) {
      for (auto match = std::sregex_iterator(file.text.begin(), file.text.end(), pattern);
           match != std::sregex_iterator(); ++match) {
        check(file.path, (*match)[1]);
      }
    }
  }
}

}  // namespace
}  // namespace rankone::test
