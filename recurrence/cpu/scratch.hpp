#pragma once

// Scratch of one worker, cut from one block of the arena. The same code that takes the pieces
// measures them first: a Scratch on null memory only counts.

#include <cstddef>

#include "core/arena.hpp"
#include "recurrence/cpu/kernels.hpp"

namespace rankone::recurrence::cpu {

class Scratch {
 public:
  explicit Scratch(float* memory = nullptr) : memory_(memory) {}

  float* take(Index count) {
    float* piece = memory_ == nullptr ? nullptr : memory_ + used_;
    used_ += (count + kLine - 1) / kLine * kLine;
    return piece;
  }
  float* rows(Index count, int columns) { return take(count * leading(columns)); }
  Index used() const { return used_; }

 private:
  float* memory_;
  Index used_ = 0;
};

// One block per worker, laid out by constructing a Layout on a Scratch; null while planning.
class WorkerScratch {
 public:
  WorkerScratch(Arena& arena, int workers, Index floats)
      : floats_((floats + kLine - 1) / kLine * kLine),
        memory_(static_cast<float*>(
            arena.allocate(static_cast<std::size_t>(floats_) * static_cast<std::size_t>(workers) *
                           sizeof(float)))) {}
  Scratch of(int worker) const { return Scratch(memory_ + worker * floats_); }

 private:
  Index floats_;
  float* memory_;
};

}  // namespace rankone::recurrence::cpu
