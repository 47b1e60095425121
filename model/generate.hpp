#pragma once

// Text from a model, token by token: prefill, then one step a token from the state. For recurrent
// models time and memory of a step do not depend on how much was read before.

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "core/context.hpp"
#include "core/random.hpp"
#include "model/model.hpp"

namespace rankone::model {

struct SamplerOptions {
  double temperature = 1.0;  // 0: the most probable token
  std::int64_t top_k = 0;    // only the k most probable ones; 0: all
  double top_p = 1.0;        // only the smallest set of at least this probability, in (0, 1]
  std::uint64_t seed = 0;
};

// Chooses tokens from logits. Of equal logits the lower token comes first; the same options and
// logits give the same tokens.
class Sampler {
 public:
  explicit Sampler(const SamplerOptions& options);
  std::int32_t choose(std::span<const float> logits);

 private:
  SamplerOptions options_;
  Random random_;
  std::vector<std::int32_t> order_;
  std::vector<double> weights_;
};

// Reads tokens into the state of one sequence. The arena of the context is planned once for the
// largest call and must be the generator's alone.
class Generator {
 public:
  Generator(const Model& model, Context& context, std::int64_t prefill_piece = 512);
  Generator(const Model& model, Context& context, State state, std::int64_t prefill_piece = 512);

  // Advances the state over `ids` (each in [0, vocabulary), at least one), at most prefill_piece of
  // them at a time, and keeps the logits of the last one.
  void read(std::span<const std::int32_t> ids);
  // Of the token after the last one read, [vocabulary]; empty before the first read().
  std::span<const float> logits() const { return logits_; }
  const State& state() const { return state_; }
  State& state() { return state_; }

 private:
  void run(std::span<const std::int32_t> ids);
  void plan(std::int64_t rows);

  const Model& model_;
  Context& context_;
  State state_;
  std::int64_t piece_;
  std::int64_t planned_rows_ = 0;
  Tensor ids_;
  std::vector<float> logits_;
};

// Reads the prompt and hands up to `tokens` chosen tokens to `take`, which stops by returning
// false. A chosen `eos` (-1: none) stops too and is not handed on. Only the first `vocabulary`
// tokens are chosen from (0: all). Returns how many were handed on.
std::int64_t generate(Generator& generator, std::span<const std::int32_t> prompt,
                      std::int64_t tokens, Sampler& sampler, std::int64_t eos,
                      const std::function<bool(std::int32_t)>& take, std::int64_t vocabulary = 0);

}  // namespace rankone::model
