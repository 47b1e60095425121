#pragma once

// How long one token takes from a state that has read a context: constant for a recurrent model,
// growing with the context for softmax attention.

#include <cstdint>
#include <span>
#include <vector>

#include "core/context.hpp"
#include "model/model.hpp"

namespace rankone::eval {

struct DecodeTime {
  std::int64_t context = 0;    // tokens read before the timed steps
  std::vector<double> run_ms;  // milliseconds a token, of each run
  double median_ms() const;
  std::size_t state_bytes = 0;      // of the whole state
  std::size_t workspace_bytes = 0;  // activations and scratch of a step
};

// Reads pseudo-random tokens up to each context once, then times `steps` greedy steps of the whole
// model from a copy of that state, `runs` times, the contexts taking turns so that a disturbance of
// the machine meets all of them.
std::vector<DecodeTime> time_decode(Context& context, const model::Model& model,
                                    std::span<const std::int64_t> contexts, int steps = 64,
                                    int runs = 5);

}  // namespace rankone::eval
