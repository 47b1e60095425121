#include "eval/statistics.hpp"

#include <cmath>
#include <limits>

namespace rankone::eval {

Mean mean_of(std::span<const Unit> units) {
  double total = 0;
  double size = 0;
  std::int64_t count = 0;
  for (const Unit& unit : units) {
    if (unit.size <= 0) continue;
    total += unit.total;
    size += unit.size;
    ++count;
  }
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  if (count == 0) return {kNone, kNone};
  Mean result{total / size, kNone};
  if (count < 2) return result;
  double squares = 0;
  for (const Unit& unit : units) {
    if (unit.size <= 0) continue;
    const double residual = unit.total - result.value * unit.size;
    squares += residual * residual;
  }
  const auto n = static_cast<double>(count);
  result.standard_error = std::sqrt(squares * n / (n - 1)) / size;
  return result;
}

}  // namespace rankone::eval
