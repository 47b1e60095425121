#pragma once

// Every element-wise operator with its variants, small (for finite differences) or large.

#include "nn/operators.hpp"
#include "operator_case.hpp"

namespace rankone::nn::test {

enum class Size { small, large };

std::vector<OperatorCase> norm_cases(Size size);
std::vector<OperatorCase> map_cases(Size size);
std::vector<OperatorCase> layout_cases(Size size);
std::vector<OperatorCase> conv_cases(Size size);
std::vector<OperatorCase> all_cases(Size size);

}  // namespace rankone::nn::test
