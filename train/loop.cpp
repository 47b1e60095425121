#include "train/loop.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "core/context.hpp"
#include "core/json.hpp"
#include "core/status.hpp"
#include "model/model.hpp"
#include "train/checkpoint.hpp"
#include "train/inputs.hpp"
#include "train/metrics.hpp"
#include "train/schedule.hpp"
#include "train/trainer.hpp"
#include "train/writing.hpp"

namespace rankone::train {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr double kSecondsBetweenCheckpoints = 300;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Files by which a folder is known to hold a run or a model.
bool holds_run(const fs::path& directory) {
  for (const char* name : {"metrics.jsonl", "checkpoints", "model.safetensors", "config.json"}) {
    if (fs::exists(directory / name)) return true;
  }
  return false;
}

std::optional<Checkpoint> find_checkpoint(const RunOptions& options) {
  if (!options.resume) {
    require(!holds_run(options.out),
            "[train] --out {} holds a run (continue it with --resume, or name another folder)",
            options.out.string());
    return std::nullopt;
  }
  require(holds_run(options.out), "[train] --resume: {} holds no run (leave --resume out)",
          options.out.string());
  return newest_checkpoint(options.out / "checkpoints", [](const std::string& message) {
    std::fprintf(stderr, "rankone: warning: %s\n", message.c_str());
  });
}

// The embedding must have a row for every piece of the tokenizer; it may have more.
void fit_vocabulary(model::ModelConfig& config, bool given, const data::Tokenizer& tokenizer) {
  if (!given) config.vocab_size = tokenizer.size();
  require(config.vocab_size >= tokenizer.size(),
          "[train] model.vocab_size is {}, the tokenizer has {} pieces (leave it out, or give at "
          "least so many)",
          config.vocab_size, tokenizer.size());
  config.bos_token_id = tokenizer.bos();
  config.eos_token_id = tokenizer.eos();
}

class Run {
 public:
  Run(const RunOptions& options, const std::optional<Checkpoint>& resumed, Inputs inputs,
      const model::ModelConfig& model_config, std::string identity)
      : options_(options),
        config_(options.config.train),
        inputs_(std::move(inputs)),
        identity_(std::move(identity)),
        context_(ContextOptions{.threads = options.threads}),
        model_(model::Model::create(model_config, Dtype::f32, config_.seed)),
        trainer_(context_, model_, config_),
        batches_(inputs_.train, config_.seq_len, config_.batch_tokens, config_.seed),
        step_(resumed ? resumed->step : 0),
        tokens_(resumed ? resumed->tokens : 0) {
    if (resumed) trainer_.optimizer().restore(resumed->state);
    if (inputs_.valid) {
      validation_set_ = make_validation_set(*inputs_.valid, inputs_.tokenizer, config_.seq_len,
                                            config_.batch_tokens, config_.eval_tokens);
    }
  }

  RunResult run();

 private:
  void train_until(std::int64_t end, RunProgress& progress, Metrics& metrics);
  void log(std::int64_t first, RunProgress& progress, Metrics& metrics);
  void evaluate(RunProgress& progress, Metrics& metrics);
  void save(Metrics& metrics);
  std::int64_t next_stop() const;

  const RunOptions& options_;
  const TrainConfig& config_;
  Inputs inputs_;
  std::string identity_;
  Context context_;
  model::Model model_;
  Trainer trainer_;
  data::Batches batches_;
  ValidationSet validation_set_;
  std::int64_t step_;
  std::int64_t tokens_;
  std::int64_t saved_ = -1;
  RunResult result_;
  double train_seconds_ = 0;
  std::int64_t train_tokens_ = 0;
};

// The next step after which the loss is read: a logged, evaluated or saved step, or the last.
std::int64_t Run::next_stop() const {
  std::int64_t stop = config_.steps;
  for (const std::int64_t every :
       {config_.log_every, config_.eval_every, config_.checkpoint_every}) {
    if (every > 0) stop = std::min(stop, (step_ / every + 1) * every);
  }
  return stop;
}

void Run::train_until(std::int64_t end, RunProgress& progress, Metrics& metrics) {
  const std::int64_t first = step_ + 1;
  const std::int64_t tokens_before = tokens_;
  const auto start = Clock::now();
  for (; step_ < end; ++step_) {
    const data::Batch batch = batches_.at(step_);
    trainer_.step(batch, step_ + 1);
    tokens_ += batch.sequences.rows();
  }
  const auto results = trainer_.results();
  const double seconds = seconds_since(start);
  train_seconds_ += seconds;
  train_tokens_ += tokens_ - tokens_before;
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (results[i].finite()) continue;
    const std::int64_t step = first + static_cast<std::int64_t>(i);
    fail(Status::failed,
         "[train] step {}: {} is not finite (loss {}, gradient norm {}); the parameters are as "
         "before "
         "this step (a lower train.lr or a longer train.warmup may help)",
         step, trainer_.find_non_finite(batches_.at(step - 1)), results[i].loss,
         results[i].grad_norm);
  }
  result_.loss = results.back().loss;
  const StepRecord record{step_,
                          tokens_,
                          results.back().loss,
                          learning_rate(config_, step_),
                          results.back().grad_norm,
                          static_cast<double>(tokens_ - tokens_before) / seconds};
  if (step_ % config_.log_every == 0 || step_ == config_.steps) {
    metrics.add(record);
    progress.step(record);
  }
}

void Run::evaluate(RunProgress& progress, Metrics& metrics) {
  if (validation_set_.scored == 0) return;
  const Validation validation = validate(context_, model_, validation_set_);
  const EvalRecord record{step_, tokens_, validation.loss(), validation.bits_per_byte(),
                          validation.scored};
  metrics.add(record);
  progress.evaluation(record);
  result_.validation = validation;
}

void Run::save(Metrics& metrics) {
  metrics.sync();
  Checkpoint checkpoint;
  checkpoint.step = step_;
  checkpoint.tokens = tokens_;
  checkpoint.config = identity_;
  checkpoint.data = inputs_.data_hash;
  checkpoint.valid = inputs_.valid_hash;
  checkpoint.tokenizer = inputs_.tokenizer.hash();
  checkpoint.state = trainer_.optimizer().state();
  write_checkpoint(options_.out / "checkpoints", checkpoint);
  model_.save(options_.out);
  saved_ = step_;
}

RunResult Run::run() {
  Metrics metrics(options_.out, step_);
  RunProgress progress(step_, config_.steps, ::isatty(STDOUT_FILENO) == 1);
  if (options_.resume) progress.note(fmt::format("resumed at step {}", step_));
  progress.note(fmt::format(
      "{} parameters ({} without embeddings), {} training tokens, {} validation targets",
      model_.parameter_count(), model_.non_embedding_parameter_count(), inputs_.train.tokens(),
      validation_set_.scored));
  if (!inputs_.valid)
    progress.note("no validation: no document is over 100 kB (name some text with --valid)");
  auto last_save = Clock::now();
  while (step_ < config_.steps) {
    train_until(next_stop(), progress, metrics);
    const bool last = step_ == config_.steps;
    if (last || (config_.eval_every > 0 && step_ % config_.eval_every == 0)) {
      evaluate(progress, metrics);
    }
    const bool due = config_.checkpoint_every > 0
                         ? step_ % config_.checkpoint_every == 0
                         : seconds_since(last_save) >= kSecondsBetweenCheckpoints;
    if (due || last) {
      save(metrics);
      last_save = Clock::now();
    }
  }
  // A run that was killed between its last checkpoint and its model, or has no step to do.
  if (saved_ != step_) model_.save(options_.out);
  result_.steps = step_;
  result_.tokens = tokens_;
  result_.tokens_per_s =
      train_seconds_ > 0 ? static_cast<double>(train_tokens_) / train_seconds_ : 0;
  return result_;
}

}  // namespace

RunResult run_training(const RunOptions& options) {
  const std::optional<Checkpoint> resumed = find_checkpoint(options);
  model::ModelConfig config =
      model::config_from_json(options.config.model, "--config: model", true);
  // The vocabulary is not in it: it follows from the tokenizer, which has a hash of its own.
  const std::string identity =
      Json({{"model", options.config.model}, {"train", to_json(options.config.train)}}).dump();
  if (resumed) {
    const std::string difference = first_difference(resumed->config, identity);
    require(difference.empty(),
            "[train] --resume: the configuration changed since the checkpoint, {} (resume with the "
            "same one, or train into another folder)",
            difference);
  }
  writing([&] { fs::create_directories(options.out); });
  Inputs inputs = prepare_inputs(options, resumed);
  fit_vocabulary(config, options.config.model.contains("vocab_size"), inputs.tokenizer);
  Run run(options, resumed, std::move(inputs), config, identity);
  return writing([&] { return run.run(); });
}

}  // namespace rankone::train
