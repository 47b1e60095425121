// rankone mixers: the family as a table of the four axes.

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <vector>

#include "apps/verb.hpp"
#include "recurrence/presets.hpp"

namespace rankone::apps {
namespace {

using recurrence::choice_name;
using Row = std::vector<std::string>;

// What a layer has beside the axes and a plain gated or ungated block, in words.
std::string extras(const recurrence::MixerPreset& preset) {
  std::string text;
  const auto add = [&](bool has, std::string_view what) {
    if (has) text.append(text.empty() ? "" : ", ").append(what);
  };
  if (preset.writes_per_token > 1) {
    add(true, fmt::format("{} writes per token", preset.writes_per_token));
  }
  add(preset.read_undecayed, "undecayed read");
  add(preset.query_correction, "query correction");
  add(preset.feature_map != "none", "feature map");
  add(preset.rope_theta > 0.0, "rope");
  add(preset.d_skip != "none", "d_skip");
  return text;
}

std::string key_norm(const recurrence::MixerPreset& preset) {
  if (preset.q_norm == preset.k_norm) return std::string(preset.q_norm);
  return fmt::format("q {}, k {}", preset.q_norm, preset.k_norm);
}

void print_table(const std::vector<Row>& rows) {
  std::vector<std::size_t> widths(rows.front().size(), 0);
  for (const Row& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (const Row& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) line += fmt::format("{:<{}}  ", row[i], widths[i]);
    line.erase(line.find_last_not_of(' ') + 1);
    std::printf("%s\n", line.c_str());
  }
}

void run() {
  std::vector<Row> rows = {{"mixer", "decay", "gain", "preconditioner", "solve", "qk_norm",
                            "short_conv", "output_gate", "beside", "source"}};
  for (const recurrence::MixerPreset& preset : recurrence::presets()) {
    const recurrence::MixerAxes& axes = preset.axes;
    rows.push_back({std::string(preset.name), std::string(choice_name(axes.decay)),
                    std::string(choice_name(axes.gain)),
                    std::string(choice_name(axes.preconditioner)),
                    std::string(choice_name(axes.solve)), key_norm(preset),
                    preset.conv_size > 0 ? std::to_string(preset.conv_size) : "none",
                    std::string(preset.output_gate), extras(preset), std::string(preset.source)});
  }
  print_table(rows);
}

const RegisterVerb kMixers(10, [](CLI::App& app) {
  app.add_subcommand("mixers", "the family as a table of the four axes")->callback(run);
});

}  // namespace
}  // namespace rankone::apps
