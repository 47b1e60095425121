#pragma once

// The plain implementation of a number format, which sets the error a kernel of that format may
// have: the chunk form with C = 64, inputs, outputs and both operands of every product rounded to
// the format; sums, decays, the triangular solve and the carried state in float32. And the way
// back likewise. Simple loops, no care taken beyond that.

#include "tests/cases/cases.hpp"

namespace rankone::test {

// `out` and `grads` as the recurrence takes them, float32.
void plain_two_key(Dtype format, const Inputs& inputs, const recurrence::TwoKeyOut& out);
void plain_two_key_vjp(Dtype format, const Inputs& inputs, const recurrence::TwoKeyGrads& grads);

}  // namespace rankone::test
