#include "eval/decode_time.hpp"

#include <algorithm>
#include <array>
#include <chrono>

#include "core/random.hpp"
#include "core/status.hpp"
#include "nn/tape.hpp"

namespace rankone::eval {
namespace {

constexpr std::int64_t kPrefillRows = 1024;
constexpr std::array<std::int64_t, 1> kFirstRow = {0};

using Clock = std::chrono::steady_clock;

std::vector<std::int32_t> random_tokens(std::int64_t count, std::int64_t vocabulary) {
  Random random(7);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(count));
  for (std::int32_t& id : ids) {
    id = static_cast<std::int32_t>(random.below(static_cast<std::uint64_t>(vocabulary)));
  }
  return ids;
}

Tensor view_of(std::span<std::int32_t> ids) {
  return Tensor::view(ids.data(), {static_cast<std::int64_t>(ids.size())}, Dtype::i32);
}

// One step: the likeliest token after `id`.
std::int32_t step(Context& context, const model::Model& model, model::State& state,
                  std::int32_t id) {
  const ArenaScope scope(context.arena());
  nn::Tape tape(context, nn::Tape::Mode::inference);
  const nn::Var hidden =
      model.hidden(tape, Sequences::dense(1, 1), view_of(std::span(&id, 1)), &state);
  const Tensor logits = model.logits(context, tape.value(hidden), kFirstRow);
  if (context.planning()) return 0;
  const auto values = logits.span<float>();
  return static_cast<std::int32_t>(std::max_element(values.begin(), values.end()) - values.begin());
}

void read(Context& context, const model::Model& model, model::State& state,
          std::span<std::int32_t> ids) {
  while (!ids.empty()) {
    const ArenaScope scope(context.arena());
    nn::Tape tape(context, nn::Tape::Mode::inference);
    const auto rows = std::min(ids.size(), static_cast<std::size_t>(kPrefillRows));
    model.hidden(tape, Sequences::dense(1, static_cast<std::int64_t>(rows)),
                 view_of(ids.first(rows)), &state);
    ids = ids.subspan(rows);
  }
}

}  // namespace

double DecodeTime::median_ms() const {
  std::vector<double> sorted = run_ms;
  std::sort(sorted.begin(), sorted.end());
  return sorted[sorted.size() / 2];
}

std::vector<DecodeTime> time_decode(Context& context, const model::Model& model,
                                    std::span<const std::int64_t> contexts, int steps, int runs) {
  require(model.dtype() == Dtype::f32, "[decode] the model computes in {} (must be f32)",
          name(model.dtype()));
  std::vector<DecodeTime> results;
  std::vector<model::State> prefilled;
  for (const std::int64_t tokens : contexts) {
    require(tokens >= 0, "[decode] a context of {} tokens (must be at least 0)", tokens);
    std::vector<std::int32_t> ids = random_tokens(tokens, model.config().vocab_size);
    model::State state = model.make_state(1);
    state.reserve(tokens + steps);
    // The arena grows to what a piece needs; the steps then run in an arena of their own.
    Context reading(ContextOptions{}, context.pool());
    read(reading, model, state, ids);
    results.push_back({.context = tokens, .run_ms = {}, .state_bytes = state.bytes()});
    prefilled.push_back(std::move(state));
  }
  for (int run = 0; run < runs; ++run) {
    for (std::size_t i = 0; i < results.size(); ++i) {
      model::State state = prefilled[i].clone();
      std::int32_t id = step(context, model, state, 0);  // not timed: it warms the caches
      const auto start = Clock::now();
      for (int n = 1; n < steps; ++n) id = step(context, model, state, id);
      const double ms = std::chrono::duration<double, std::milli>(Clock::now() - start).count();
      results[i].run_ms.push_back(ms / static_cast<double>(std::max(1, steps - 1)));
      results[i].workspace_bytes = context.arena().capacity();
    }
  }
  return results;
}

}  // namespace rankone::eval
