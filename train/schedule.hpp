#pragma once

#include <cstdint>

#include "train/config.hpp"

namespace rankone::train {

// The learning rate of step 1, 2, ..., config.steps: linear from lr / warmup to lr over the
// warm-up, then half a cosine down to lr * lr_min_fraction at the last step. A function of the step
// alone.
double learning_rate(const TrainConfig& config, std::int64_t step);

}  // namespace rankone::train
