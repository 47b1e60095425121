#include "apps/bench.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>

#include "core/device.hpp"
#include "core/files.hpp"
#include "core/status.hpp"

namespace rankone::apps {

CLI::App& bench_command(CLI::App& app) {
  for (CLI::App* existing : app.get_subcommands([](CLI::App*) { return true; })) {
    if (existing->get_name() == "bench") return *existing;
  }
  CLI::App* bench = app.add_subcommand("bench", "times on this machine, with errors and peaks");
  bench->require_subcommand(1);
  return *bench;
}

Timing measure(const std::function<void()>& work, int least, double seconds) {
  using Clock = std::chrono::steady_clock;
  const auto since = [](Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  work();
  std::vector<double> times;
  const auto start = Clock::now();
  while (static_cast<int>(times.size()) < least || since(start) < seconds) {
    const auto begin = Clock::now();
    work();
    times.push_back(since(begin) * 1e6);
  }
  std::sort(times.begin(), times.end());
  const auto at = [&](double share) {
    return times[static_cast<std::size_t>(share * static_cast<double>(times.size() - 1))];
  };
  return {at(0.5), at(0.2), at(0.8), static_cast<int>(times.size())};
}

void write_rows(const std::string& file, const std::vector<BenchRow>& rows) {
  if (!file.empty()) write_file(file, BenchRow(rows).dump(2) + "\n");
}

void add_peaks(BenchRow& row, const Peaks& peaks) {
  row["peak_gflops"] = peaks.gflops;
  row["peak_memory_gb_per_s"] = peaks.gb_per_s;
  row["peak_threads"] = peaks.threads;
}

std::string describe(const Peaks& peaks) {
  return fmt::format("this machine, {} thread{}: {:.0f} GFLOP/s float32, {:.1f} GB/s from memory",
                     peaks.threads, peaks.threads == 1 ? "" : "s", peaks.gflops, peaks.gb_per_s);
}

std::vector<std::int64_t> parse_shape(const std::string& text, std::size_t count,
                                      const std::string& form) {
  std::vector<std::int64_t> sizes;
  const char* at = text.data();
  const char* const end = text.data() + text.size();
  while (true) {
    std::int64_t size = 0;
    const auto [next, error] = std::from_chars(at, end, size);
    if (error != std::errc{} || size < 1) break;
    sizes.push_back(size);
    if (next == end) {
      if (sizes.size() == count) return sizes;
      break;
    }
    if (*next != 'x') break;
    at = next + 1;
  }
  fail(Status::invalid_argument, "[bench] --shape '{}' is no shape (it is {}, each at least 1)",
       text, form);
}

void require_device(const std::string& device) {
  if (device == "cpu") return;
  if (device == "cuda") {
    const std::string problem = gpu_problem();
    if (problem.empty()) return;
    fail(Status::unsupported, "[bench] --device cuda: {}", problem);
  }
  fail(Status::invalid_argument, "[bench] --device '{}' is unknown (cpu or cuda)", device);
}

}  // namespace rankone::apps
