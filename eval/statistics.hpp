#pragma once

// Means over targets with a standard error.

#include <cstdint>
#include <span>

namespace rankone::eval {

// What one unit (a document, or a block of targets) contributes: a sum of nats, and the size it is
// divided by (targets or bytes).
struct Unit {
  double total = 0;
  double size = 0;
};

struct Mean {
  double value = 0;           // sum of the totals over the sum of the sizes
  double standard_error = 0;  // NaN where there are fewer than two units
};

// The ratio of sums with its standard error by linearisation (Cochran, Sampling Techniques, 1977,
// section 6.4): units may differ in size, and targets within a unit may depend on each other.
//   se^2 = n / (n - 1) * sum_i (total_i - mean size_i)^2 / (sum_i size_i)^2
// Units of size zero do not count.
Mean mean_of(std::span<const Unit> units);

}  // namespace rankone::eval
