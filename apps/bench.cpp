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

std::vector<Timing> measure_in_turn(const std::vector<std::function<void()>>& works, int least,
                                    double seconds) {
  using Clock = std::chrono::steady_clock;
  const auto since = [](Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  for (const auto& work : works) work();
  std::vector<std::vector<double>> times(works.size());
  const auto start = Clock::now();
  for (int turn = 0; turn < least || since(start) < seconds; ++turn) {
    for (std::size_t i = 0; i < works.size(); ++i) {
      const auto begin = Clock::now();
      works[i]();
      times[i].push_back(since(begin) * 1e6);
    }
  }
  std::vector<Timing> result;
  for (std::vector<double>& sorted : times) {
    std::sort(sorted.begin(), sorted.end());
    const auto at = [&](double share) {
      return sorted[static_cast<std::size_t>(share * static_cast<double>(sorted.size() - 1))];
    };
    result.push_back({at(0.5), at(0.2), at(0.8), static_cast<int>(sorted.size())});
  }
  return result;
}

Timing measure(const std::function<void()>& work, int least, double seconds) {
  return measure_in_turn({work}, least, seconds).front();
}

void write_rows(const std::string& file, const std::vector<BenchRow>& rows) {
  if (!file.empty()) write_file(file, BenchRow(rows).dump(2) + "\n");
}

void add_timing(BenchRow& row, const Timing& timing) {
  row["median_us"] = timing.median_us;
  row["low_us"] = timing.low_us;
  row["high_us"] = timing.high_us;
  row["runs"] = timing.runs;
}

void add_peaks(BenchRow& row, const Peaks& peaks) {
  row["peak_gflops"] = peaks.gflops;
  if (peaks.amx_gflops > 0) {
    row["peak_amx_gflops"] = peaks.amx_gflops;
    row["peak_amx_l1_gflops"] = peaks.amx_l1_gflops;
  }
  const auto add = [&](const std::string& where, const Bandwidth& bandwidth) {
    row["peak_" + where + "_gb_per_s"] = bandwidth.read_gb_per_s;
    row["peak_" + where + "_update_gb_per_s"] = bandwidth.update_gb_per_s;
  };
  add("l1", peaks.l1);
  add("l2", peaks.l2);
  add("memory", peaks.memory);
  row["peak_threads"] = peaks.threads;
}

std::string describe(const Peaks& peaks) {
  const std::string amx = peaks.amx_gflops > 0 ? fmt::format(", {:.0f} on AMX ({:.0f} from L1)",
                                                             peaks.amx_gflops, peaks.amx_l1_gflops)
                                               : "";
  return fmt::format(
      "this machine, {} thread{}: {:.0f} GFLOP/s float32{}; GB/s read and updated in place: "
      "{:.0f} and {:.0f} in L1, {:.0f} and {:.0f} in L2, {:.1f} and {:.1f} in memory",
      peaks.threads, peaks.threads == 1 ? "" : "s", peaks.gflops, amx, peaks.l1.read_gb_per_s,
      peaks.l1.update_gb_per_s, peaks.l2.read_gb_per_s, peaks.l2.update_gb_per_s,
      peaks.memory.read_gb_per_s, peaks.memory.update_gb_per_s);
}

Roof roof_over(ThreadPool& threads, const Peaks& peaks, double held_bytes, Traffic traffic) {
  const bool cached = held_bytes < static_cast<double>(peaks.memory_bytes);
  const Bandwidth bandwidth =
      cached ? measure_bandwidth(threads, static_cast<std::int64_t>(held_bytes)) : peaks.memory;
  const bool read = traffic == Traffic::read;
  Roof roof{.gflops = peaks.gflops,
            .gb_per_s = read ? bandwidth.read_gb_per_s : bandwidth.update_gb_per_s,
            .traffic = {}};
  const double mebibytes = std::min(held_bytes, static_cast<double>(peaks.memory_bytes)) / 1048576;
  roof.traffic = fmt::format("{} {:.{}f} MiB", read ? "reading" : "updating", mebibytes,
                             mebibytes < 10 ? 2 : 0);
  return roof;
}

std::string add_rates(BenchRow& row, const Timing& timing, const Work& work, const Roof& roof) {
  const double gflops = work.operations / timing.median_us * 1e-3;
  const double gb_per_s = work.bytes / timing.median_us * 1e-3;
  const double compute = gflops / roof.gflops;
  const double traffic = roof.gb_per_s > 0 ? gb_per_s / roof.gb_per_s : 0.0;
  const bool computes = compute > traffic;
  const double limit = computes ? roof.gflops : roof.gb_per_s;
  if (work.operations > 0) row["gflops"] = gflops;
  if (work.bytes > 0) row["gb_per_s"] = gb_per_s;
  row["limit"] = computes ? roof.compute : roof.traffic;
  row[computes ? "limit_gflops" : "limit_gb_per_s"] = limit;
  row["fraction_of_limit"] = std::max(compute, traffic);
  return (work.operations > 0 ? fmt::format("{:.1f} GFLOP/s, ", gflops) : std::string()) +
         (work.bytes > 0 ? fmt::format("{:.1f} GB/s, ", gb_per_s) : std::string()) +
         fmt::format("{:.0f} % of the {:.0f} {} of {}", 100 * std::max(compute, traffic), limit,
                     computes ? "GFLOP/s" : "GB/s", computes ? roof.compute : roof.traffic);
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
