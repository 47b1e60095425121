#include "eval/svg.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string_view>

namespace rankone::eval {
namespace {

// Okabe and Ito's colours, which most colour-blind readers can tell apart, the light yellow left
// out.
constexpr std::array<std::string_view, 7> kPalette = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                                      "#56b4e9", "#e69f00", "#000000"};
constexpr double kLeft = 68;
constexpr double kRight = 24;
constexpr double kTop = 44;
constexpr double kBottom = 56;
constexpr double kLegendLine = 18;
constexpr double kCharacter = 6.6;  // width of an average one at the size of the legend

std::string escape(std::string_view text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      default:
        // XML has no other control characters.
        if (static_cast<unsigned char>(c) >= 0x20) result += c;
    }
  }
  return result;
}

struct Range {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();
  void include(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
  // Something to draw even where there is no point, or only one value.
  void settle() {
    if (!(low <= high)) *this = {0, 1};
    if (low == high) {
      const double half = low == 0 ? 0.5 : std::abs(low) / 10;
      *this = {low - half, high + half};
    }
  }
};

// Draws one chart with its upper left corner at (0, top).
class Drawing {
 public:
  Drawing(const Chart& chart, double top) : chart_(chart), top_(top) {
    for (const Curve& curve : chart.curves) {
      for (const Point& point : curve.points) {
        if (!drawable(point)) continue;
        x_.include(along(point.x));
        y_.include(point.y);
      }
    }
    for (const Level& level : chart.levels) {
      if (std::isfinite(level.y)) y_.include(level.y);
    }
    x_.settle();
    y_.settle();
    const double margin = (y_.high - y_.low) * 0.05;
    y_ = {y_.low - margin, y_.high + margin};
  }

  std::string draw() {
    title();
    y_axis();
    x_axis();
    frame();
    levels();
    curves();
    legend();
    return std::move(out_);
  }

 private:
  bool drawable(const Point& point) const {
    return std::isfinite(point.x) && std::isfinite(point.y) && (!chart_.log_x || point.x > 0);
  }
  double along(double x) const { return chart_.log_x ? std::log10(x) : x; }
  double width() const { return chart_.width - kLeft - kRight; }
  double height() const { return chart_.height - kTop - kBottom; }
  double column(double along) const {
    return kLeft + (along - x_.low) / (x_.high - x_.low) * width();
  }
  double row(double y) const { return top_ + kTop + (y_.high - y) / (y_.high - y_.low) * height(); }

  template <class... Args>
  void put(fmt::format_string<Args...> format, Args&&... args) {
    out_ += fmt::format(format, std::forward<Args>(args)...);
    out_ += '\n';
  }
  void text(double x, double y, std::string_view anchor, int size, std::string_view words,
            std::string_view more = "") {
    put(R"(<text x="{:.1f}" y="{:.1f}" text-anchor="{}" font-size="{}"{}>{}</text>)", x, y, anchor,
        size, more, escape(words));
  }
  void rectangle(double x, double y, double w, double h, std::string_view style) {
    put(R"(<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" {}/>)", x, y, w, h, style);
  }
  void line(double x1, double y1, double x2, double y2, std::string_view style) {
    put(R"(<line x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}" {}/>)", x1, y1, x2, y2, style);
  }

  void title() {
    text(kLeft + width() / 2, top_ + 24, "middle", 15, chart_.title, R"( font-weight="bold")");
    text(kLeft + width() / 2, top_ + chart_.height - 14, "middle", 13, chart_.x_label);
    const double middle = top_ + kTop + height() / 2;
    text(18, middle, "middle", 13, chart_.y_label,
         fmt::format(R"svg( transform="rotate(-90 18 {:.1f})")svg", middle));
  }

  void y_axis() {
    for (const double tick : nice_ticks(y_.low, y_.high, 6)) {
      line(kLeft, row(tick), kLeft + width(), row(tick), kGrid);
      text(kLeft - 8, row(tick) + 4, "end", 12, fmt::format("{:g}", tick));
    }
  }

  void x_axis() {
    if (!chart_.log_x) {
      for (const double tick : nice_ticks(x_.low, x_.high, 7)) x_tick(tick, tick);
      return;
    }
    // Few decades have room for 2 and 5 between the powers of ten.
    const bool fine = x_.high - x_.low < 4;
    for (double power = std::floor(x_.low); power <= x_.high; power += 1) {
      for (const double digit : {1.0, 2.0, 5.0}) {
        if (digit != 1 && !fine) continue;
        const double value = digit * std::pow(10.0, power);
        const double at = std::log10(value);
        if (at >= x_.low - 1e-9 && at <= x_.high + 1e-9) x_tick(at, value);
      }
    }
  }
  void x_tick(double at, double value) {
    const double bottom = top_ + kTop + height();
    line(column(at), top_ + kTop, column(at), bottom, kGrid);
    text(column(at), bottom + 18, "middle", 12, short_number(value));
  }
  static std::string short_number(double value) {
    if (std::abs(value) >= 1e6) return fmt::format("{:g}M", value / 1e6);
    if (std::abs(value) >= 1e4) return fmt::format("{:g}K", value / 1e3);
    return fmt::format("{:g}", value);
  }

  void frame() {
    rectangle(kLeft, top_ + kTop, width(), height(), R"(fill="none" stroke="#333333")");
  }

  void levels() {
    for (const Level& level : chart_.levels) {
      if (!std::isfinite(level.y)) continue;
      line(kLeft, row(level.y), kLeft + width(), row(level.y),
           R"(stroke="#777777" stroke-width="1.2" stroke-dasharray="2 3")");
      text(kLeft + width() - 6, row(level.y) - 5, "end", 12, level.name, R"( fill="#555555")");
    }
  }

  std::string_view color(std::size_t index) const {
    const int own = chart_.curves[index].color;
    return kPalette[(own >= 0 ? static_cast<std::size_t>(own) : index) % kPalette.size()];
  }
  std::string stroke(std::size_t index) const {
    return fmt::format(R"(stroke="{}" stroke-width="1.8"{})", color(index),
                       chart_.curves[index].dashed ? R"( stroke-dasharray="6 4")" : "");
  }

  void curves() {
    for (std::size_t i = 0; i < chart_.curves.size(); ++i) {
      std::vector<Point> piece;
      for (const Point& point : chart_.curves[i].points) {
        if (drawable(point)) {
          piece.push_back(point);
        } else {
          polyline(piece, i);
          piece.clear();
        }
      }
      polyline(piece, i);
    }
  }
  void polyline(const std::vector<Point>& points, std::size_t index) {
    if (points.empty()) return;
    if (points.size() == 1) {
      put(R"(<circle cx="{:.2f}" cy="{:.2f}" r="3" fill="{}"/>)", column(along(points[0].x)),
          row(points[0].y), color(index));
      return;
    }
    std::string path;
    for (const Point& point : points) {
      path += fmt::format("{}{:.2f},{:.2f}", path.empty() ? "" : " ", column(along(point.x)),
                          row(point.y));
    }
    put(R"(<polyline points="{}" fill="none" stroke-linejoin="round" {}/>)", path, stroke(index));
  }

  // In the upper right corner, where falling curves leave room.
  void legend() {
    if (chart_.curves.empty()) return;
    std::size_t longest = 0;
    for (const Curve& curve : chart_.curves) longest = std::max(longest, curve.name.size());
    const double box_width = 46 + kCharacter * static_cast<double>(longest);
    const double box_height = kLegendLine * static_cast<double>(chart_.curves.size()) + 10;
    const double left = kLeft + width() - box_width - 10;
    const double top = top_ + kTop + 10;
    rectangle(left, top, box_width, box_height,
              R"(fill="#ffffff" fill-opacity="0.85" stroke="#cccccc")");
    for (std::size_t i = 0; i < chart_.curves.size(); ++i) {
      const double middle = top + 5 + kLegendLine * (static_cast<double>(i) + 0.5);
      line(left + 8, middle, left + 32, middle, stroke(i));
      text(left + 38, middle + 4, "start", 12, chart_.curves[i].name);
    }
  }

  static constexpr std::string_view kGrid = R"(stroke="#e4e4e4")";

  const Chart& chart_;
  double top_;
  Range x_;
  Range y_;
  std::string out_;
};

}  // namespace

std::vector<double> nice_ticks(double low, double high, int wanted) {
  const double rough = (high - low) / wanted;
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  double step = 10 * power;
  for (const double digit : {5.0, 2.0, 1.0}) {
    if (digit * power >= rough * 0.999999) step = digit * power;
  }
  std::vector<double> ticks;
  for (double n = std::ceil(low / step - 1e-9); n * step <= high + step * 1e-9; n += 1) {
    ticks.push_back(n == 0 ? 0.0 : n * step);
  }
  return ticks;
}

std::string render_svg(const Chart& chart) { return render_svg(std::vector<Chart>{chart}); }

std::string render_svg(const std::vector<Chart>& charts) {
  int width = 0;
  int height = 0;
  for (const Chart& chart : charts) {
    width = std::max(width, chart.width);
    height += chart.height;
  }
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" "
      "viewBox=\"0 0 {0} {1}\" font-family=\"Helvetica, Arial, sans-serif\">\n"
      "<rect width=\"{0}\" height=\"{1}\" fill=\"#ffffff\"/>\n",
      width, height);
  double top = 0;
  for (const Chart& chart : charts) {
    svg += Drawing(chart, top).draw();
    top += chart.height;
  }
  return svg + "</svg>\n";
}

}  // namespace rankone::eval
