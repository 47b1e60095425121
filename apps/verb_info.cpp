// rankone info: what a model directory holds.

#include <fmt/format.h>

#include <memory>

#include "apps/verb.hpp"
#include "core/files.hpp"
#include "model/model.hpp"

namespace rankone::apps {
namespace {

namespace fs = std::filesystem;
using model::LayerConfig;
using model::ModelConfig;
using model::ModelSummary;

constexpr std::size_t kLargestConfig = std::size_t{4} << 20;

// "1,234,567"
std::string grouped(std::int64_t value) {
  std::string digits = std::to_string(value);
  for (int at = static_cast<int>(digits.size()) - 3; at > 0; at -= 3) {
    digits.insert(static_cast<std::size_t>(at), ",");
  }
  return digits;
}

std::string sizes_of(const LayerConfig& layer) {
  if (layer.attention) {
    return fmt::format(
        "{}x{}, {} kv heads{}", layer.attention->num_heads, layer.attention->head_dim,
        layer.attention->num_kv_heads,
        layer.attention->window > 0 ? fmt::format(", window {}", layer.attention->window) : "");
  }
  return fmt::format("{}x{} keys, {}x{} values", layer.mixer->num_heads, layer.mixer->key_dim,
                     layer.mixer->output_heads(), layer.mixer->value_dim);
}

void print_layers(const ModelConfig& config, const ModelSummary& summary) {
  fmt::print("{:<9} {:<10} {:<15} {:<15} {:<9} {:<32} {:>6} {:>14}\n", "layers", "decay", "gain",
             "preconditioner", "solve", "heads", "mlp", "state bytes");
  for (std::size_t i = 0; i < config.layers.size();) {
    const LayerConfig& layer = config.layers[i];
    std::size_t end = i + 1;
    while (end < config.layers.size() && config.layers[end] == layer) ++end;
    const std::string range = end - i > 1 ? fmt::format("{}-{}", i, end - 1) : std::to_string(i);
    const model::LayerSummary& size = summary.layers[i];
    const std::string state = size.cache_bytes_per_token > 0
                                  ? grouped(size.cache_bytes_per_token) + "/token"
                                  : grouped(size.state_bytes);
    if (layer.mixer) {
      const auto& axes = layer.mixer->axes;
      fmt::print("{:<9} {:<10} {:<15} {:<15} {:<9} {:<32} {:>6} {:>14}\n", range,
                 recurrence::choice_name(axes.decay), recurrence::choice_name(axes.gain),
                 recurrence::choice_name(axes.preconditioner), recurrence::choice_name(axes.solve),
                 sizes_of(layer), layer.intermediate_size, state);
    } else {
      fmt::print("{:<9} {:<52} {:<32} {:>6} {:>14}\n", range, "softmax attention", sizes_of(layer),
                 layer.intermediate_size, state);
    }
    i = end;
  }
}

void run(const fs::path& directory) {
  const fs::path file = directory / "config.json";
  const ModelConfig config = model::parse_config(read_file(file, kLargestConfig), file.string());
  const ModelSummary summary = model::summarise(config);
  fmt::print("model type            {}\n", config.model_type);
  fmt::print("parameters            {}\n", grouped(summary.parameters));
  fmt::print("  without embeddings  {}\n",
             grouped(summary.parameters - summary.embedding_parameters));
  fmt::print("hidden size           {}\n", config.hidden_size);
  fmt::print("vocabulary            {}{}\n", grouped(config.vocab_size),
             config.tie_word_embeddings ? ", tied" : "");
  fmt::print("state of a sequence   {} bytes", grouped(summary.state_bytes));
  if (summary.cache_bytes_per_token > 0) {
    fmt::print(" and {} for each token", grouped(summary.cache_bytes_per_token));
  }
  fmt::print("\n\n");
  print_layers(config, summary);
}

const RegisterVerb kInfo(20, [](CLI::App& app) {
  auto directory = std::make_shared<std::string>();
  CLI::App* verb = app.add_subcommand("info", "parameters, state bytes and layers of a model");
  verb->add_option("DIR", *directory, "a model directory")->required();
  verb->callback([directory] { run(*directory); });
});

}  // namespace
}  // namespace rankone::apps
