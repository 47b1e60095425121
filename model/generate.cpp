#include "model/generate.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/status.hpp"

namespace rankone::model {
namespace {

// Tokens for which KV caches get room at a time, at least; else half of what they hold.
constexpr std::int64_t kCacheStep = 256;

}  // namespace

Sampler::Sampler(const SamplerOptions& options) : options_(options), random_(options.seed, 1) {
  require(options.temperature >= 0 && std::isfinite(options.temperature),
          "[generate] temperature is {} (must be 0 or more)", options.temperature);
  require(options.top_k >= 0, "[generate] top-k is {} (must be 0, for all, or more)",
          options.top_k);
  require(options.top_p > 0 && options.top_p <= 1, "[generate] top-p is {} (must be in (0, 1])",
          options.top_p);
}

std::int32_t Sampler::choose(std::span<const float> logits) {
  require(!logits.empty(), "[generate] there are no logits to choose from");
  const auto largest = std::max_element(logits.begin(), logits.end());  // the first of equals
  if (!std::all_of(logits.begin(), logits.end(), [](float x) { return std::isfinite(x); })) {
    fail(Status::failed, "[generate] the model gives logits that are not finite");
  }
  if (options_.temperature == 0) return static_cast<std::int32_t>(largest - logits.begin());
  order_.resize(logits.size());
  std::iota(order_.begin(), order_.end(), 0);
  const auto at = [&](std::int32_t id) { return logits[static_cast<std::size_t>(id)]; };
  const auto before = [&](std::int32_t a, std::int32_t b) {
    return at(a) != at(b) ? at(a) > at(b) : a < b;
  };
  const auto all = static_cast<std::int64_t>(logits.size());
  const std::int64_t kept = options_.top_k > 0 ? std::min(options_.top_k, all) : all;
  if (kept < all || options_.top_p < 1) {
    std::partial_sort(order_.begin(), order_.begin() + kept, order_.end(), before);
    order_.resize(static_cast<std::size_t>(kept));
  }
  weights_.resize(order_.size());
  for (std::size_t i = 0; i < order_.size(); ++i) {
    weights_[i] = std::exp((static_cast<double>(at(order_[i])) - static_cast<double>(*largest)) /
                           options_.temperature);
  }
  double sum = std::accumulate(weights_.begin(), weights_.end(), 0.0);
  if (options_.top_p < 1) {
    double taken = 0;
    std::size_t count = 0;
    while (count < weights_.size() && taken < options_.top_p * sum) taken += weights_[count++];
    weights_.resize(count);
    sum = taken;
  }
  double left = random_.uniform() * sum;
  for (std::size_t i = 0; i < weights_.size(); ++i) {
    left -= weights_[i];
    if (left < 0) return order_[i];
  }
  // Rounding may leave a last crumb.
  return order_[weights_.size() - 1];
}

Generator::Generator(const Model& model, Context& context, std::int64_t prefill_piece)
    : Generator(model, context, model.make_state(1), prefill_piece) {}

Generator::Generator(const Model& model, Context& context, State state, std::int64_t prefill_piece)
    : model_(model), context_(context), state_(std::move(state)), piece_(prefill_piece) {
  require(piece_ >= 1, "[generate] a prefill piece of {} tokens (must be at least 1)", piece_);
  require(state_.sequences() == 1, "[generate] the state has {} sequences (must be 1)",
          state_.sequences());
}

// The dry run on shapes. Parameters and state are not touched.
void Generator::plan(std::int64_t rows) {
  if (rows <= planned_rows_) return;
  ids_ = Tensor::zeros({rows}, Dtype::i32);
  const std::vector<std::int32_t> ids(static_cast<std::size_t>(rows), 0);
  Arena& arena = context_.arena();
  arena.set_planning(true);
  run(ids);
  const std::size_t peak = arena.peak();
  arena.set_planning(false);
  arena.reserve(peak);
  planned_rows_ = rows;
}

void Generator::run(std::span<const std::int32_t> ids) {
  const auto rows = static_cast<std::int64_t>(ids.size());
  const Tensor input = ids_.slice(0, 0, rows);
  std::copy(ids.begin(), ids.end(), input.data<std::int32_t>());
  const ArenaScope scope(context_.arena());
  const Sequences sequences = Sequences::dense(1, rows);
  nn::Tape tape(context_, nn::Tape::Mode::inference);
  const nn::Var hidden = model_.hidden(tape, sequences, input, &state_);
  const std::int64_t last = rows - 1;
  const Tensor logits =
      model_.logits(context_, tape.value(hidden), std::span<const std::int64_t>(&last, 1));
  if (context_.planning()) return;
  const Tensor wide = logits.to(Dtype::f32);
  logits_.assign(wide.data<float>(), wide.data<float>() + wide.count());
}

void Generator::read(std::span<const std::int32_t> ids) {
  require(!ids.empty(), "[generate] there is nothing to read (at least one token is needed)");
  for (const std::int32_t id : ids) {
    require(id >= 0 && id < model_.config().vocab_size,
            "[generate] token {} is not in the vocabulary of {}", id, model_.config().vocab_size);
  }
  while (!ids.empty()) {
    const std::size_t count = std::min(ids.size(), static_cast<std::size_t>(piece_));
    const auto rows = static_cast<std::int64_t>(count);
    if (state_.room() < rows) state_.reserve(std::max({rows, kCacheStep, state_.position(0) / 2}));
    plan(rows);
    run(ids.first(count));
    ids = ids.subspan(count);
  }
}

std::int64_t generate(Generator& generator, std::span<const std::int32_t> prompt,
                      std::int64_t tokens, Sampler& sampler, std::int64_t eos,
                      const std::function<bool(std::int32_t)>& take, std::int64_t vocabulary) {
  generator.read(prompt);
  std::int64_t done = 0;
  while (done < tokens) {
    std::span<const float> logits = generator.logits();
    if (vocabulary > 0 && static_cast<std::size_t>(vocabulary) < logits.size()) {
      logits = logits.first(static_cast<std::size_t>(vocabulary));
    }
    const std::int32_t token = sampler.choose(logits);
    if (token == eos) break;
    ++done;
    if (!take(token)) break;
    if (done < tokens) generator.read({&token, 1});
  }
  return done;
}

}  // namespace rankone::model
