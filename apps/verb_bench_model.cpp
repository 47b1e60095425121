// rankone bench model: one token at a time of a whole model, after contexts of several lengths.

#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

#include "apps/bench.hpp"
#include "apps/verb.hpp"
#include "core/context.hpp"
#include "eval/decode_time.hpp"
#include "model/model.hpp"

namespace rankone::apps {
namespace {

struct Options {
  std::string model;
  std::vector<std::int64_t> contexts = {1024, 65536};
  std::string device = "cpu";
  int threads = 0;
  std::string json;
};

void run(const Options& options) {
  require_device(options.device);
  const model::Model model = model::Model::load(options.model, Dtype::f32);
  Context context(ContextOptions{.threads = options.threads});
  const auto times = eval::time_decode(context, model, options.contexts);
  const Peaks peaks = measure_peaks(context.threads());
  std::vector<BenchRow> rows;
  for (const eval::DecodeTime& time : times) {
    fmt::print(
        "{:>9} tokens read: {:.4f} ms a token (median of {} runs), {:.3f} of the first context, "
        "state {} bytes, workspace {} bytes\n",
        time.context, time.median_ms(), time.run_ms.size(),
        time.median_ms() / times.front().median_ms(), time.state_bytes, time.workspace_bytes);
    BenchRow row;
    row["mixer"] = model.config().model_type;
    row["direction"] = "step";
    row["device"] = options.device;
    row["b"] = 1;
    row["t"] = time.context;
    row["dtype"] = "f32";
    row["threads"] = context.threads().size();
    row["parameters"] = model.parameter_count();
    row["median_us"] = time.median_ms() * 1e3;
    row["runs_ms"] = time.run_ms;
    row["state_bytes"] = time.state_bytes;
    row["workspace_bytes"] = time.workspace_bytes;
    add_peaks(row, peaks);
    rows.push_back(row);
  }
  write_rows(options.json, rows);
}

void add(CLI::App& app) {
  CLI::App* command = bench_command(app).add_subcommand(
      "model", "steps of a whole model, one token at a time after long contexts");
  const auto options = std::make_shared<Options>();
  command->add_option("--model", options->model, "model directory")->required();
  command
      ->add_option("--contexts", options->contexts,
                   "tokens read before the timed steps (default 1024,65536)")
      ->delimiter(',')
      ->check(CLI::Range(0, 1 << 24));
  command->add_option("--device", options->device, "cpu or cuda")->capture_default_str();
  command->add_option("--threads", options->threads, "threads (default: all processors)")
      ->check(CLI::Range(0, 1024));
  command->add_option("--json", options->json, "write the figures to this file");
  command->callback([options] { run(*options); });
}

const RegisterVerb registered(52, add);

}  // namespace
}  // namespace rankone::apps
