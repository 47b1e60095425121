#include "train/schedule.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace rankone::train {

double learning_rate(const TrainConfig& config, std::int64_t step) {
  if (step <= config.warmup) {
    return config.lr * static_cast<double>(step) / static_cast<double>(config.warmup);
  }
  const auto decay_steps =
      static_cast<double>(std::max<std::int64_t>(1, config.steps - config.warmup));
  const double done = std::min(1.0, static_cast<double>(step - config.warmup) / decay_steps);
  const double low = config.lr * config.lr_min_fraction;
  return low + (config.lr - low) * 0.5 * (1.0 + std::cos(std::numbers::pi * done));
}

}  // namespace rankone::train
