#pragma once

// Errors against float64, over a tensor and per row, and the project's bound on them.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/tensor.hpp"

namespace rankone::test {

struct Errors {
  double rms = 0;            // of the error over the tensor
  double reference_rms = 0;  // of the expected values
  std::vector<double> rows;  // RMS of the error in each row (the last axis)
  bool finite = true;
};
// `result` float32, `expected` float64 of the same shape.
Errors errors_of(const Tensor& result, const Tensor& expected);
double relative_error(const Tensor& result, const Tensor& expected);

// One number per row and head, [R, HV], as [HV, R]: a single number has no relative error to speak
// of, so the row of such a tensor is a head over time.
Tensor by_head(const Tensor& tensor);

// The rule of the developers' page: at most twice the error of the plain implementation over the
// tensor, and in every row at most four times the larger of its error in that row and its RMS error
// over the tensor.
testing::AssertionResult within_plain(const std::string& name, const Tensor& result,
                                      const Tensor& plain, const Tensor& expected);

// Prints, after a failure, the command that repeats the present test alone. For TearDown().
void print_repeat();

// Same bits, element for element.
testing::AssertionResult same_bits(const std::string& name, const Tensor& a, const Tensor& b);

}  // namespace rankone::test
