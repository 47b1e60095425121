// rankone train: a model from a configuration and text.

#include <fmt/format.h>
#include <csignal>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/verb.hpp"
#include "core/status.hpp"
#include "train/loop.hpp"

namespace rankone::apps {
namespace {

struct Options {
  std::string config;
  std::string data;
  std::string out;
  std::string valid;
  std::string tokenizer;
  std::string device = "cpu";
  std::string dtype = "f32";
  train::Overrides overrides;
  std::optional<std::int64_t> steps;
  std::optional<std::uint64_t> seed;
  int threads = 0;
  bool resume = false;
};

void run(Options options) {
  if (options.device == "cuda") {
    fail(Status::unsupported, "[train] --device cuda: this build trains on the CPU (use cpu)");
  }
  if (options.dtype == "bf16") {
    fail(Status::unsupported,
         "[train] --dtype bf16: training on the CPU computes in f32 (use f32)");
  }
  // The options that stand for a setting win over --set.
  std::vector<std::string>& settings = options.overrides.settings;
  if (options.steps) settings.push_back("train.steps=" + std::to_string(*options.steps));
  if (options.seed) settings.push_back("train.seed=" + std::to_string(*options.seed));

  train::RunOptions run_options;
  run_options.config = train::read_run_config(options.config, options.overrides);
  run_options.data = options.data;
  run_options.out = options.out;
  if (!options.valid.empty()) run_options.valid = options.valid;
  if (!options.tokenizer.empty()) run_options.tokenizer = options.tokenizer;
  run_options.threads = options.threads;
  run_options.resume = options.resume;
  // A file size limit then fails the write, which is reported, instead of killing the process.
  std::signal(SIGXFSZ, SIG_IGN);
  const train::RunResult result = train::run_training(run_options);
  fmt::print("trained {} steps, {} tokens, {:.0f} tokens/s: {}\n", result.steps, result.tokens,
             result.tokens_per_s, options.out);
}

void add(CLI::App& app) {
  CLI::App* command = app.add_subcommand("train", "train a model on text");
  const auto options = std::make_shared<Options>();
  command->add_option("--config", options->config, "JSON file with model and train")->required();
  command->add_option("--data", options->data, "UTF-8 text or JSONL: a file or a folder")
      ->required();
  command->add_option("--out", options->out, "folder of the run and of the model")->required();
  command->add_option("--valid", options->valid,
                      "held-out text (default: the ends of documents over 100 kB)");
  command->add_option("--tokenizer", options->tokenizer,
                      "SentencePiece model (default: made from the training text)");
  command->add_option("--mixer", options->overrides.mixer,
                      "preset that replaces the mixers of the configuration (see rankone mixers)");
  command
      ->add_option("--set", options->overrides.settings,
                   "change train.KEY, model.KEY or mixer.KEY; may repeat")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  command->add_option("--device", options->device, "cpu or cuda")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  command->add_option("--dtype", options->dtype, "f32 or bf16")
      ->check(CLI::IsMember({"f32", "bf16"}))
      ->capture_default_str();
  command->add_option("--steps", options->steps, "train.steps");
  command->add_option("--seed", options->seed, "train.seed");
  command->add_option("--threads", options->threads, "threads (default: all processors)")
      ->check(CLI::Range(0, 1024));
  command->add_flag("--resume", options->resume, "continue the run in --out");
  command->callback([options] { run(*options); });
}

const RegisterVerb registered(30, add);

}  // namespace
}  // namespace rankone::apps
