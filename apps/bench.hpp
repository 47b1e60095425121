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

// The same for several that are to be compared: they take turns, so that whatever the machine does
// meanwhile happens to all. Until `seconds` are spent on all together.
std::vector<Timing> measure_in_turn(const std::vector<std::function<void()>>& works, int least = 5,
                                    double seconds = 1.0);

using BenchRow = nlohmann::ordered_json;
// Writes an array of rows; nothing for an empty file name.
void write_rows(const std::string& file, const std::vector<BenchRow>& rows);
// Median, spread and runs.
void add_timing(BenchRow& row, const Timing& timing);
// The fields every row ends with.
void add_peaks(BenchRow& row, const Peaks& peaks);
std::string describe(const Peaks& peaks);

// What the timed work does at least; 0 where it was not counted.
struct Work {
  double operations = 0;  // of float32, two for a multiply-add
  double bytes = 0;       // every tensor read or written once
};
// What the machine allows for it.
struct Roof {
  double gflops = 0;
  double gb_per_s = 0;
  std::string compute = "float32 multiply-adds";
  std::string traffic;  // the bandwidth, in words
};
// The roof over work that reads so many bytes, or reads and writes so many in place: the bandwidth
// is measured on a working set of that size, so it is that of the cache or memory the work lives
// in.
enum class Traffic { read, update };
Roof roof_over(ThreadPool& threads, const Peaks& peaks, double held_bytes, Traffic traffic);
// Adds GFLOP/s, GB/s, the limit that binds and the fraction of it that was reached; returns them
// in words.
std::string add_rates(BenchRow& row, const Timing& timing, const Work& work, const Roof& roof);

// "AxBx..." as `count` numbers of at least 1; fails with invalid_argument, naming the form.
std::vector<std::int64_t> parse_shape(const std::string& text, std::size_t count,
                                      const std::string& form);

// Fails where this build can not run on `device` (cpu, cuda).
void require_device(const std::string& device);

}  // namespace rankone::apps
