// rankone compare: training runs on the same text side by side, measured in one go.

#include <fmt/format.h>
#include <algorithm>
#include <filesystem>
#include <fstream>

#include <memory>
#include <string>
#include <vector>

#include "apps/verb.hpp"
#include "core/files.hpp"
#include "core/json.hpp"
#include "core/status.hpp"
#include "data/tokenizer.hpp"
#include "data/tokens.hpp"
#include "eval/curves.hpp"
#include "eval/decode_time.hpp"
#include "eval/model_scorer.hpp"
#include "eval/ngram.hpp"
#include "eval/text.hpp"
#include "model/model.hpp"

namespace rankone::apps {
namespace {

namespace fs = std::filesystem;

struct Options {
  std::vector<std::string> runs;
  std::vector<std::int64_t> contexts = {1024, 65536};
  std::string svg;
  std::string json;
  int threads = 0;
};

// What metrics.jsonl says of a run.
struct Log {
  std::int64_t tokens = 0;
  double tokens_per_s = 0;  // over all logged steps
  eval::RunCurves curves;
};

struct Row {
  std::string name;
  std::int64_t parameters = 0;  // 0: a baseline, which has none
  std::int64_t non_embedding_parameters = 0;
  std::size_t state_bytes = 0;
  Log log;
  eval::Score score;
  std::vector<eval::DecodeTime> decode;
};

Log read_log(const fs::path& file) {
  Log log;
  log.curves = eval::read_run_curves(file);
  double seconds = 0;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    const Json value = Json::parse(line, nullptr, false);
    if (!value.is_object() || !value.contains("tokens_per_s")) continue;
    const auto tokens = value.value("tokens", std::int64_t{0});
    seconds += static_cast<double>(tokens - log.tokens) / value.value("tokens_per_s", 1.0);
    log.tokens = tokens;
  }
  if (seconds > 0) log.tokens_per_s = static_cast<double>(log.tokens) / seconds;
  return log;
}

std::string size_text(double bytes) {
  return bytes < 1048576 ? fmt::format("{:.0f} KiB", bytes / 1024)
                         : fmt::format("{:.1f} MiB", bytes / 1048576);
}

std::string context_text(std::int64_t tokens) {
  return tokens % 1024 == 0 ? fmt::format("{}K", tokens / 1024) : std::to_string(tokens);
}

// Cells of a line; the first is aligned left, the others right.
void print_lines(const std::vector<std::vector<std::string>>& lines) {
  std::vector<std::size_t> widths;
  for (const auto& line : lines) {
    widths.resize(std::max(widths.size(), line.size()));
    for (std::size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
  }
  for (const auto& line : lines) {
    std::string text = fmt::format("{:<{}}", line[0], widths[0]);
    for (std::size_t i = 1; i < line.size(); ++i)
      text += fmt::format("  {:>{}}", line[i], widths[i]);
    fmt::print("{}\n", text);
  }
}

void print_table(const std::vector<Row>& rows, const std::vector<std::int64_t>& contexts) {
  std::vector<std::vector<std::string>> lines = {
      {"", "parameters", "state", "tokens/s", "loss (nats)", "bits per byte"}};
  for (const std::int64_t tokens : contexts) {
    lines[0].push_back(fmt::format("ms/token at {}", context_text(tokens)));
  }
  for (const Row& row : rows) {
    const bool trained = row.parameters > 0;
    std::vector<std::string> line = {
        row.name,
        trained ? std::to_string(row.parameters) : "-",
        trained ? size_text(static_cast<double>(row.state_bytes)) : "-",
        trained ? fmt::format("{:.0f}", row.log.tokens_per_s) : "-",
        fmt::format("{:.4f} +- {:.4f}", row.score.nats.value, row.score.nats.standard_error),
        fmt::format("{:.4f} +- {:.4f}", row.score.bits_per_byte.value,
                    row.score.bits_per_byte.standard_error)};
    for (std::size_t i = 0; i < contexts.size(); ++i) {
      line.push_back(i < row.decode.size() ? fmt::format("{:.3f}", row.decode[i].median_ms())
                                           : "-");
    }
    lines.push_back(std::move(line));
  }
  print_lines(lines);
}

Json to_json(const std::vector<Row>& rows) {
  Json list = Json::array();
  for (const Row& row : rows) {
    Json value = {{"name", row.name},
                  {"parameters", row.parameters},
                  {"non_embedding_parameters", row.non_embedding_parameters},
                  {"state_bytes", row.state_bytes},
                  {"trained_tokens", row.log.tokens},
                  {"tokens_per_s", row.log.tokens_per_s},
                  {"targets", row.score.targets},
                  {"units", row.score.units},
                  {"units_are_documents", row.score.units_are_documents},
                  {"loss", row.score.nats.value},
                  {"loss_error", row.score.nats.standard_error},
                  {"bits_per_byte", row.score.bits_per_byte.value},
                  {"bits_per_byte_error", row.score.bits_per_byte.standard_error},
                  {"perplexity", row.score.perplexity},
                  {"decode", Json::array()}};
    for (const eval::DecodeTime& time : row.decode) {
      value["decode"].push_back({{"context", time.context},
                                 {"median_ms", time.median_ms()},
                                 {"runs_ms", time.run_ms},
                                 {"state_bytes", time.state_bytes},
                                 {"workspace_bytes", time.workspace_bytes}});
    }
    list.push_back(std::move(value));
  }
  return list;
}

std::string chart_of(const std::vector<Row>& rows) {
  std::vector<eval::NamedRun> runs;
  std::vector<eval::Level> levels;
  for (const Row& row : rows) {
    if (row.parameters > 0) {
      runs.push_back({row.name, row.log.curves});
    } else {
      levels.push_back({row.name, row.score.nats.value});
    }
  }
  return eval::render_svg(eval::loss_chart(runs, levels));
}

Row measure(const fs::path& run, Context& context, const data::TokenFile& valid,
            const eval::Vocabulary& vocabulary, const std::vector<std::int64_t>& contexts) {
  Row row;
  row.name = fs::weakly_canonical(run).filename().string();
  row.log = read_log(run / "metrics.jsonl");
  const data::TokenFile own = data::TokenFile::open(run / "valid.tokens");
  require(own.hash() == valid.hash(),
          "[compare] {} was trained with another tokenizer or validation text than the first run",
          run.string());
  const model::Model model = model::Model::load(run, Dtype::f32);
  row.parameters = model.parameter_count();
  row.non_embedding_parameters = model.non_embedding_parameter_count();
  row.state_bytes = model.make_state(1).bytes();
  row.score = eval::evaluate(model, context, valid, vocabulary, {}).front();
  Context decoding(ContextOptions{}, context.pool());
  row.decode = eval::time_decode(decoding, model, contexts);
  return row;
}

std::vector<Row> baselines(const data::TokenFile& train, const data::TokenFile& valid,
                           const eval::Vocabulary& vocabulary) {
  const eval::Ngram counts = eval::count_ngrams(train);
  std::vector<Row> rows;
  using Order = eval::NgramScorer::Order;
  for (const auto& [name, order] :
       {std::pair{"bigram", Order::bigram}, std::pair{"unigram", Order::unigram}}) {
    eval::NgramScorer scorer(counts, order);
    Row row;
    row.name = name;
    row.score = eval::evaluate(scorer, valid, vocabulary, {}).front();
    rows.push_back(std::move(row));
  }
  return rows;
}

void run(const Options& options) {
  const fs::path first = options.runs.front();
  const data::Tokenizer tokenizer = data::Tokenizer::load(first / "tokenizer.model");
  const data::TokenFile train = eval::open_text(first / "train.tokens", tokenizer);
  const data::TokenFile valid = eval::open_text(first / "valid.tokens", tokenizer);
  const eval::Vocabulary vocabulary = eval::vocabulary_of(tokenizer);
  Context context(ContextOptions{.threads = options.threads});
  std::vector<Row> rows;
  for (const std::string& path : options.runs) {
    rows.push_back(measure(path, context, valid, vocabulary, options.contexts));
  }
  for (const Row& row : rows) {
    if (row.log.tokens != rows.front().log.tokens) {
      fmt::print("note: {} was trained on {} tokens, {} on {}\n", row.name, row.log.tokens,
                 rows.front().name, rows.front().log.tokens);
    }
  }
  for (Row& row : baselines(train, valid, vocabulary)) rows.push_back(std::move(row));
  print_table(rows, options.contexts);
  const eval::Score& score = rows.front().score;
  fmt::print("{} trained tokens; {} held-out targets of {} bytes; standard errors over {} {}\n",
             rows.front().log.tokens, score.targets, score.bytes, score.units,
             score.units_are_documents ? "documents" : "blocks of at most 1,024 targets");
  if (!options.svg.empty()) write_file(options.svg, chart_of(rows));
  if (!options.json.empty()) write_file(options.json, to_json(rows).dump(2) + "\n");
}

void add(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "compare", "training runs on the same text side by side, with n-gram baselines");
  const auto options = std::make_shared<Options>();
  command->add_option("runs", options->runs, "folders that rankone train wrote")
      ->required()
      ->type_name("RUN");
  command
      ->add_option("--contexts", options->contexts,
                   "tokens read before the timed steps (default 1024,65536)")
      ->delimiter(',')
      ->check(CLI::Range(0, 1 << 24));
  command->add_option("--svg", options->svg, "draw the loss curves into this file");
  command->add_option("--json", options->json, "write the figures to this file");
  command->add_option("--threads", options->threads, "threads (default: all processors)")
      ->check(CLI::Range(0, 1024));
  command->callback([options] { run(*options); });
}

const RegisterVerb registered(45, add);

}  // namespace
}  // namespace rankone::apps
