#pragma once

// Sums of partial results in a fixed order, for the gradients of parameters.

#include "recurrence/cuda/source.hpp"

namespace rankone::recurrence::cuda {

// to[g] = factor * sum over parts p and i < width of partials[p * stride + g * width + i], for
// g < groups; width is at most 1024; accumulated in float64.
void launch_sums(const Sink& to, const float* partials, std::int64_t parts, std::int64_t stride,
                 std::int64_t groups, std::int64_t width, float factor, void* stream);

}  // namespace rankone::recurrence::cuda
