#include "tests/cases/compare.hpp"

#include <cmath>
#include <cstdio>
#include <cstring>

namespace rankone::test {

Errors errors_of(const Tensor& result, const Tensor& expected) {
  Errors errors;
  const std::int64_t columns = result.rank() == 0 ? 1 : result.dim(-1);
  double squares = 0;
  double reference = 0;
  for (std::int64_t row = 0; columns > 0 && row < result.count() / columns; ++row) {
    double in_row = 0;
    for (std::int64_t i = row * columns; i < (row + 1) * columns; ++i) {
      const double x = result.data<float>()[i];
      const double y = expected.data<double>()[i];
      errors.finite = errors.finite && std::isfinite(x) && std::isfinite(y);
      in_row += (x - y) * (x - y);
      reference += y * y;
    }
    squares += in_row;
    errors.rows.push_back(std::sqrt(in_row / static_cast<double>(columns)));
  }
  const double count = std::max<double>(1.0, static_cast<double>(result.count()));
  errors.rms = std::sqrt(squares / count);
  errors.reference_rms = std::sqrt(reference / count);
  return errors;
}

double relative_error(const Tensor& result, const Tensor& expected) {
  const Errors errors = errors_of(result, expected);
  if (!errors.finite) return HUGE_VAL;
  return errors.rms / (errors.reference_rms + 1e-300);
}

Tensor by_head(const Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  const std::int64_t heads = tensor.dim(-1);
  const std::int64_t rows = heads > 0 ? tensor.count() / heads : 0;
  Tensor result = Tensor::empty({heads, rows}, tensor.dtype());
  const std::size_t size = size_of(tensor.dtype());
  for (std::int64_t i = 0; i < tensor.count(); ++i) {
    const std::int64_t to = i % heads * rows + i / heads;
    std::memcpy(static_cast<std::byte*>(result.raw()) + static_cast<std::size_t>(to) * size,
                static_cast<const std::byte*>(tensor.raw()) + static_cast<std::size_t>(i) * size,
                size);
  }
  return result;
}

testing::AssertionResult within_plain(const std::string& name, const Tensor& result,
                                      const Tensor& plain, const Tensor& expected) {
  const Errors mine = errors_of(result, expected);
  const Errors theirs = errors_of(plain, expected);
  if (!mine.finite) return testing::AssertionFailure() << name << " is not finite";
  // Half a unit in the last place of the expected values: no float32 result is promised to be
  // closer, and where the plain one is exact by luck twice its error would be nothing.
  const double rounding = 0x1p-24 * mine.reference_rms;
  const double allowed = 2 * std::max(theirs.rms, rounding);
  if (mine.rms > allowed) {
    return testing::AssertionFailure()
           << name << ": RMS error " << mine.rms << ", at most " << allowed << " (values of RMS "
           << mine.reference_rms << ")";
  }
  for (std::size_t row = 0; row < mine.rows.size(); ++row) {
    const double most = 4 * std::max({theirs.rows[row], theirs.rms, rounding});
    if (mine.rows[row] > most) {
      return testing::AssertionFailure() << name << ": RMS error " << mine.rows[row] << " in row "
                                         << row << ", at most " << most;
    }
  }
  return testing::AssertionSuccess();
}

void print_repeat() {
  const testing::TestInfo* test = testing::UnitTest::GetInstance()->current_test_info();
  if (test == nullptr || !test->result()->Failed()) return;
  std::printf("repeat with: rankone_recurrence_test --gtest_filter='%s.%s'\n",
              test->test_suite_name(), test->name());
}

testing::AssertionResult same_bits(const std::string& name, const Tensor& a, const Tensor& b) {
  if (a.defined() != b.defined()) return testing::AssertionFailure() << name << ": one is missing";
  if (!a.defined()) return testing::AssertionSuccess();
  if (!(a.shape() == b.shape())) return testing::AssertionFailure() << name << ": shapes differ";
  const auto* left = static_cast<const std::byte*>(a.raw());
  const auto* right = static_cast<const std::byte*>(b.raw());
  for (std::int64_t i = 0; i < a.count(); ++i) {
    const std::size_t size = size_of(a.dtype());
    if (std::memcmp(left + static_cast<std::size_t>(i) * size,
                    right + static_cast<std::size_t>(i) * size, size) != 0) {
      return testing::AssertionFailure()
             << name << ": element " << i << " of " << a.count() << " differs";
    }
  }
  return testing::AssertionSuccess();
}

}  // namespace rankone::test
