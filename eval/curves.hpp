#pragma once

// The curves of training runs, from their metrics.jsonl.

#include <filesystem>
#include <string>
#include <vector>

#include "eval/svg.hpp"

namespace rankone::eval {

struct RunCurves {
  std::vector<Point> training;    // tokens read, nats per target
  std::vector<Point> validation;  // the same on held-out text; may be empty
};

// Reads a metrics.jsonl. A last line without its end (the run was killed while it wrote) is left
// out; any other line that is no record fails with Status::corrupt and its number.
RunCurves read_run_curves(const std::filesystem::path& file);

// At most `most` points: each is the mean of as many neighbours.
std::vector<Point> thinned(const std::vector<Point>& points, std::size_t most);

struct NamedRun {
  std::string name;
  RunCurves curves;
};
// Training loss (thinned) and validation loss of several runs over the tokens read.
Chart loss_chart(const std::vector<NamedRun>& runs, const std::vector<Level>& levels);

}  // namespace rankone::eval
