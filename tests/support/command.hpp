#pragma once

// Runs the program under test and returns what it said.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "support/paths.hpp"
#include "tests/support/scratch.hpp"

namespace rankone::test {

struct CommandResult {
  int status = -1;  // of the exit; -1 after a signal
  std::string out;
  std::string err;
};

// rankone ARGUMENTS... with `input` as its standard input.
inline CommandResult run_rankone(const std::vector<std::string>& arguments,
                                 const std::string& input = "") {
  const Scratch scratch;
  const auto slurp = [](const std::filesystem::path& file) {
    std::ifstream stream(file, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(stream), {});
  };
  std::ofstream(scratch / "in", std::ios::binary) << input;
  const pid_t child = ::fork();
  if (child == 0) {
    const auto redirect = [&](const char* name, int flags, int to) {
      const int file = ::open((scratch / name).c_str(), flags, 0600);
      if (file < 0 || ::dup2(file, to) < 0) ::_exit(126);
    };
    redirect("in", O_RDONLY, STDIN_FILENO);
    redirect("out", O_WRONLY | O_CREAT, STDOUT_FILENO);
    redirect("err", O_WRONLY | O_CREAT, STDERR_FILENO);
    const std::string program = binary().string();
    std::vector<char*> argv{const_cast<char*>(program.c_str())};
    for (const std::string& argument : arguments) {
      argv.push_back(const_cast<char*>(argument.c_str()));
    }
    argv.push_back(nullptr);
    ::execv(program.c_str(), argv.data());
    ::_exit(127);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, slurp(scratch / "out"),
          slurp(scratch / "err")};
}

// Bad input: status 2, one line on standard error that contains `part`, nothing on standard output.
inline void expect_refusal(const CommandResult& result, const std::string& part) {
  EXPECT_EQ(result.status, 2) << result.err;
  EXPECT_EQ(result.out, "");
  EXPECT_NE(result.err.find(part), std::string::npos) << result.err;
  EXPECT_EQ(result.err.find('\n'), result.err.size() - 1) << result.err;
}

}  // namespace rankone::test
