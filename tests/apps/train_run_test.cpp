// rankone train as a process: killed and resumed, out of disk space, and its messages.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "core/random.hpp"
#include "support/paths.hpp"
#include "tests/train/files.hpp"
#include "train/generated_text.hpp"

namespace rankone {
namespace {

namespace fs = std::filesystem;
using test::Scratch;
using test::slurp;

// A running `rankone`, its output in files.
class Program {
 public:
  Program(const Scratch& folder, const std::vector<std::string>& arguments,
          rlim_t largest_file = RLIM_INFINITY)
      : out_(folder / "stdout.txt"), err_(folder / "stderr.txt") {
    child_ = ::fork();
    if (child_ == 0) {
      const int out = ::open(out_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
      const int err = ::open(err_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
      ::dup2(out, STDOUT_FILENO);
      ::dup2(err, STDERR_FILENO);
      const rlimit limit{largest_file, largest_file};
      ::setrlimit(RLIMIT_FSIZE, &limit);
      const std::string binary = test::binary().string();
      std::vector<char*> argv = {const_cast<char*>(binary.c_str())};
      for (const std::string& argument : arguments)
        argv.push_back(const_cast<char*>(argument.c_str()));
      argv.push_back(nullptr);
      ::execv(binary.c_str(), argv.data());
      ::_exit(127);
    }
  }
  void kill() const { ::kill(child_, SIGKILL); }
  bool running() {
    if (!done_) done_ = ::waitpid(child_, &status_, WNOHANG) == child_;
    return !done_;
  }
  // The exit status; -1 after a signal.
  int wait() {
    if (!done_) ::waitpid(child_, &status_, 0);
    done_ = true;
    return WIFEXITED(status_) ? WEXITSTATUS(status_) : -1;
  }
  std::string out() const { return slurp(out_); }
  std::string err() const { return slurp(err_); }

 private:
  fs::path out_;
  fs::path err_;
  pid_t child_ = -1;
  int status_ = 0;
  bool done_ = false;
};

constexpr const char* kConfig = R"({
  "model": {"model_type": "kla", "hidden_size": 64, "num_heads": 2, "head_dim": 32, "expand_v": 1.0,
            "num_hidden_layers": 2, "intermediate_size": 128, "tie_word_embeddings": true},
  "train": {"seq_len": 64, "batch_tokens": 512, "steps": 40, "lr": 0.01, "warmup": 4,
            "vocab_size": 300, "eval_every": 20, "eval_tokens": 500, "checkpoint_every": 5}
})";

struct Workplace {
  Workplace() {
    test::spill(folder / "config.json", kConfig);
    test::spill(folder / "text.txt", test::generated_text(1, 40000));
    test::spill(folder / "valid.txt", test::generated_text(2, 5000));
  }
  std::vector<std::string> arguments(const std::string& out,
                                     const std::vector<std::string>& more = {}) const {
    std::vector<std::string> list = {"train",
                                     "--config",
                                     (folder / "config.json").string(),
                                     "--data",
                                     (folder / "text.txt").string(),
                                     "--valid",
                                     (folder / "valid.txt").string(),
                                     "--out",
                                     (folder / out).string()};
    list.insert(list.end(), more.begin(), more.end());
    return list;
  }
  Scratch folder;
};

std::int64_t steps_logged(const fs::path& out) {
  std::ifstream in(out / "metrics.jsonl");
  std::int64_t steps = 0;
  for (std::string line; std::getline(in, line);) {
    if (line.find("\"loss\"") != std::string::npos) ++steps;
  }
  return steps;
}

void expect_one_line(const std::string& text) {
  EXPECT_FALSE(text.empty());
  EXPECT_EQ(text.find('\n'), text.size() - 1) << text;
  EXPECT_EQ(text.rfind("rankone: ", 0), 0U) << text;
}

TEST(TrainRun, KilledAndResumedGivesTheSameBytes) {
  const Workplace place;
  ASSERT_EQ(Program(place.folder, place.arguments("whole")).wait(), 0);
  const std::string model = slurp(place.folder / "whole/model.safetensors");
  ASSERT_FALSE(model.empty());
  Random random(20260);
  for (int round = 0; round < 3; ++round) {
    const std::string name = "killed" + std::to_string(round);
    const fs::path out = place.folder / name;
    // A busy machine may let the run finish before the kill: then once more.
    for (bool killed = false; !killed;) {
      fs::remove_all(out);
      const auto target = static_cast<std::int64_t>(6 + random.below(30));
      Program program(place.folder, place.arguments(name));
      while (program.running() && steps_logged(out) < target) {
        std::this_thread::sleep_for(std::chrono::microseconds(200));
      }
      program.kill();
      const int status = program.wait();
      ASSERT_TRUE(status == -1 || status == 0) << program.err();
      killed = status == -1;
    }
    const std::int64_t killed_at = steps_logged(out);
    Program resumed(place.folder, place.arguments(name, {"--resume"}));
    ASSERT_EQ(resumed.wait(), 0) << resumed.err();
    const std::string output = resumed.out();
    const std::size_t at = output.find("resumed at step ");
    ASSERT_NE(at, std::string::npos) << output;
    const int step = std::stoi(output.substr(at + 16));
    EXPECT_GT(step, 0);
    EXPECT_EQ(step % 5, 0);
    EXPECT_LE(step, killed_at);
    EXPECT_EQ(slurp(out / "model.safetensors"), model) << "killed at " << killed_at;
    EXPECT_EQ(steps_logged(out), 40);
  }
}

TEST(TrainRun, TheNumberOfThreadsChangesNoByte) {
  const Workplace place;
  std::string first;
  for (const char* threads : {"1", "2"}) {
    const std::string out = std::string("threads") + threads;
    ASSERT_EQ(
        Program(place.folder, place.arguments(out, {"--threads", threads, "--steps", "8"})).wait(),
        0);
    const std::string model = slurp(place.folder / out / "model.safetensors");
    if (first.empty()) first = model;
    EXPECT_EQ(model, first);
  }
}

TEST(TrainRun, ADiskThatIsFullFailsTheRunInOneLine) {
  const Workplace place;
  // Large enough for the model and the token files, too small for a checkpoint.
  Program program(place.folder, place.arguments("full"), 500'000);
  EXPECT_EQ(program.wait(), 1);
  expect_one_line(program.err());
  EXPECT_NE(program.err().find("ckpt"), std::string::npos) << program.err();
  for (const auto& entry : fs::recursive_directory_iterator(place.folder / "full")) {
    EXPECT_EQ(entry.path().string().find(".tmp"), std::string::npos) << entry.path();
  }
  Program again(place.folder, place.arguments("full", {"--resume"}));
  EXPECT_EQ(again.wait(), 0) << again.err();
}

TEST(TrainRun, WrongUsageIsOneLineAndStatusTwo) {
  const Workplace place;
  test::spill(place.folder / "broken.json", "{\"model\": ");
  const std::vector<std::vector<std::string>> calls = {
      {"train"},
      {"train", "--config", "/none.json", "--data", "/none", "--out",
       (place.folder / "o").string()},
      {"train", "--config", (place.folder / "broken.json").string(), "--data", "/none", "--out",
       (place.folder / "o").string()},
      place.arguments("o", {"--set", "train.speed=1"}),
      place.arguments("o", {"--set", "mixer.gian=one"}),
      place.arguments("o", {"--mixer", "klaa"}),
      place.arguments("o", {"--steps", "-3"}),
      place.arguments("o", {"--device", "cuda"}),
      place.arguments("o", {"--dtype", "bf16"}),
      place.arguments("o", {"--device", "tpu"}),
      place.arguments("o", {"--resume"}),
      place.arguments("o", {"--tokenizer", (place.folder / "text.txt").string()}),
      place.arguments("o", {"--valid", "/none"}),
  };
  for (const auto& call : calls) {
    Program program(place.folder, call);
    EXPECT_EQ(program.wait(), 2) << program.err();
    expect_one_line(program.err());
    EXPECT_FALSE(fs::exists(place.folder / "o/metrics.jsonl"));
  }
}

TEST(TrainRun, MixersAndSettingsReachTheModel) {
  const Workplace place;
  Program program(place.folder, place.arguments("gdn", {"--mixer", "gdn", "--set", "train.steps=2",
                                                        "--set", "model.hidden_size=32"}));
  ASSERT_EQ(program.wait(), 0) << program.err();
  const std::string config = slurp(place.folder / "gdn/config.json");
  EXPECT_NE(config.find("gated_deltanet"), std::string::npos) << config;
  EXPECT_NE(config.find("\"hidden_size\": 32"), std::string::npos) << config;
}

}  // namespace
}  // namespace rankone
