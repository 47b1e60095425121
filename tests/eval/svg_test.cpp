#include "eval/svg.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <regex>

#include "core/files.hpp"
#include "core/status.hpp"
#include "eval/curves.hpp"
#include "tests/support/scratch.hpp"

namespace rankone::eval {
namespace {

std::size_t count_of(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++count;
  }
  return count;
}

// Every element is closed: enough of XML for what is written here.
void expect_well_formed(const std::string& svg) {
  EXPECT_EQ(svg.rfind("<svg xmlns=", 0), 0U);
  EXPECT_EQ(svg.substr(svg.size() - 7), "</svg>\n");
  EXPECT_EQ(count_of(svg, "<text"), count_of(svg, "</text>"));
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_EQ(svg.find("inf"), std::string::npos);
  const std::regex alone("<(line|rect|circle|polyline)[^<>]*[^/]>");
  EXPECT_FALSE(std::regex_search(svg, alone));
}

TEST(Svg, TicksAreRoundNumbersInsideTheRange) {
  EXPECT_EQ(nice_ticks(0, 10, 5), (std::vector<double>{0, 2, 4, 6, 8, 10}));
  EXPECT_EQ(nice_ticks(0.12, 0.49, 4), (std::vector<double>{0.2, 0.30000000000000004, 0.4}));
  EXPECT_EQ(nice_ticks(-3, 3, 6), (std::vector<double>{-3, -2, -1, 0, 1, 2, 3}));
  EXPECT_EQ(nice_ticks(0, 4.2e6, 5), (std::vector<double>{0, 1e6, 2e6, 3e6, 4e6}));
}

TEST(Svg, DrawsCurvesLegendAndLevels) {
  Chart chart;
  chart.title = "a < b & \"c\"";
  chart.curves = {{"first", {{0, 1}, {1, 2}, {2, 0}}}, {"second", {{0, 2}, {2, 1}}, true}};
  chart.levels = {{"bigram", 1.5}};
  const std::string svg = render_svg(chart);
  expect_well_formed(svg);
  EXPECT_NE(svg.find("a &lt; b &amp; &quot;c&quot;"), std::string::npos);
  EXPECT_EQ(count_of(svg, "<polyline"), 2U);
  EXPECT_NE(svg.find(">first<"), std::string::npos);
  EXPECT_NE(svg.find(">bigram<"), std::string::npos);
  EXPECT_EQ(render_svg(chart), svg);
  EXPECT_EQ(count_of(render_svg({chart, chart}), "<polyline"), 4U);
  expect_well_formed(render_svg({chart, chart}));
}

TEST(Svg, PointsLieWhereTheAxesSay) {
  Chart chart;
  chart.width = 192;   // 100 wide inside
  chart.height = 200;  // 100 high
  chart.curves = {{"x", {{0, 0}, {5, 1}, {10, 1}}}};
  // 5 % of the height above and below: row = 44 + (1.05 - y) / 1.1 * 100.
  EXPECT_NE(render_svg(chart).find("68.00,139.45 118.00,48.55 168.00,48.55"), std::string::npos);
  chart.log_x = true;
  chart.curves[0].points = {{0, 9}, {1, 0}, {10, 1}, {100, 1}};  // the first can not be drawn
  EXPECT_NE(render_svg(chart).find("68.00,139.45 118.00,48.55 168.00,48.55"), std::string::npos);
}

TEST(Svg, SurvivesNothingAndNonsense) {
  const double nan = std::nan("");
  const double infinity = std::numeric_limits<double>::infinity();
  Chart chart;
  expect_well_formed(render_svg(chart));
  chart.curves = {{"none", {}}, {"one", {{3, 3}}}, {"bad", {{nan, 1}, {1, infinity}}}};
  chart.levels = {{"nowhere", nan}};
  expect_well_formed(render_svg(chart));
  EXPECT_EQ(count_of(render_svg(chart), "<circle"), 1U);
  chart.curves = {{"broken", {{0, 1}, {1, 2}, {2, nan}, {3, 1}, {4, 1}}}};
  EXPECT_EQ(count_of(render_svg(chart), "<polyline"), 2U);
  chart.log_x = true;
  expect_well_formed(render_svg(chart));
}

TEST(Curves, ReadsTheLogOfARun) {
  const test::Scratch scratch;
  const auto file = scratch / "metrics.jsonl";
  write_file(file,
             "{\"step\":1,\"tokens\":100,\"loss\":5.5,\"lr\":0.1}\n"
             "{\"step\":2,\"tokens\":200,\"loss\":4.5,\"lr\":0.1}\n"
             "{\"step\":2,\"tokens\":200,\"valid_loss\":4.75}\n"
             "{\"step\":3,\"tok");
  const RunCurves curves = read_run_curves(file);
  ASSERT_EQ(curves.training.size(), 2U);
  EXPECT_EQ(curves.training[1].x, 200);
  EXPECT_EQ(curves.training[1].y, 4.5);
  ASSERT_EQ(curves.validation.size(), 1U);
  EXPECT_EQ(curves.validation[0].y, 4.75);
  const Chart chart = loss_chart({{"kla", curves}, {"gdn", curves}}, {{"unigram", 6}});
  ASSERT_EQ(chart.curves.size(), 4U);
  EXPECT_EQ(chart.curves[3].name, "gdn, validation");
  EXPECT_EQ(chart.curves[2].color, chart.curves[3].color);
  expect_well_formed(render_svg(chart));
}

TEST(Curves, RefusesLinesThatAreNoRecords) {
  const test::Scratch scratch;
  const auto file = scratch / "metrics.jsonl";
  for (const char* line : {"[1]", "{\"step\":1}", "{\"tokens\":1}", "{\"tokens\":\"1\",\"loss\":2}",
                           "{\"tokens\":1,\"valid_loss\":null}", "nonsense"}) {
    write_file(file, "{\"tokens\":1,\"loss\":2}\n" + std::string(line) + "\n");
    try {
      read_run_curves(file);
      ADD_FAILURE() << line;
    } catch (const Error& error) {
      EXPECT_EQ(error.status(), Status::corrupt);
      EXPECT_NE(std::string_view(error.what()).find("line 2"), std::string_view::npos)
          << error.what();
    }
  }
}

TEST(Curves, ThinningTakesMeansOfNeighbours) {
  const std::vector<Point> points{{1, 2}, {2, 4}, {3, 6}, {4, 8}, {5, 10}};
  const std::vector<Point> two = thinned(points, 2);
  ASSERT_EQ(two.size(), 2U);
  EXPECT_EQ(two[0].x, 2);
  EXPECT_EQ(two[0].y, 4);
  EXPECT_EQ(two[1].y, 9);
  EXPECT_EQ(thinned(points, 5).size(), 5U);
  EXPECT_TRUE(thinned({}, 5).empty());
  EXPECT_THROW(thinned(points, 0), Error);
}

}  // namespace
}  // namespace rankone::eval
