// rankone bench train: the speed and memory of whole training steps.

#include <sys/resource.h>

#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

#include "apps/bench.hpp"
#include "apps/verb.hpp"
#include "core/context.hpp"
#include "core/random.hpp"
#include "core/status.hpp"
#include "model/config.hpp"
#include "model/model.hpp"
#include "train/config.hpp"
#include "train/trainer.hpp"

namespace rankone::apps {
namespace {

constexpr int kFewestSteps = 5;
constexpr double kSeconds = 3.0;
constexpr double kMebibyte = 1048576.0;
constexpr std::int64_t kVocabulary = 4096;  // where the configuration leaves it open

struct Options {
  std::string config;
  std::string shape;
  std::string device = "cpu";
  train::Overrides overrides;
  int threads = 0;
  std::string json;
};

// Random tokens: the time of a step does not depend on them.
data::Batch random_batch(std::int64_t batch_size, std::int64_t time, std::int64_t vocabulary) {
  data::Batch batch;
  Random random(1);
  const std::int64_t rows = batch_size * time;
  for (std::int64_t row = 0; row < rows; ++row) {
    batch.ids.push_back(
        static_cast<std::int32_t>(random.below(static_cast<std::uint64_t>(vocabulary))));
    batch.targets.push_back(
        static_cast<std::int32_t>(random.below(static_cast<std::uint64_t>(vocabulary))));
  }
  batch.sequences = Sequences::dense(batch_size, time);
  batch.scored = rows;
  return batch;
}

void run(const Options& options) {
  require_device(options.device);
  const std::vector<std::int64_t> shape = parse_shape(options.shape, 2, "BxT");
  train::RunConfig config = train::read_run_config(options.config, options.overrides);
  if (!config.model.contains("vocab_size")) config.model["vocab_size"] = kVocabulary;
  config.train.log_every = 1;
  config.train.steps = 1'000'000;
  config.train.warmup = config.train.steps;  // the weights hardly move

  Context context(ContextOptions{.threads = options.threads});
  model::Model model = model::Model::create(
      model::config_from_json(config.model, options.config, true), Dtype::f32, config.train.seed);
  train::Trainer trainer(context, model, config.train);
  const data::Batch batch = random_batch(shape[0], shape[1], model.config().vocab_size);
  std::int64_t step = 0;
  const Timing timing = measure(
      [&] {
        trainer.step(batch, ++step);
        if (!trainer.results().back().finite()) {
          fail(Status::failed, "[bench train] the loss is not finite");
        }
      },
      kFewestSteps, kSeconds);
  const double tokens_per_s = static_cast<double>(batch.scored) / timing.median_us * 1e6;
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const std::int64_t peak = std::int64_t{usage.ru_maxrss} * 1024;

  BenchRow row;
  row["mixer"] = model.config().model_type;
  row["direction"] = "train";
  row["device"] = options.device;
  row["b"] = shape[0];
  row["t"] = shape[1];
  row["dtype"] = "f32";
  row["threads"] = context.threads().size();
  row["parameters"] = model.parameter_count();
  row["non_embedding_parameters"] = model.non_embedding_parameter_count();
  add_timing(row, timing);
  row["tokens_per_s"] = tokens_per_s;
  const Peaks peaks = measure_peaks(context.threads());
  // Every weight but those of a look-up is used in three products of a token: forward, and backward
  // once for the input and once for itself.
  const model::ModelConfig& sizes = model.config();
  const double weights = static_cast<double>(model.non_embedding_parameter_count() +
                                             sizes.vocab_size * sizes.hidden_size);
  const std::string rates =
      add_rates(row, timing, {6 * weights * static_cast<double>(batch.scored), 0},
                {.gflops = peaks.gflops, .traffic = {}});
  row["activation_bytes"] = trainer.arena_bytes();
  row["peak_bytes"] = peak;
  add_peaks(row, peaks);
  fmt::print(
      "{}: {} parameters ({} without embeddings), {} tokens a step, {} threads\n"
      "{:.1f} ms a step ({:.1f} .. {:.1f}, {} runs), {:.0f} tokens/s, {:.0f} ns per token; {}; "
      "activations {:.1f} MiB, process peak {:.1f} MiB\n",
      model.config().model_type, model.parameter_count(), model.non_embedding_parameter_count(),
      options.shape, context.threads().size(), timing.median_us / 1e3, timing.low_us / 1e3,
      timing.high_us / 1e3, timing.runs, tokens_per_s, 1e9 / tokens_per_s, rates,
      static_cast<double>(trainer.arena_bytes()) / kMebibyte,
      static_cast<double>(peak) / kMebibyte);
  write_rows(options.json, {row});
}

void add(CLI::App& app) {
  CLI::App* command =
      bench_command(app).add_subcommand("train", "whole training steps of a configuration");
  const auto options = std::make_shared<Options>();
  command->add_option("--config", options->config, "JSON file with model and train")->required();
  command->add_option("--shape", options->shape, "sequences x tokens of one step, such as 4x512")
      ->type_name("BxT")
      ->required();
  command->add_option("--mixer", options->overrides.mixer,
                      "preset that replaces the mixers of the configuration");
  command
      ->add_option("--set", options->overrides.settings,
                   "change train.KEY, model.KEY or mixer.KEY; may repeat")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  command->add_option("--device", options->device, "cpu or cuda")->capture_default_str();
  command->add_option("--threads", options->threads, "threads (default: all processors)")
      ->check(CLI::Range(0, 1024));
  command->add_option("--json", options->json, "write the figures to this file");
  command->callback([options] { run(*options); });
}

const RegisterVerb registered(51, add);

}  // namespace
}  // namespace rankone::apps
