#pragma once

// A language model as a scorer.

#include <span>
#include <vector>

#include "core/context.hpp"
#include "eval/perplexity.hpp"
#include "eval/scorer.hpp"
#include "model/model.hpp"

namespace rankone::eval {

// `model` and `context` must outlive it. Ids and targets must be below the model's vocabulary.
class ModelScorer final : public Scorer {
 public:
  ModelScorer(const model::Model& model, Context& context);
  void score(const Sequences& sequences, std::span<const std::int32_t> ids,
             std::span<const std::int32_t> targets, std::span<double> losses) override;
  void begin() override;
  void score_next(std::span<const std::int32_t> ids, std::span<const std::int32_t> targets,
                  std::span<double> losses) override;

 private:
  void run(const Sequences& sequences, std::span<const std::int32_t> ids,
           std::span<const std::int32_t> targets, model::State* state, std::span<double> losses);

  const model::Model& model_;
  Context& context_;
  model::State state_;
};

// Evaluates a model. The text must have been cut by its tokenizer: ids beyond the model's
// vocabulary fail with invalid_argument.
std::vector<Score> evaluate(const model::Model& model, Context& context,
                            const data::TokenFile& file, const Vocabulary& vocabulary,
                            const PerplexityOptions& options);

}  // namespace rankone::eval
