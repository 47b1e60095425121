#pragma once

// What the benchmarks share: the `bench` command that several files add to, timing, and the rows of
// figures. A file adds its own subcommand with
//
//     const RegisterVerb kMine(50, [](CLI::App& app) {
//       CLI::App* mine = bench_command(app).add_subcommand("mine", "...");
//       ...
//     });

#include <CLI/CLI.hpp>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/peaks.hpp"

namespace rankone::apps {

// The subcommand `bench`, made by the first that asks for it.
CLI::App& bench_command(CLI::App& app);

struct Timing {
  double median_us = 0;
  double low_us = 0;  // 20 % and 80 % of the runs were faster
  double high_us = 0;
  int runs = 0;
};
// Calls `work` once unmeasured, then at least `least` times and until `seconds` are spent.
Timing measure(const std::function<void()>& work, int least = 5, double seconds = 1.0);

using BenchRow = nlohmann::ordered_json;
// Writes an array of rows; nothing for an empty file name.
void write_rows(const std::string& file, const std::vector<BenchRow>& rows);
// The fields every row ends with.
void add_peaks(BenchRow& row, const Peaks& peaks);
std::string describe(const Peaks& peaks);

// "AxBx..." as `count` numbers of at least 1; fails with invalid_argument, naming the form.
std::vector<std::int64_t> parse_shape(const std::string& text, std::size_t count,
                                      const std::string& form);

// Fails where this build can not run on `device` (cpu, cuda).
void require_device(const std::string& device);

}  // namespace rankone::apps
