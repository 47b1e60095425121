// rankone tokenizer: trains SentencePiece models, and text to ids and back.

#include <charconv>
#include <cstdio>
#include <memory>

#include "apps/verb.hpp"
#include "core/files.hpp"
#include "core/status.hpp"
#include "core/text.hpp"
#include "data/tokenizer.hpp"
#include "data/tokens.hpp"

namespace rankone::apps {
namespace {

using data::Tokenizer;

constexpr std::size_t kLargestInput = std::size_t{1} << 30;

struct Options {
  std::string data;
  std::int64_t vocab_size = 0;
  std::string out;
  std::string model;
  std::string in = "-";
};

std::string read_input(const std::string& name) {
  return read_file(name == "-" ? "/dev/stdin" : name, kLargestInput);
}

std::string shown(const std::string& name) { return name == "-" ? "standard input" : name; }

// All of it, or an error: a pipe may be closed, a disk full.
void print(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) {
    fail(Status::io, "[tokenizer] standard output could not be written");
  }
}

void train(const Options& options) {
  const std::vector<data::Document> documents = data::read_documents(options.data);
  std::vector<std::string_view> texts;
  std::size_t bytes = 0;
  for (const data::Document& document : documents) {
    texts.push_back(document.text);
    bytes += document.text.size();
  }
  const Tokenizer tokenizer = Tokenizer::train(texts, options.vocab_size);
  tokenizer.save(options.out);
  print(fmt::format("{}: {} pieces from {} bytes of text in {} documents\n", options.out,
                    tokenizer.size(), bytes, documents.size()));
}

void encode(const Options& options) {
  const Tokenizer tokenizer = Tokenizer::load(options.model);
  const std::string text = read_input(options.in);
  if (const std::size_t bad = utf8_error(text); bad < text.size()) {
    fail(Status::corrupt, "[tokenizer] {}: byte {} is not UTF-8", shown(options.in), bad);
  }
  std::string line;
  for (const std::int32_t id : tokenizer.encode(text)) {
    line += (line.empty() ? "" : " ") + std::to_string(id);
  }
  print(line + "\n");
}

std::vector<std::int32_t> parse_ids(std::string_view text, const std::string& where) {
  constexpr std::string_view kSpace = " \t\r\n";
  std::vector<std::int32_t> ids;
  for (std::size_t at = text.find_first_not_of(kSpace); at != std::string_view::npos;
       at = text.find_first_not_of(kSpace, at)) {
    const std::string_view word = text.substr(at, text.find_first_of(kSpace, at) - at);
    std::int32_t id = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), id);
    if (error != std::errc() || end != word.data() + word.size()) {
      fail(Status::invalid_argument, "[tokenizer] {}: byte {}: {} is no id of a piece", where, at,
           printable(word));
    }
    ids.push_back(id);
    at += word.size();
  }
  return ids;
}

void decode(const Options& options) {
  const Tokenizer tokenizer = Tokenizer::load(options.model);
  print(tokenizer.decode(parse_ids(read_input(options.in), shown(options.in))));
}

void add(CLI::App& app) {
  const auto options = std::make_shared<Options>();
  CLI::App* verb = app.add_subcommand("tokenizer", "Train a tokenizer, or use one");
  verb->require_subcommand(1);

  CLI::App* trainer = verb->add_subcommand(
      "train", "Train a SentencePiece BPE model; the same text gives the same bytes");
  trainer->add_option("--data", options->data, "UTF-8 text, JSONL or a folder of them")->required();
  trainer->add_option("--vocab-size", options->vocab_size, "Number of pieces, 261 to 262144")
      ->required();
  trainer->add_option("--out", options->out, "The model file to write")->required();
  trainer->callback([options] { train(*options); });

  const auto add_user = [&](const char* name, const char* help, const char* input,
                            void (*work)(const Options&)) {
    CLI::App* user = verb->add_subcommand(name, help);
    user->add_option("--model", options->model, "A tokenizer.model")->required();
    user->add_option("--in", options->in, input)->default_str("-");
    user->callback([options, work] { work(*options); });
  };
  add_user("encode", "Print the ids of a text in one line, without BOS and EOS",
           "The text; - is standard input", encode);
  add_user("decode", "Print the text of ids", "The ids, between spaces; - is standard input",
           decode);
}

const RegisterVerb registered(100, add);

}  // namespace
}  // namespace rankone::apps
