// rankone bench recurrence and decode, as a user calls them.

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

Outcome run(const std::string& arguments) {
  Outcome outcome;
  FILE* pipe = popen((binary().string() + " " + arguments + " 2>&1").c_str(), "r");
  if (pipe == nullptr) return outcome;
  std::array<char, 4096> buffer;
  while (const std::size_t got = std::fread(buffer.data(), 1, buffer.size(), pipe)) {
    outcome.text.append(buffer.data(), got);
  }
  const int status = pclose(pipe);
  outcome.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return outcome;
}

nlohmann::json rows_of(const std::string& arguments) {
  const std::string file = testing::TempDir() + "/bench_rows.json";
  const Outcome outcome = run("bench " + arguments + " --json " + file);
  EXPECT_EQ(outcome.status, 0) << outcome.text;
  std::ifstream in(file);
  return nlohmann::json::parse(in, nullptr, false);
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
  EXPECT_GT(row.at("median_us"), 0.0);
  EXPECT_GT(row.at("peak_gflops"), 0.0);
  EXPECT_GT(row.at("peak_memory_gb_per_s"), 0.0);
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

TEST(Bench, DecodeWritesItsRow) {
  const auto rows = rows_of("decode --mixer kla --shape 1x70x3x16x24 --threads 1");
  ASSERT_EQ(rows.size(), 1U);
  expect_row(rows[0], "step", 2e-6);
}

TEST(Bench, Bf16CountsItsRounding) {
  const auto rows = rows_of("recurrence --mixer gdn --shape 1x70x3x16x24 --threads 1 --dtype bf16");
  ASSERT_EQ(rows.size(), 2U);
  expect_row(rows[0], "forward", 1e-2);
  EXPECT_GT(rows[0].at("relative_error"), 1e-4);
}

TEST(Bench, BadUsageIsOneLineAndStatus2) {
  const std::string shape = " --shape 1x64x1x16x16";
  for (const std::string& arguments :
       {std::string("recurrence --mixer gdn --shape 1x64x1x16"),
        std::string("recurrence --mixer gdn --shape 1x64x1x16x0"),
        std::string("recurrence --mixer gdn --shape 1x64x1x16x16x16"),
        std::string("recurrence --mixer gdn --shape 1x64x1x300x16"),
        std::string("recurrence --mixer gdn --shape -1x64x1x16x16"),
        "recurrence --mixer nosuch" + shape, "recurrence --mixer gdn --device cuda" + shape,
        "recurrence --mixer gdn --device tpu" + shape, "recurrence --mixer gdn --dtype f16" + shape,
        "decode --mixer gdn --threads -1" + shape, std::string("decode --mixer gdn"),
        "nosuch" + shape}) {
    const Outcome outcome = run("bench " + arguments);
    EXPECT_EQ(outcome.status, 2) << arguments;
    EXPECT_EQ(std::count(outcome.text.begin(), outcome.text.end(), '\n'), 1) << outcome.text;
  }
}

}  // namespace
}  // namespace rankone::test
