#include "train/validation.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "nn/operators.hpp"
#include "nn/tape.hpp"
#include "train/token_view.hpp"

namespace rankone::train {
namespace {

struct Piece {
  std::int64_t begin = 0;  // token index
  std::int64_t end = 0;    // one past the last row; its target is the token at `end`
};

// All pieces of all documents. The last token of a document has no target and is no row.
std::vector<Piece> all_pieces(const data::TokenFile& file, std::int64_t seq_len) {
  std::vector<Piece> pieces;
  for (std::int64_t document = 0; document < file.documents(); ++document) {
    const std::int64_t last = file.end(document) - 1;
    for (std::int64_t at = file.begin(document); at < last; at += seq_len) {
      pieces.push_back({at, std::min(at + seq_len, last)});
    }
  }
  return pieces;
}

// Every k-th piece, k as small as max_tokens allows.
std::vector<Piece> choose(const std::vector<Piece>& pieces, std::int64_t max_tokens) {
  std::int64_t total = 0;
  for (const Piece& piece : pieces) total += piece.end - piece.begin;
  const std::int64_t stride = std::max<std::int64_t>(1, (total + max_tokens - 1) / max_tokens);
  std::vector<Piece> chosen;
  for (std::size_t i = 0; i < pieces.size(); i += static_cast<std::size_t>(stride)) {
    chosen.push_back(pieces[i]);
  }
  return chosen;
}

data::Batch make_batch(const data::TokenFile& file, std::span<const Piece> pieces,
                       std::int32_t eos) {
  data::Batch batch;
  std::vector<std::int64_t> boundaries = {0};
  for (const Piece& piece : pieces) {
    for (std::int64_t at = piece.begin; at < piece.end; ++at) {
      const std::int32_t target = file[at + 1];
      batch.ids.push_back(file[at]);
      batch.targets.push_back(target == eos ? -1 : target);
      if (target != eos) ++batch.scored;
    }
    boundaries.push_back(static_cast<std::int64_t>(batch.ids.size()));
  }
  batch.sequences = Sequences::packed(boundaries);
  return batch;
}

void add_loss(Context& context, const model::Model& model, const data::Batch& batch,
              const Tensor& sum) {
  const ArenaScope scope(context.arena());
  nn::Tape tape(context, nn::Tape::Mode::inference);
  const nn::Var hidden = model.hidden(tape, batch.sequences, token_view(batch.ids), nullptr);
  const Tensor x = tape.value(hidden);
  const Tensor losses = context.empty({batch.sequences.rows()}, x.dtype());
  nn::cross_entropy(context, {x, model.output_weight().value, token_view(batch.targets)}, losses);
  nn::add_sum(context, losses, 1.0, sum);
}

}  // namespace

double Validation::loss() const {
  return nats / static_cast<double>(std::max<std::int64_t>(1, scored));
}

double Validation::bits_per_byte() const {
  return nats / std::numbers::ln2 / static_cast<double>(std::max<std::int64_t>(1, bytes));
}

ValidationSet make_validation_set(const data::TokenFile& file, const data::Tokenizer& tokenizer,
                                  std::int64_t seq_len, std::int64_t batch_tokens,
                                  std::int64_t max_tokens) {
  ValidationSet set;
  const std::vector<Piece> pieces = choose(all_pieces(file, seq_len), max_tokens);
  std::size_t first = 0;
  while (first < pieces.size()) {
    std::size_t next = first;
    std::int64_t rows = 0;
    while (next < pieces.size()) {
      rows += pieces[next].end - pieces[next].begin;
      if (next > first && rows > batch_tokens) break;
      ++next;
    }
    set.batches.push_back(
        make_batch(file, std::span(pieces).subspan(first, next - first), tokenizer.eos()));
    first = next;
  }
  for (const data::Batch& batch : set.batches) {
    set.scored += batch.scored;
    for (const std::int32_t target : batch.targets) {
      if (target >= 0) set.bytes += tokenizer.piece_bytes(target);
    }
  }
  return set;
}

Validation validate(Context& context, const model::Model& model, const ValidationSet& set) {
  const Tensor sum = Tensor::zeros({1}, Dtype::f64);
  // One plan for all batches: the arena is made large enough for the largest before any runs.
  Arena& arena = context.arena();
  arena.set_planning(true);
  for (const data::Batch& batch : set.batches) add_loss(context, model, batch, sum);
  const std::size_t bytes = arena.peak();
  arena.set_planning(false);
  arena.reserve(bytes);
  for (const data::Batch& batch : set.batches) add_loss(context, model, batch, sum);
  return {*sum.data<double>(), set.scored, set.bytes};
}

}  // namespace rankone::train
