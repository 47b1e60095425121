#pragma once

// The op files of the golden data: inputs, outputs and gradients of published recurrences, checked
// against the functions of recurrence/ on the backend that the context prefers.

#include "apps/golden.hpp"

namespace rankone::apps {

// The op of a file, from its metadata; fails with corrupt where it has none.
std::string golden_op(const TensorFile& file);
// Whether check_op_file() knows the op.
bool is_recurrence_op(std::string_view op);

// Runs forward and vjp on the inputs of the file in `dtype` (f64 for the reference backend) and
// compares every output and gradient that the file holds. Fails with corrupt where the file lacks
// an input, and with invalid_argument where its shapes do not fit together.
std::vector<TensorCheck> check_op_file(const TensorFile& file, Context& context, Dtype dtype);

}  // namespace rankone::apps
