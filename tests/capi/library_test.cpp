// The library as a whole: what it exports, its version, threads, and the example.

#include <array>
#include <cstdio>
#include <sstream>
#include <thread>
#include <vector>

#include "capi/support.hpp"

extern "C" int rankone_header_is_c99(void);

namespace rankone::test {
namespace {

std::string output_of(const std::string& command) {
  std::string text;
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return text;
  std::array<char, 4096> buffer{};
  while (const std::size_t count = std::fread(buffer.data(), 1, buffer.size(), pipe)) {
    text.append(buffer.data(), count);
  }
  pclose(pipe);
  return text;
}

TEST(Library, HeaderIsPlainC) { EXPECT_EQ(rankone_header_is_c99(), 0); }

TEST(Library, VersionIsTheProjects) {
  EXPECT_STREQ(rankone_version(), RANKONE_VERSION);
  EXPECT_STREQ(rankone_version(), RANKONE_PROJECT_VERSION);
}

TEST(Library, ExportsNothingButItsFunctions) {
  const std::string symbols = output_of("nm -D --defined-only --format=posix " RANKONE_LIBRARY);
  std::istringstream lines(symbols);
  int functions = 0;
  for (std::string line; std::getline(lines, line);) {
    EXPECT_EQ(line.rfind("rankone_", 0), 0U) << line;
    ++functions;
  }
  EXPECT_EQ(functions, 23) << symbols;
  EXPECT_NE(output_of("readelf -d " RANKONE_LIBRARY).find("[librankone.so.0]"), std::string::npos);
}

#ifdef RANKONE_PORTABLE
TEST(Library, NeedsNothingButLibc) {
  std::istringstream lines(output_of("readelf -d " RANKONE_LIBRARY " " RANKONE_PROGRAM));
  int needed = 0;
  for (std::string line; std::getline(lines, line);) {
    if (line.find("(NEEDED)") == std::string::npos) continue;
    ++needed;
    const std::string name = line.substr(line.find('[') + 1, line.find(']') - line.find('[') - 1);
    EXPECT_TRUE(name == "libc.so.6" || name == "libm.so.6" || name == "libpthread.so.0" ||
                name.rfind("ld-linux", 0) == 0)
        << name;
  }
  EXPECT_GE(needed, 2);
}
#endif

// Contexts that share the default pool may be used from threads at the same time.
TEST(Library, ContextsOfTheDefaultPoolWorkSideBySide) {
  const Tensor q = uniform({512, 4, 32}, Dtype::f32, -0.2, 0.2, 1);
  const auto work = [&](const Tensor& o) {
    rankone_context* context = nullptr;
    rankone_sequences* sequences = nullptr;
    ASSERT_EQ(rankone_context_create(nullptr, &context, nullptr, 0), RANKONE_OK);
    ASSERT_EQ(rankone_sequences_dense(context, 1, 512, &sequences), RANKONE_OK);
    const rankone_two_key_inputs in{c_tensor(q), c_tensor(q), c_tensor(q), c_tensor(q),
                                    {},          {},          {},          1.0};
    const rankone_two_key_outputs out{c_tensor(o), {}, {}};
    std::size_t bytes = 0;
    rankone_call call{};
    call.query = &bytes;
    ASSERT_EQ(rankone_two_key(context, sequences, &in, &out, &call), RANKONE_OK);
    const WorkspaceMemory workspace(bytes);
    call = rankone_call{nullptr, workspace.data(), bytes, nullptr};
    for (int i = 0; i < 5; ++i) {
      ASSERT_EQ(rankone_two_key(context, sequences, &in, &out, &call), RANKONE_OK)
          << rankone_last_error(context);
    }
    rankone_sequences_free(sequences);
    rankone_context_free(context);
  };
  const Tensor expected = unwritten(q);
  work(expected);
  std::vector<Tensor> outputs;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) outputs.push_back(unwritten(q));
  for (const Tensor& o : outputs) threads.emplace_back([&work, o] { work(o); });
  for (std::thread& thread : threads) thread.join();
  for (const Tensor& o : outputs) expect_same_bits(expected, o, "o");
}

}  // namespace
}  // namespace rankone::test
