#include "train/loop.hpp"

#include <gtest/gtest.h>

#include <cerrno>
#include <fstream>

#include "core/files.hpp"
#include "core/status.hpp"
#include "train/checkpoint.hpp"
#include "train/fixture.hpp"

namespace rankone::train {
namespace {

using rankone::test::slurp;
using rankone::test::spill;
using test::Scratch;

RunOptions options_of(const Scratch& folder, const std::string& out) {
  RunOptions options;
  options.config.model = test::model_json("kla");
  options.config.train = test::train_config();
  options.config.train.steps = 12;
  options.config.train.vocab_size = test::kVocabulary;
  options.config.train.checkpoint_every = 5;
  options.config.train.eval_every = 6;
  options.config.train.eval_tokens = 600;
  options.data = folder / "text";
  options.valid = folder / "valid.txt";
  options.out = folder / out;
  options.threads = 1;
  return options;
}

void write_corpus(const Scratch& folder) {
  std::filesystem::create_directories(folder / "text");
  spill(folder / "text/a.txt", rankone::test::generated_text(1, 20000));
  spill(folder / "text/b.txt", rankone::test::generated_text(2, 5000));
  spill(folder / "valid.txt", rankone::test::generated_text(3, 5000));
}

// The error of a run; Status::ok: none.
Status run_status(const RunOptions& options, std::string* message = nullptr) {
  try {
    testing::internal::CaptureStdout();
    run_training(options);
  } catch (const Error& error) {
    testing::internal::GetCapturedStdout();
    if (message != nullptr) *message = error.what();
    return error.status();
  }
  testing::internal::GetCapturedStdout();
  return Status::ok;
}

// The lines of metrics.jsonl without what the clock has to do with.
std::vector<Json> lines_of(const std::filesystem::path& out) {
  std::vector<Json> lines;
  std::ifstream in(out / "metrics.jsonl");
  for (std::string line; std::getline(in, line);) {
    Json value = Json::parse(line);
    value.erase("tokens_per_s");
    lines.push_back(std::move(value));
  }
  return lines;
}

TEST(Loop, LeavesAModelDirectoryAndItsLogs) {
  const Scratch folder;
  write_corpus(folder);
  const RunOptions options = options_of(folder, "run");
  ASSERT_EQ(run_status(options), Status::ok);
  for (const char* name : {"config.json", "model.safetensors", "tokenizer.model", "train.tokens",
                           "valid.tokens", "metrics.jsonl", "events.out.tfevents.rankone"}) {
    EXPECT_TRUE(std::filesystem::exists(options.out / name)) << name;
  }
  EXPECT_EQ(checkpoint_steps(options.out / "checkpoints"), (std::vector<std::int64_t>{10, 12}));
  const auto lines = lines_of(options.out);
  ASSERT_EQ(lines.size(), 14U);  // 12 steps, validations after 6 and 12
  EXPECT_TRUE(lines[6].contains("valid_bits_per_byte"));
  EXPECT_EQ(lines[6]["step"], 6);
  EXPECT_EQ(lines.back()["step"], 12);
  EXPECT_LT(lines.back()["valid_loss"].get<double>(), lines[6]["valid_loss"].get<double>());
  const model::Model model = model::Model::load(options.out, Dtype::f32);
  EXPECT_EQ(model.config().vocab_size, test::kVocabulary);
  EXPECT_EQ(model.config().model_type, "kla");
}

TEST(Loop, AFolderWithARunNeedsResume) {
  const Scratch folder;
  write_corpus(folder);
  RunOptions options = options_of(folder, "run");
  options.resume = true;
  EXPECT_EQ(run_status(options), Status::invalid_argument);
  options.resume = false;
  EXPECT_EQ(run_status(options), Status::ok);
  const std::string model = slurp(options.out / "model.safetensors");
  std::string message;
  EXPECT_EQ(run_status(options, &message), Status::invalid_argument);
  EXPECT_NE(message.find("--resume"), std::string::npos);
  // A run that is done has nothing left to do, but for a model that is gone.
  std::filesystem::remove(options.out / "model.safetensors");
  options.resume = true;
  EXPECT_EQ(run_status(options), Status::ok);
  EXPECT_EQ(slurp(options.out / "model.safetensors"), model);
}

TEST(Loop, AChangedConfigurationTextOrTokenizerIsRefusedByName) {
  const Scratch folder;
  write_corpus(folder);
  const RunOptions first = options_of(folder, "run");
  ASSERT_EQ(run_status(first), Status::ok);
  RunOptions options = first;
  options.resume = true;
  std::string message;
  const auto expect_refused = [&](const RunOptions& changed, const std::string& word) {
    EXPECT_EQ(run_status(changed, &message), Status::invalid_argument) << word;
    EXPECT_NE(message.find(word), std::string::npos) << message;
  };
  RunOptions changed = options;
  changed.config.train.lr = 0.5;
  expect_refused(changed, "train.lr");
  changed = options;
  changed.config.model["hidden_size"] = 48;
  expect_refused(changed, "model.hidden_size");
  changed = options;
  changed.valid = folder / "text/b.txt";
  expect_refused(changed, "validation text");
  data::Tokenizer::train(std::vector<std::string_view>{"some other text, again and again"}, 280)
      .save(folder / "other.model");
  changed = options;
  changed.tokenizer = folder / "other.model";
  expect_refused(changed, "tokenizer");
  spill(folder / "text/a.txt", rankone::test::generated_text(9, 20000));
  expect_refused(options, "training text");
}

TEST(Loop, DamagedCheckpointsFallBackAndThenFail) {
  const Scratch folder;
  write_corpus(folder);
  RunOptions options = options_of(folder, "run");
  ASSERT_EQ(run_status(options), Status::ok);
  const std::string model = slurp(options.out / "model.safetensors");
  const auto lines = lines_of(options.out);
  options.resume = true;
  spill(options.out / "checkpoints/step-12.ckpt", "damaged");
  testing::internal::CaptureStderr();
  EXPECT_EQ(run_status(options), Status::ok);  // from step 10
  EXPECT_NE(testing::internal::GetCapturedStderr().find("step-12.ckpt"), std::string::npos);
  EXPECT_EQ(slurp(options.out / "model.safetensors"), model);
  EXPECT_EQ(lines_of(options.out), lines);
  spill(options.out / "checkpoints/step-12.ckpt", "damaged");
  spill(options.out / "checkpoints/step-10.ckpt", "damaged");
  testing::internal::CaptureStderr();
  EXPECT_EQ(run_status(options), Status::corrupt);
  testing::internal::GetCapturedStderr();
}

TEST(Loop, AnEmptyValidationAndShortTextsAreNoObstacle) {
  const Scratch folder;
  write_corpus(folder);
  RunOptions options = options_of(folder, "run");
  options.valid.reset();  // no document is long enough to hold some out
  EXPECT_EQ(run_status(options), Status::ok);
  EXPECT_EQ(lines_of(options.out).size(), 12U);
}

TEST(Loop, AVocabularyThatIsTooSmallIsRefused) {
  const Scratch folder;
  write_corpus(folder);
  RunOptions options = options_of(folder, "run");
  options.config.model["vocab_size"] = 290;
  std::string message;
  EXPECT_EQ(run_status(options, &message), Status::invalid_argument);
  EXPECT_NE(message.find("model.vocab_size"), std::string::npos) << message;
}

TEST(Loop, ValuesThatAreNotFiniteStopTheRunAtTheirStep) {
  const Scratch folder;
  write_corpus(folder);
  RunOptions options = options_of(folder, "run");
  options.config.train.lr = 10;  // with the decay below, weights grow a hundredfold each step
  options.config.train.weight_decay = 10;
  options.config.train.warmup = 0;
  options.config.train.steps = 60;
  options.config.train.log_every = 4;
  std::string message;
  EXPECT_EQ(run_status(options, &message), Status::failed);
  EXPECT_EQ(message.rfind("[train] step ", 0), 0U) << message;
  EXPECT_NE(message.find("is not finite"), std::string::npos) << message;
  const int step = std::stoi(message.substr(13));
  EXPECT_GT(step, 1);
  EXPECT_LT(step, 60);
  for (const Json& line : lines_of(options.out)) {
    EXPECT_LT(line["step"].get<int>(), step);
    if (line.contains("loss")) {
      EXPECT_TRUE(line["loss"].is_number()) << line;
    }
  }
  for (const std::int64_t saved : checkpoint_steps(options.out / "checkpoints")) {
    EXPECT_LT(saved, step);
  }
}

// Any write, fsync or rename of a whole run may fail: the run says so (status failed), and goes on
// from its last checkpoint to the same bits.
TEST(Loop, SurvivesTheFailureOfEveryCall) {
  const Scratch folder;
  write_corpus(folder);
  const RunOptions whole = options_of(folder, "whole");
  std::int64_t calls = 0;
  set_fault_hook([&](std::int64_t, std::string_view) {
    ++calls;
    return 0;
  });
  ASSERT_EQ(run_status(whole), Status::ok);
  set_fault_hook({});
  const std::string model = slurp(whole.out / "model.safetensors");
  const auto lines = lines_of(whole.out);
  ASSERT_GT(calls, 30);
  for (std::int64_t failing = 0; failing < calls; ++failing) {
    SCOPED_TRACE(failing);
    RunOptions options = options_of(folder, "run");
    std::filesystem::remove_all(options.out);
    set_fault_hook(
        [&](std::int64_t call, std::string_view) { return call == failing ? ENOSPC : 0; });
    std::string message;
    const Status status = run_status(options, &message);
    set_fault_hook({});
    ASSERT_EQ(status, Status::failed) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos);
    for (const auto& entry : std::filesystem::recursive_directory_iterator(options.out)) {
      EXPECT_EQ(entry.path().string().find(".tmp"), std::string::npos) << entry.path();
    }
    options.resume = std::filesystem::exists(options.out / "metrics.jsonl");
    ASSERT_EQ(run_status(options, &message), Status::ok) << message;
    EXPECT_EQ(slurp(options.out / "model.safetensors"), model);
    EXPECT_EQ(lines_of(options.out), lines);
  }
}

}  // namespace
}  // namespace rankone::train
