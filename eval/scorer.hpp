#pragma once

// What evaluation asks of a predictor: a language model, or counts of a training text.

#include <cstdint>
#include <span>

#include "core/sequences.hpp"

namespace rankone::eval {

// ids and targets have one entry a row. A target is the piece that follows the row; a negative one
// is not scored. losses[row] = -ln p(target | the rows of the sequence up to and with this one),
// and 0 where nothing is scored.
class Scorer {
 public:
  virtual ~Scorer() = default;
  // Whole sequences, each from a fresh state.
  virtual void score(const Sequences& sequences, std::span<const std::int32_t> ids,
                     std::span<const std::int32_t> targets, std::span<double> losses) = 0;
  // One sequence in pieces: begin() makes the state fresh, each score_next() goes on from the last.
  virtual void begin() = 0;
  virtual void score_next(std::span<const std::int32_t> ids, std::span<const std::int32_t> targets,
                          std::span<double> losses) = 0;
};

}  // namespace rankone::eval
