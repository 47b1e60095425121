#pragma once

// One training step after another: gradients over micro-batches, clipping, AdamW.

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "core/context.hpp"
#include "data/tokens.hpp"
#include "model/model.hpp"
#include "train/config.hpp"
#include "train/optimizer.hpp"

namespace rankone::train {

// Rows of a batch, whole sequences.
struct MicroBatch {
  std::span<const std::int32_t> ids;
  std::span<const std::int32_t> targets;
  Sequences sequences;
};
// Cuts a batch between sequences into parts of at most `limit` rows (0: one part), so that the sum
// of their gradients is that of the batch. A sequence longer than the limit is a part of its own.
std::vector<MicroBatch> split(const data::Batch& batch, std::int64_t limit);

class Trainer {
 public:
  Trainer(Context& context, model::Model& model, const TrainConfig& config);

  // Computes step number `step` (from 1). Nothing is read by the host, so a step whose gradient is
  // not finite is noticed by losses(); it and all steps up to there leave the parameters alone.
  void step(const data::Batch& batch, std::int64_t step);

  struct Result {
    double loss = 0;       // mean over the scored targets, nats
    double grad_norm = 0;  // before clipping
    bool finite() const;
  };
  // The steps since the last call, at most config.log_every: the one place where the host reads.
  std::vector<Result> results();

  // What is not finite in a step that failed: "parameter X", "the loss", or "the gradient of X".
  // Computes its gradient again.
  std::string find_non_finite(const data::Batch& batch);

  const Optimizer& optimizer() const { return optimizer_; }
  std::size_t arena_bytes() const { return context_.arena().capacity(); }

 private:
  // Runs `work` once on shapes alone and makes the arena large enough for it.
  void reserve(const std::function<void()>& work);
  void add_gradients(const data::Batch& batch, const Tensor& loss);
  void run(const data::Batch& batch, std::int64_t step, std::int64_t slot);
  double read_sum_of_squares(const Tensor& tensor);

  Context& context_;
  model::Model& model_;
  TrainConfig config_;
  Optimizer optimizer_;
  Tensor losses_;  // [log_every] f64, of the steps since the last results()
  Tensor sums_;    // [log_every] f64: squared norms of the gradient
  std::int64_t pending_ = 0;
  std::vector<std::vector<std::int64_t>> planned_;  // boundaries of the micro-batches planned last
};

}  // namespace rankone::train
