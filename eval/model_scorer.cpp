#include "eval/model_scorer.hpp"

#include <algorithm>
#include <vector>

#include "core/status.hpp"
#include "nn/operators.hpp"
#include "nn/tape.hpp"

namespace rankone::eval {
namespace {

// Operators only read ids and targets.
Tensor token_view(std::span<const std::int32_t> ids) {
  return Tensor::view(const_cast<std::int32_t*>(ids.data()),
                      {static_cast<std::int64_t>(ids.size())}, Dtype::i32);
}

}  // namespace

ModelScorer::ModelScorer(const model::Model& model, Context& context)
    : model_(model), context_(context) {}

void ModelScorer::score(const Sequences& sequences, std::span<const std::int32_t> ids,
                        std::span<const std::int32_t> targets, std::span<double> losses) {
  run(sequences, ids, targets, nullptr, losses);
}

void ModelScorer::begin() { state_ = model_.make_state(1); }

void ModelScorer::score_next(std::span<const std::int32_t> ids,
                             std::span<const std::int32_t> targets, std::span<double> losses) {
  const auto rows = static_cast<std::int64_t>(ids.size());
  if (state_.room() < rows) state_.reserve(rows);
  run(Sequences::dense(1, rows), ids, targets, &state_, losses);
}

void ModelScorer::run(const Sequences& sequences, std::span<const std::int32_t> ids,
                      std::span<const std::int32_t> targets, model::State* state,
                      std::span<double> losses) {
  const ArenaScope scope(context_.arena());
  nn::Tape tape(context_, nn::Tape::Mode::inference);
  const nn::Var hidden = model_.hidden(tape, sequences, token_view(ids), state);
  // The projection to the vocabulary is formed for scored rows alone.
  std::vector<std::int64_t> rows;
  std::vector<std::int32_t> scored;
  for (std::size_t i = 0; i < targets.size(); ++i) {
    if (targets[i] < 0) continue;
    rows.push_back(static_cast<std::int64_t>(i));
    scored.push_back(targets[i]);
  }
  std::fill(losses.begin(), losses.end(), 0.0);
  if (rows.empty()) return;
  const Tensor all = tape.value(hidden);
  const auto count = static_cast<std::int64_t>(rows.size());
  const Tensor x = context_.empty({count, all.dim(-1)}, all.dtype());
  nn::gather_rows(context_, all, rows, x);
  const Tensor nats = context_.empty({count}, all.dtype());
  nn::cross_entropy(context_, {x, model_.output_weight().value, token_view(scored)}, nats);
  const Tensor wide = nats.to(Dtype::f64);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    losses[static_cast<std::size_t>(rows[i])] = wide.data<double>()[i];
  }
}

std::vector<Score> evaluate(const model::Model& model, Context& context,
                            const data::TokenFile& file, const Vocabulary& vocabulary,
                            const PerplexityOptions& options) {
  const std::int64_t known = model.config().vocab_size;
  require(file.vocabulary() <= known && vocabulary.bos < known,
          "[eval] the text was cut with {} pieces, the model knows {}", file.vocabulary(), known);
  ModelScorer scorer(model, context);
  return evaluate(scorer, file, vocabulary, options);
}

}  // namespace rankone::eval
