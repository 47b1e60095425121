#include "eval/curves.hpp"

#include <algorithm>
#include <string_view>

#include "core/files.hpp"
#include "core/json.hpp"
#include "core/status.hpp"

namespace rankone::eval {
namespace {

constexpr std::size_t kLargestFile = std::size_t{1} << 30;
constexpr std::size_t kMostPoints = 400;  // of a curve: more than a chart has room for

double number(const Json& line, const char* key, const std::string& where) {
  const auto found = line.find(key);
  if (found == line.end() || !found->is_number()) {
    fail(Status::corrupt, "[curves] {}: no number {} in the record", where, key);
  }
  return found->get<double>();
}

}  // namespace

RunCurves read_run_curves(const std::filesystem::path& file) {
  const std::string text = read_file(file, kLargestFile);
  RunCurves curves;
  std::int64_t line_number = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find('\n', at);
    if (end == std::string::npos) break;
    const std::string where = fmt::format("{} line {}", file.string(), ++line_number);
    const Json line = parse_json(std::string_view(text).substr(at, end - at), where);
    if (!line.is_object()) fail(Status::corrupt, "[curves] {} is not an object", where);
    const double tokens = number(line, "tokens", where);
    if (line.contains("valid_loss")) {
      curves.validation.push_back({tokens, number(line, "valid_loss", where)});
    } else {
      curves.training.push_back({tokens, number(line, "loss", where)});
    }
    at = end + 1;
  }
  return curves;
}

std::vector<Point> thinned(const std::vector<Point>& points, std::size_t most) {
  require(most >= 1, "[curves] a curve of no points");
  const std::size_t group = (points.size() + most - 1) / most;
  std::vector<Point> result;
  for (std::size_t at = 0; at < points.size(); at += group) {
    const std::size_t end = std::min(at + group, points.size());
    Point mean;
    for (std::size_t i = at; i < end; ++i) {
      mean.x += points[i].x;
      mean.y += points[i].y;
    }
    const auto count = static_cast<double>(end - at);
    result.push_back({mean.x / count, mean.y / count});
  }
  return result;
}

Chart loss_chart(const std::vector<NamedRun>& runs, const std::vector<Level>& levels) {
  Chart chart;
  chart.title = "Loss";
  chart.x_label = "tokens";
  chart.y_label = "nats per target";
  chart.levels = levels;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const auto& [name, curves] = runs[i];
    const auto color = static_cast<int>(i);
    if (!curves.training.empty()) {
      chart.curves.push_back(
          {name + ", training", thinned(curves.training, kMostPoints), false, color});
    }
    if (!curves.validation.empty()) {
      chart.curves.push_back({name + ", validation", curves.validation, true, color});
    }
  }
  return chart;
}

}  // namespace rankone::eval
