#include "train/trainer.hpp"

#include <algorithm>
#include <cmath>

#include "core/status.hpp"
#include "nn/operators.hpp"
#include "nn/tape.hpp"
#include "train/schedule.hpp"
#include "train/token_view.hpp"

namespace rankone::train {
std::vector<MicroBatch> split(const data::Batch& batch, std::int64_t limit) {
  const Sequences& all = batch.sequences;
  std::vector<MicroBatch> parts;
  std::int64_t first = 0;
  while (first < all.count()) {
    std::vector<std::int64_t> boundaries = {0};
    const std::int64_t begin = all.begin(first);
    std::int64_t next = first;
    while (next < all.count() &&
           (boundaries.back() == 0 || limit == 0 || all.end(next) - begin <= limit)) {
      boundaries.push_back(all.end(next) - begin);
      ++next;
    }
    const auto offset = static_cast<std::size_t>(begin);
    const auto rows = static_cast<std::size_t>(boundaries.back());
    parts.push_back({std::span(batch.ids).subspan(offset, rows),
                     std::span(batch.targets).subspan(offset, rows),
                     Sequences::packed(boundaries)});
    first = next;
  }
  return parts;
}

Trainer::Trainer(Context& context, model::Model& model, const TrainConfig& config)
    : context_(context),
      model_(model),
      config_(config),
      optimizer_((model.enable_gradients(), model.parameters()), config),
      losses_(Tensor::zeros({config.log_every}, Dtype::f64)),
      sums_(Tensor::zeros({config.log_every}, Dtype::f64)) {}

void Trainer::reserve(const std::function<void()>& work) {
  Arena& arena = context_.arena();
  arena.set_planning(true);
  try {
    work();
  } catch (...) {
    arena.set_planning(false);
    throw;
  }
  const std::size_t bytes = arena.peak();
  arena.set_planning(false);
  arena.reserve(bytes);
}

// loss += the mean loss of the batch; the gradients of the parameters likewise.
void Trainer::add_gradients(const data::Batch& batch, const Tensor& loss) {
  const double factor = 1.0 / static_cast<double>(std::max<std::int64_t>(1, batch.scored));
  for (const MicroBatch& part : split(batch, config_.micro_batch_tokens)) {
    const ArenaScope scope(context_.arena());
    nn::Tape tape(context_, nn::Tape::Mode::training);
    const nn::Var hidden =
        model_.hidden(tape, part.sequences, token_view(part.ids), nullptr, config_.recompute);
    const Tensor x = tape.value(hidden);
    const nn::Parameter& head = model_.output_weight();
    const Tensor dx = context_.empty(x.shape(), x.dtype());
    const Tensor losses = context_.empty({part.sequences.rows()}, x.dtype());
    nn::cross_entropy_vjp(context_, {x, head.value, token_view(part.targets)}, factor, losses,
                          {dx, head.grad});
    nn::add_sum(context_, losses, factor, loss);
    tape.backward(hidden, dx);
  }
}

void Trainer::run(const data::Batch& batch, std::int64_t step, std::int64_t slot) {
  const Tensor loss = losses_.slice(0, slot, slot + 1);
  const Tensor sum = sums_.slice(0, slot, slot + 1);
  nn::fill(context_, loss, 0.0);
  nn::fill(context_, sum, 0.0);
  optimizer_.zero_gradients(context_);
  add_gradients(batch, loss);
  optimizer_.add_norm(context_, sum);
  // Zero times a non-finite number is NaN: a loss that is not finite stops the step as well, and so
  // does a failed step before this one that nobody has read yet.
  nn::add_sum(context_, loss, 0.0, sum);
  if (slot > 0) nn::add_sum(context_, sums_.slice(0, slot - 1, slot), 0.0, sum);
  optimizer_.apply(context_, step, learning_rate(config_, step), sum);
}

void Trainer::step(const data::Batch& batch, std::int64_t step) {
  require(pending_ < config_.log_every, "[train] {} steps without a read (at most {})", pending_,
          config_.log_every);
  std::vector<std::vector<std::int64_t>> shapes;
  for (const MicroBatch& part : split(batch, config_.micro_batch_tokens)) {
    const auto boundaries = part.sequences.boundaries();
    shapes.emplace_back(boundaries.begin(), boundaries.end());
  }
  if (shapes != planned_) {
    reserve([&] { run(batch, step, pending_); });
    planned_ = std::move(shapes);
  }
  run(batch, step, pending_);
  ++pending_;
}

bool Trainer::Result::finite() const { return std::isfinite(loss) && std::isfinite(grad_norm); }

std::vector<Trainer::Result> Trainer::results() {
  std::vector<Result> read;
  for (std::int64_t i = 0; i < pending_; ++i) {
    read.push_back({losses_.data<double>()[i], std::sqrt(sums_.data<double>()[i])});
  }
  pending_ = 0;
  return read;
}

double Trainer::read_sum_of_squares(const Tensor& tensor) {
  const Tensor sum = Tensor::zeros({1}, Dtype::f64);
  reserve([&] { nn::add_sum_of_squares(context_, tensor, sum); });
  nn::add_sum_of_squares(context_, tensor, sum);
  return *sum.data<double>();
}

std::string Trainer::find_non_finite(const data::Batch& batch) {
  for (const nn::Parameter* parameter : optimizer_.parameters()) {
    if (!std::isfinite(read_sum_of_squares(parameter->value))) {
      return "parameter " + parameter->name;
    }
  }
  const Tensor loss = Tensor::zeros({1}, Dtype::f64);
  reserve([&] { add_gradients(batch, loss); });
  optimizer_.zero_gradients(context_);
  add_gradients(batch, loss);
  planned_.clear();
  if (!std::isfinite(*loss.data<double>())) return "the loss";
  for (const nn::Parameter* parameter : optimizer_.parameters()) {
    if (!std::isfinite(read_sum_of_squares(parameter->grad))) {
      return "the gradient of " + parameter->name;
    }
  }
  return "the norm of the gradient";
}

}  // namespace rankone::train
