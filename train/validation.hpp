#pragma once

// The loss on held-out text during training: quick, and always over the same targets. `rankone eval
// ppl` measures with care.

#include <cstdint>
#include <span>
#include <vector>

#include "core/context.hpp"
#include "data/tokens.hpp"
#include "model/model.hpp"

namespace rankone::train {

struct Validation {
  double nats = 0;          // sum over the scored targets
  std::int64_t scored = 0;  // targets; EOS is not one
  std::int64_t bytes = 0;   // UTF-8 bytes of the scored pieces
  double loss() const;      // nats per target
  double bits_per_byte() const;
};

// Pieces of seq_len tokens, the state fresh at the start of each, spread evenly over the documents
// so that about max_tokens are read; packed into batches of at most batch_tokens rows.
struct ValidationSet {
  std::vector<data::Batch> batches;
  std::int64_t scored = 0;
  std::int64_t bytes = 0;
};
ValidationSet make_validation_set(const data::TokenFile& file, const data::Tokenizer& tokenizer,
                                  std::int64_t seq_len, std::int64_t batch_tokens,
                                  std::int64_t max_tokens);

Validation validate(Context& context, const model::Model& model, const ValidationSet& set);

}  // namespace rankone::train
