// rankone eval: perplexity of held-out text with its baselines, and the curves of runs.

#include <cmath>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/verb.hpp"
#include "core/context.hpp"
#include "core/files.hpp"
#include "core/progress.hpp"
#include "core/status.hpp"
#include "eval/curves.hpp"
#include "eval/model_scorer.hpp"
#include "eval/ngram.hpp"
#include "eval/perplexity.hpp"
#include "eval/text.hpp"
#include "model/model.hpp"

namespace rankone::apps {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

struct PplOptions {
  std::string model;
  std::string data;
  std::string train_data;
  std::vector<std::int64_t> lengths;
  std::int64_t blocks = 0;
  int threads = 0;
  std::string json;
};

struct Row {
  std::string name;
  eval::Score score;
};

// "3.651 +- 0.021"; without units to take it over there is no error.
std::string with_error(double value, double error, int digits) {
  if (std::isnan(error)) return fmt::format("{:.{}f}", value, digits);
  return fmt::format("{:.{}f} +- {:.{}f}", value, digits, error, digits);
}

std::string with_separators(std::int64_t number) {
  std::string digits = std::to_string(number);
  for (auto at = static_cast<std::int64_t>(digits.size()) - 3; at > 0; at -= 3) {
    digits.insert(static_cast<std::size_t>(at), ",");
  }
  return digits;
}

void print_table(const std::vector<Row>& rows) {
  fmt::print("{:<9} {:>8}  {:<20} {:<20} {:<18}\n", "", "length", "perplexity", "bits per byte",
             "nats per target");
  for (const Row& row : rows) {
    const eval::Score& score = row.score;
    fmt::print("{:<9} {:>8}  {:<20} {:<20} {:<18}\n", row.name,
               score.length == 0 ? std::string("-") : std::to_string(score.length),
               with_error(score.perplexity, score.perplexity_error, 2),
               with_error(score.bits_per_byte.value, score.bits_per_byte.standard_error, 4),
               with_error(score.nats.value, score.nats.standard_error, 4));
  }
  const eval::Score& score = rows.front().score;
  fmt::print("{} targets, {} bytes, {} document{}; standard errors over {} {}\n",
             with_separators(score.targets), with_separators(score.bytes),
             with_separators(score.documents), score.documents == 1 ? "" : "s",
             with_separators(score.units),
             score.units_are_documents ? "documents" : "blocks of 1,024 targets");
}

ordered_json json_of(const Row& row) {
  const eval::Score& score = row.score;
  ordered_json json;
  json["name"] = row.name;
  json["length"] = score.length == 0 ? ordered_json(nullptr) : ordered_json(score.length);
  // A standard error that can not be taken is NaN, which JSON writes as null.
  json["perplexity"] = score.perplexity;
  json["perplexity_se"] = score.perplexity_error;
  json["bits_per_byte"] = score.bits_per_byte.value;
  json["bits_per_byte_se"] = score.bits_per_byte.standard_error;
  json["nats_per_target"] = score.nats.value;
  json["nats_per_target_se"] = score.nats.standard_error;
  json["targets"] = score.targets;
  json["bytes"] = score.bytes;
  json["documents"] = score.documents;
  json["units"] = score.units;
  json["unit"] = score.units_are_documents ? "document" : "block";
  return json;
}

std::vector<Row> baselines(const eval::Ngram& counts, const data::TokenFile& text,
                           const eval::Vocabulary& vocabulary, eval::PerplexityOptions options) {
  options.progress = nullptr;
  // Every length scores the same targets, and the piece before each is the same too.
  if (!options.lengths.empty()) {
    options.lengths = {*std::max_element(options.lengths.begin(), options.lengths.end())};
  }
  std::vector<Row> rows;
  using Order = eval::NgramScorer::Order;
  for (const auto& [name, order] :
       {std::pair{"bigram", Order::bigram}, std::pair{"unigram", Order::unigram}}) {
    eval::NgramScorer scorer(counts, order);
    eval::Score score = eval::evaluate(scorer, text, vocabulary, options).front();
    score.length = 0;
    rows.push_back({name, score});
  }
  return rows;
}

void run_ppl(const PplOptions& options) {
  const data::Tokenizer tokenizer =
      data::Tokenizer::load(fs::path(options.model) / "tokenizer.model");
  const model::Model model = model::Model::load(options.model, Dtype::f32);
  const data::TokenFile text = eval::open_text(options.data, tokenizer);
  const eval::Vocabulary vocabulary = eval::vocabulary_of(tokenizer);

  eval::PerplexityOptions settings;
  settings.lengths = options.lengths;
  settings.most_blocks = options.blocks;
  std::optional<Progress> progress;
  settings.progress = [&](std::int64_t done, std::int64_t rows) {
    if (!progress) progress.emplace("evaluating", static_cast<double>(rows), "tokens");
    progress->update(static_cast<double>(done));
  };
  Context context({.threads = options.threads});
  std::vector<Row> rows;
  for (const eval::Score& score : eval::evaluate(model, context, text, vocabulary, settings)) {
    rows.push_back({"model", score});
  }
  progress.reset();
  if (!options.train_data.empty()) {
    const data::TokenFile train = eval::open_text(options.train_data, tokenizer);
    for (Row& row : baselines(eval::count_ngrams(train), text, vocabulary, settings)) {
      rows.push_back(std::move(row));
    }
  }
  print_table(rows);
  if (options.json.empty()) return;
  ordered_json json;
  json["model"] = options.model;
  json["data"] = options.data;
  json["train_data"] =
      options.train_data.empty() ? ordered_json(nullptr) : ordered_json(options.train_data);
  json["rows"] = ordered_json::array();
  for (const Row& row : rows) json["rows"].push_back(json_of(row));
  write_file(options.json, json.dump(2) + "\n");
}

struct CurvesOptions {
  std::vector<std::string> runs;
  std::vector<std::string> levels;
  std::string title = "Loss";
  std::string out;
  bool log_x = false;
};

// NAME=REST.
std::pair<std::string, std::string> split_name(const std::string& option, const std::string& text) {
  const std::size_t equals = text.find('=');
  require(equals != std::string::npos && equals > 0 && equals + 1 < text.size(),
          "[eval curves] {} is '{}' (must be NAME=VALUE)", option, text);
  return {text.substr(0, equals), text.substr(equals + 1)};
}

double parse_number(const std::string& option, const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  require(end == text.c_str() + text.size() && std::isfinite(value),
          "[eval curves] {} is '{}' (must be a number)", option, text);
  return value;
}

void run_curves(const CurvesOptions& options) {
  std::vector<eval::NamedRun> runs;
  for (const std::string& text : options.runs) {
    const auto [name, path] = split_name("--run", text);
    const fs::path file =
        fs::is_directory(path) ? fs::path(path) / "metrics.jsonl" : fs::path(path);
    runs.push_back({name, eval::read_run_curves(file)});
  }
  std::vector<eval::Level> levels;
  for (const std::string& text : options.levels) {
    const auto [name, value] = split_name("--level", text);
    levels.push_back({name, parse_number("--level", value)});
  }
  eval::Chart chart = eval::loss_chart(runs, levels);
  chart.title = options.title;
  chart.log_x = options.log_x;
  write_file(options.out, eval::render_svg(chart));
}

void add_ppl(CLI::App& parent) {
  CLI::App* command = parent.add_subcommand("ppl", "perplexity and bits per byte of held-out text");
  const auto options = std::make_shared<PplOptions>();
  command->add_option("--model", options->model, "model directory")->required();
  command
      ->add_option("--data", options->data,
                   "held-out text: a file or folder of UTF-8 text or JSONL, or a token file")
      ->required();
  command
      ->add_option("--lengths", options->lengths,
                   "context lengths, which all score the same blocks of 512 pieces "
                   "(default: whole documents)")
      ->delimiter(',');
  command
      ->add_option("--blocks", options->blocks,
                   "with --lengths: score only so many blocks, spread over the text")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 40));
  command->add_option("--train-data", options->train_data,
                      "training text, for the unigram and bigram baselines");
  command->add_option("--threads", options->threads, "threads (default: all processors)")
      ->check(CLI::Range(0, 1024));
  command->add_option("--json", options->json, "file for the figures");
  command->callback([options] {
    require(options->blocks == 0 || !options->lengths.empty(),
            "[eval ppl] --blocks needs --lengths (whole documents have no blocks)");
    run_ppl(*options);
  });
}

void add_curves(CLI::App& parent) {
  CLI::App* command = parent.add_subcommand("curves", "loss curves of training runs as SVG");
  const auto options = std::make_shared<CurvesOptions>();
  command
      ->add_option("--run", options->runs,
                   "a run's name and its folder or metrics.jsonl; may repeat")
      ->required()
      ->type_name("NAME=PATH")
      ->allow_extra_args(false);
  command
      ->add_option("--level", options->levels, "a horizontal line, such as a baseline; may repeat")
      ->type_name("NAME=NATS")
      ->allow_extra_args(false);
  command->add_option("--title", options->title, "title of the chart")->capture_default_str();
  command->add_flag("--log-x", options->log_x, "logarithmic axis of tokens");
  command->add_option("--svg", options->out, "file to write")->required();
  command->callback([options] { run_curves(*options); });
}

void add(CLI::App& app) {
  CLI::App* command = app.add_subcommand("eval", "evaluate models: ppl, curves");
  command->require_subcommand(1);
  add_ppl(*command);
  add_curves(*command);
}

const RegisterVerb registered(40, add);

}  // namespace
}  // namespace rankone::apps
