#pragma once

// Line charts as SVG text, for reports: no more than the curves of a few runs need.

#include <string>
#include <vector>

namespace rankone::eval {

struct Point {
  double x = 0;
  double y = 0;
};

struct Curve {
  std::string name;
  std::vector<Point> points;  // in order of x; one that is not finite breaks the line
  bool dashed = false;
  int color = -1;  // of the palette (taken modulo its size); -1: the next one
};

// A horizontal line across the whole chart, named at its right end.
struct Level {
  std::string name;
  double y = 0;
};

struct Chart {
  std::string title;
  std::string x_label;
  std::string y_label;
  bool log_x = false;  // base 10; points with x <= 0 are left out
  std::vector<Curve> curves;
  std::vector<Level> levels;
  int width = 760;  // pixels
  int height = 440;
};

// A whole SVG document. The same chart gives the same bytes. Text is escaped. A chart without a
// finite point shows empty axes.
std::string render_svg(const Chart& chart);
// Charts one below the other.
std::string render_svg(const std::vector<Chart>& charts);

// Tick positions at 1, 2 or 5 times a power of ten that cover [low, high] with about `wanted`
// steps; low < high.
std::vector<double> nice_ticks(double low, double high, int wanted);

}  // namespace rankone::eval
