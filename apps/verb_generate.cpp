// rankone generate: text from a model, printed as it comes.

#include <cstdio>
#include <memory>

#include "apps/verb.hpp"
#include "core/status.hpp"
#include "core/text.hpp"
#include "data/tokenizer.hpp"
#include "model/generate.hpp"

namespace rankone::apps {
namespace {

namespace fs = std::filesystem;

struct Options {
  std::string model;
  std::string prompt;
  std::int64_t tokens = 100;
  model::SamplerOptions sampler;
  std::string dtype = "f32";
};

// Turns tokens into text as they come: only whole UTF-8 characters are printed, and a character
// whose bytes are pieces of their own is held back until it is complete.
class TextStream {
 public:
  TextStream(const data::Tokenizer& tokenizer, std::vector<std::int32_t> start)
      : tokenizer_(tokenizer), window_(std::move(start)), shown_(tokenizer.decode(window_)) {}

  void push(std::int32_t token) {
    window_.push_back(token);
    const std::string text = tokenizer_.decode(window_);
    if (incomplete(text) && ++held_ < 4) return;
    print(text);
    // The tokenizer drops the space before the first piece, so one token stays as the context.
    if (window_.size() > 64 && held_ == 0) {
      window_.erase(window_.begin(), window_.end() - 1);
      shown_ = tokenizer_.decode(window_);
    }
  }
  void finish() { print(tokenizer_.decode(window_)); }

 private:
  // Ends in part of a character, or in what the tokenizer puts in the place of one.
  static bool incomplete(const std::string& text) {
    return utf8_error(text) != text.size() || text.ends_with("\xEF\xBF\xBD");
  }
  void print(const std::string& text) {
    held_ = 0;
    if (text.size() > shown_.size()) {
      std::fwrite(text.data() + shown_.size(), 1, text.size() - shown_.size(), stdout);
      std::fflush(stdout);
    }
    shown_ = text;
  }

  const data::Tokenizer& tokenizer_;
  std::vector<std::int32_t> window_;
  std::string shown_;
  int held_ = 0;
};

void run(const Options& options) {
  require(utf8_error(options.prompt) == options.prompt.size(),
          "[generate] the prompt is not valid UTF-8");
  const fs::path directory(options.model);
  const data::Tokenizer tokenizer = data::Tokenizer::load(directory / "tokenizer.model");
  const model::Model model = model::Model::load(directory, *parse_dtype(options.dtype));
  require(tokenizer.size() <= model.config().vocab_size,
          "[generate] the tokenizer has {} pieces (the model's vocabulary is {})", tokenizer.size(),
          model.config().vocab_size);
  std::vector<std::int32_t> prompt{tokenizer.bos()};
  for (const std::int32_t id : tokenizer.encode(options.prompt)) prompt.push_back(id);

  Context context;
  model::Generator generator(model, context);
  model::Sampler sampler(options.sampler);
  std::fwrite(options.prompt.data(), 1, options.prompt.size(), stdout);
  std::fflush(stdout);
  TextStream stream(tokenizer, prompt);
  const std::int64_t eos = model.config().eos_token_id.value_or(tokenizer.eos());
  const auto take = [&](std::int32_t token) {
    stream.push(token);
    return true;
  };
  model::generate(generator, prompt, options.tokens, sampler, eos, take, tokenizer.size());
  stream.finish();
  std::printf("\n");
}

const RegisterVerb kGenerate(60, [](CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* verb = app.add_subcommand("generate", "continue a text from the recurrent state");
  verb->add_option("--model", options->model, "a model directory with its tokenizer")->required();
  verb->add_option("--prompt", options->prompt, "the text to continue")->required();
  verb->add_option("--tokens", options->tokens, "at most so many (default 100)")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 40));
  verb->add_option("--temperature", options->sampler.temperature,
                   "0: always the most probable token (default 1)");
  verb->add_option("--top-k", options->sampler.top_k, "only the K most probable (default 0: all)");
  verb->add_option("--top-p", options->sampler.top_p,
                   "only the most probable ones of together P (default 1)");
  verb->add_option("--seed", options->sampler.seed, "of the draws (default 0)");
  verb->add_option("--dtype", options->dtype, "storage of the weights (default f32)")
      ->check(CLI::IsMember({"f32", "bf16"}));
  verb->callback([options] { run(*options); });
});

}  // namespace
}  // namespace rankone::apps
