#pragma once

// Every operator around a matrix product that has a vjp, small (for finite differences) or large.

#include "elementwise_cases.hpp"

namespace rankone::nn::test {

std::vector<OperatorCase> linear_cases(Size size);
std::vector<OperatorCase> loss_cases(Size size);
std::vector<OperatorCase> rope_cases(Size size);
std::vector<OperatorCase> attention_cases(Size size);
std::vector<OperatorCase> matrix_cases(Size size);

}  // namespace rankone::nn::test
