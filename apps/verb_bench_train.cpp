// rankone bench train: the speed and memory of whole training steps.

#include <sys/resource.h>

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "apps/bench.hpp"
#include "apps/verb.hpp"
#include "core/context.hpp"
#include "core/random.hpp"
#include "core/status.hpp"
#include "model/config.hpp"
#include "model/model.hpp"
#include "nn/cpu/cpu_backend.hpp"
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

// c [m, n] (+)= op(a) op(b) of one step.
struct Product {
  std::int64_t m, n, k;
  bool transpose_a, transpose_b, accumulate;
};

// The CPU backend, which notes the matrix products of the layers while it runs.
class ProductLog final : public nn::CpuBackend {
 public:
  std::vector<Product> take() { return std::exchange(products_, {}); }

  void gemm(Context& context, const nn::Gemm& args) const override {
    note(context, {args.c.dim(0), args.c.dim(1), args.a.dim(args.transpose_a ? 0 : 1),
                   args.transpose_a, args.transpose_b, args.accumulate});
    CpuBackend::gemm(context, args);
  }
  void linear(Context& context, const nn::Linear& args, const Tensor& y) const override {
    note_forward(context, args.x, args.weight);
    CpuBackend::linear(context, args, y);
  }
  void linear_vjp(Context& context, const nn::Linear& args, const Tensor& dy,
                  const nn::LinearGrads& grads) const override {
    note_backward(context, args.x, args.weight, grads.x, grads.weight);
    CpuBackend::linear_vjp(context, args, dy, grads);
  }
  void cross_entropy(Context& context, const nn::CrossEntropy& args,
                     const Tensor& losses) const override {
    note_forward(context, args.x, args.weight);
    CpuBackend::cross_entropy(context, args, losses);
  }
  void cross_entropy_vjp(Context& context, const nn::CrossEntropy& args, double factor,
                         const Tensor& losses, const nn::CrossEntropyGrads& grads) const override {
    note_forward(context, args.x, args.weight);
    note_backward(context, args.x, args.weight, grads.x, grads.weight);
    CpuBackend::cross_entropy_vjp(context, args, factor, losses, grads);
  }

 private:
  void note(const Context& context, const Product& product) const {
    if (!context.planning()) products_.push_back(product);
  }
  void note_forward(const Context& context, const Tensor& x, const Tensor& weight) const {
    const std::int64_t out = weight.dim(0), in = weight.dim(1);
    note(context, {x.count() / in, out, in, false, true, false});
  }
  void note_backward(const Context& context, const Tensor& x, const Tensor& weight,
                     const Tensor& dx, const Tensor& dweight) const {
    const std::int64_t out = weight.dim(0), in = weight.dim(1), rows = x.count() / in;
    if (dx.defined()) note(context, {rows, in, out, false, false, false});
    if (dweight.defined()) note(context, {out, in, rows, true, false, true});
  }

  mutable std::vector<Product> products_;
};

// The products alone, one after the other on operands of their sizes.
Timing time_products(Context& context, const std::vector<Product>& products) {
  std::int64_t a = 0, b = 0, c = 0;
  for (const Product& p : products) {
    a = std::max(a, p.m * p.k);
    b = std::max(b, p.k * p.n);
    c = std::max(c, p.m * p.n);
  }
  const auto filled = [](std::int64_t count) {
    Random random(2);
    Tensor tensor = Tensor::empty({count}, Dtype::f32);
    for (float& x : tensor.span<float>()) x = static_cast<float>(random.uniform(-1e-3, 1e-3));
    return tensor;
  };
  const Tensor left = filled(a), right = filled(b), result = filled(c);
  const auto matrix = [](const Tensor& from, std::int64_t rows, std::int64_t columns, bool turned) {
    return from.slice(0, 0, rows * columns)
        .reshape(turned ? Shape{columns, rows} : Shape{rows, columns});
  };
  return measure(
      [&] {
        for (const Product& p : products) {
          const ArenaScope scope(context.arena());
          nn::gemm(context,
                   {matrix(left, p.m, p.k, p.transpose_a), matrix(right, p.k, p.n, p.transpose_b),
                    matrix(result, p.m, p.n, false), p.transpose_a, p.transpose_b, p.accumulate});
        }
      },
      kFewestSteps, kSeconds);
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
  ProductLog log;
  const nn::RegisteredBackend logged(log);
  train::Trainer trainer(context, model, config.train);
  const data::Batch batch = random_batch(shape[0], shape[1], model.config().vocab_size);
  std::int64_t step = 0;
  const Timing timing = measure(
      [&] {
        log.take();
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
  const Timing products = time_products(context, log.take());

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
  row["products_us"] = products.median_us;
  row["products_fraction"] = products.median_us / timing.median_us;
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
      "activations {:.1f} MiB, process peak {:.1f} MiB\n"
      "its matrix products alone {:.1f} ms: {:.0f} % of the tokens/s they would allow\n",
      model.config().model_type, model.parameter_count(), model.non_embedding_parameter_count(),
      options.shape, context.threads().size(), timing.median_us / 1e3, timing.low_us / 1e3,
      timing.high_us / 1e3, timing.runs, tokens_per_s, 1e9 / tokens_per_s, rates,
      static_cast<double>(trainer.arena_bytes()) / kMebibyte, static_cast<double>(peak) / kMebibyte,
      products.median_us / 1e3, 100 * products.median_us / timing.median_us);
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
