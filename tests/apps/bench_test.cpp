// rankone bench, as a user calls it.

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "support/paths.hpp"

namespace rankone::test {
namespace {

struct Outcome {
  int status = -1;
  std::string text;  // both streams
};

Outcome run_command(const std::string& command) {
  Outcome outcome;
  FILE* pipe = popen((command + " 2>&1").c_str(), "r");
  if (pipe == nullptr) return outcome;
  std::array<char, 4096> buffer;
  while (const std::size_t got = std::fread(buffer.data(), 1, buffer.size(), pipe)) {
    outcome.text.append(buffer.data(), got);
  }
  const int status = pclose(pipe);
  outcome.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return outcome;
}

Outcome run(const std::string& arguments) {
  return run_command(binary().string() + " " + arguments);
}

nlohmann::json rows_of(const std::string& arguments) {
  const std::string file = testing::TempDir() + "/bench_rows.json";
  const Outcome outcome = run("bench " + arguments + " --json " + file);
  EXPECT_EQ(outcome.status, 0) << outcome.text;
  std::ifstream in(file);
  return nlohmann::json::parse(in, nullptr, false);
}

// What a row of every benchmark says of its time and of the machine.
void expect_figures(const nlohmann::json& row) {
  EXPECT_GT(row.at("low_us"), 0.0);
  EXPECT_GE(row.at("median_us"), row.at("low_us"));
  EXPECT_GE(row.at("high_us"), row.at("median_us"));
  EXPECT_GE(row.at("runs"), 5);
  EXPECT_GT(row.at("gflops"), 0.0);
  EXPECT_FALSE(row.at("limit").get<std::string>().empty());
  EXPECT_GT(row.at("fraction_of_limit"), 0.0);
  EXPECT_GT(row.at("peak_gflops"), 0.0);
  for (const std::string where : {"l1", "l2", "memory"}) {
    EXPECT_GT(row.at("peak_" + where + "_gb_per_s"), 0.0);
    EXPECT_GT(row.at("peak_" + where + "_update_gb_per_s"), 0.0);
  }
}

void expect_row(const nlohmann::json& row, const std::string& direction, double bound) {
  EXPECT_EQ(row.at("direction"), direction);
  EXPECT_EQ(row.at("device"), "cpu");
  EXPECT_EQ(row.at("b"), 1);
  EXPECT_EQ(row.at("t"), 70);
  EXPECT_EQ(row.at("h"), 3);
  EXPECT_EQ(row.at("dk"), 16);
  EXPECT_EQ(row.at("dv"), 24);
  EXPECT_EQ(row.at("threads"), 1);
  expect_figures(row);
  EXPECT_LT(row.at("relative_error"), bound);
  EXPECT_EQ(row.at("error_heads"), 2);
  EXPECT_FALSE(row.at("kernel").get<std::string>().empty());
  EXPECT_FALSE(row.at("gates").get<std::string>().empty());
}

TEST(Bench, RecurrenceWritesItsRows) {
  const auto rows = rows_of("recurrence --mixer pkda --shape 1x70x3x16x24 --threads 1");
  ASSERT_EQ(rows.size(), 2U);
  expect_row(rows[0], "forward", 2e-6);
  expect_row(rows[1], "vjp", 2e-6);
  const double tokens = 70.0 * 3.0;
  EXPECT_NEAR(rows[0].at("ns_per_token_head").get<double>(),
              rows[0].at("median_us").get<double>() * 1e3 / tokens, 1e-6);
}

TEST(Bench, RecurrenceBesideAnother) {
  const auto rows = rows_of(
      "recurrence --mixer pgdn --beside gdn --direction forward --shape 1x70x3x16x24 --threads 1");
  ASSERT_EQ(rows.size(), 1U);
  expect_row(rows[0], "forward", 2e-6);
  EXPECT_EQ(rows[0].at("beside"), "gdn");
  EXPECT_NEAR(rows[0].at("over_beside").get<double>(),
              rows[0].at("median_us").get<double>() / rows[0].at("beside_us").get<double>(), 1e-6);
}

TEST(Bench, DecodeWritesItsRow) {
  const auto rows = rows_of("decode --mixer kla --shape 1x70x3x16x24 --threads 1");
  ASSERT_EQ(rows.size(), 1U);
  expect_row(rows[0], "step", 2e-6);
}

TEST(Bench, GemmWritesItsRows) {
  for (const std::string dtype : {"f32", "bf16"}) {
    const auto rows = rows_of("gemm --shape 3x40x300 --threads 1 --dtype " + dtype);
    ASSERT_EQ(rows.size(), 3U);
    for (const auto& row : rows) {
      expect_figures(row);
      EXPECT_GT(row.at("gb_per_s"), 0.0);
      EXPECT_EQ(row.at("dtype"), dtype);
      EXPECT_LT(row.at("relative_error"), 1e-6);
    }
  }
}

TEST(Bench, TrainWritesItsRow) {
  const auto rows = rows_of("train --config " + (source_dir() / "configs/kla-tiny.json").string() +
                            " --set model.num_hidden_layers=1 --shape 1x32 --threads 1");
  ASSERT_EQ(rows.size(), 1U);
  expect_figures(rows[0]);
  EXPECT_GT(rows[0].at("tokens_per_s"), 0.0);
}

TEST(Bench, Bf16CountsItsRounding) {
  const auto rows = rows_of("recurrence --mixer gdn --shape 1x70x3x16x24 --threads 1 --dtype bf16");
  ASSERT_EQ(rows.size(), 2U);
  expect_row(rows[0], "forward", 1e-2);
  EXPECT_GT(rows[0].at("relative_error"), 1e-4);
}

// The table of the figures to reach: one row of it, and what it says where there is no program.
TEST(Bench, TableWritesItsResults) {
  const std::string table = (source_dir() / "bench/cpu/table.py").string();
  if (run_command("python3 --version").status != 0) GTEST_SKIP() << "no python3";
  const std::string file = testing::TempDir() + "/bench_table.json";
  std::remove(file.c_str());
  const Outcome outcome = run_command("python3 " + table + " --rankone " + binary().string() +
                                      " --rows decode bf16-512 --out " + file);
  ASSERT_EQ(outcome.status, 0) << outcome.text;
  EXPECT_NE(outcome.text.find("| decode T=1, f32 state |"), std::string::npos) << outcome.text;
  std::ifstream in(file);
  const auto results = nlohmann::json::parse(in, nullptr, false);
  ASSERT_EQ(results.at("rows").size(), 2U);
  EXPECT_EQ(results.at("rows")[0].at("name"), "decode");
  EXPECT_GT(results.at("rows")[0].at("value"), 0.0);
  EXPECT_FALSE(results.at("cpu").at("model").get<std::string>().empty());
  EXPECT_FALSE(results.at("compiler").get<std::string>().empty());
  EXPECT_GE(results.at("measurements").size(), 1U);
  EXPECT_EQ(run_command("python3 " + table + " --rankone /no/such").status, 2);
  EXPECT_EQ(run_command("python3 " + table + " --no-such-option").status, 2);
  const Outcome missing = run_command("python3 " + table + " --show /no/such");
  EXPECT_EQ(missing.status, 2);
  EXPECT_EQ(std::count(missing.text.begin(), missing.text.end(), '\n'), 1) << missing.text;
}

// -S: a python without torch, whatever is installed.
TEST(Bench, GpuScriptsSayThatTorchIsMissing) {
  if (run_command("python3 --version").status != 0) GTEST_SKIP() << "no python3";
  for (const std::string name : {"compare.py", "repeat.py", "offsets.py"}) {
    const std::string script = "python3 -S -B " + (source_dir() / "bench/gpu" / name).string();
    const Outcome outcome = run_command(script + " --library none.so");
    EXPECT_EQ(outcome.status, 2) << outcome.text;
    EXPECT_EQ(outcome.text.find(name + ": this python has no torch"), 0U) << outcome.text;
    EXPECT_EQ(std::count(outcome.text.begin(), outcome.text.end(), '\n'), 1) << outcome.text;
    EXPECT_EQ(run_command(script + " --help").status, 0);
  }
}

TEST(Bench, AnInstructionSetThatIsNoneIsRefused) {
  const std::string verb = binary().string() + " bench decode --mixer gdn --shape 1x1x1x16x16";
  const Outcome outcome = run_command("RANKONE_ISA=avx3 " + verb);
  EXPECT_EQ(outcome.status, 2) << outcome.text;
  EXPECT_EQ(outcome.text,
            "rankone: [isa] RANKONE_ISA is 'avx3' (baseline, avx2, avx512 or amx-emulated)\n");
  EXPECT_EQ(run_command("RANKONE_ISA= " + verb).status, 0);
}

TEST(Bench, BadUsageIsOneLineAndStatus2) {
  const std::string shape = " --shape 1x64x1x16x16";
  for (const std::string& arguments :
       {std::string("recurrence --mixer gdn --shape 1x64x1x16"),
        std::string("recurrence --mixer gdn --shape 1x64x1x16x0"),
        std::string("recurrence --mixer gdn --shape 1x64x1x16x16x16"),
        std::string("recurrence --mixer gdn --shape 1x64x1x300x16"),
        std::string("recurrence --mixer gdn --shape -1x64x1x16x16"),
        "recurrence --mixer nosuch" + shape,
        "recurrence --mixer gdn --device cuda" + shape,
        "recurrence --mixer gdn --device tpu" + shape,
        "recurrence --mixer gdn --dtype f16" + shape,
        "decode --mixer gdn --threads -1" + shape,
        std::string("decode --mixer gdn"),
        std::string("gemm --shape 3x40"),
        std::string("gemm --shape 3x40x8 --dtype f64"),
        std::string("train --shape 1x8"),
        std::string("train --config nosuch.json --shape 1x8"),
        "recurrence --mixer gdn --direction vjp --state-dtype bf16" + shape,
        "recurrence --mixer gdn --direction vjp --state yes" + shape,
        "recurrence --mixer gdn --beside pgdn" + shape,
        "recurrence --mixer gdn --direction forward --beside nosuch" + shape,
        "recurrence --mixer gdn --device cuda --precision f32" + shape,
        "decode --mixer gdn --device cuda --busy 1" + shape,
        "nosuch" + shape}) {
    const Outcome outcome = run("bench " + arguments);
    EXPECT_EQ(outcome.status, 2) << arguments;
    EXPECT_EQ(std::count(outcome.text.begin(), outcome.text.end(), '\n'), 1) << outcome.text;
  }
}

}  // namespace
}  // namespace rankone::test
