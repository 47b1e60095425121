// Model directories of the golden data: full pass and prefill with single steps against the logits
// of the published implementations.

#include <algorithm>
#include <cmath>
#include <numeric>

#include "apps/golden.hpp"
#include "core/status.hpp"
#include "model/model.hpp"

namespace rankone::apps {
namespace {

namespace fs = std::filesystem;

// Prefill of this many tokens; the logits of its last one are the first of the stepwise ones.
constexpr std::int64_t kPrefill = 30;

struct Expected {
  Tensor ids;          // i32 [B, T]
  Tensor logits;       // [B, T, V]
  Tensor step_logits;  // [B, T - 29, V]
};

Expected read_expected(const fs::path& directory, std::int64_t vocabulary) {
  const TensorFile file = read_safetensors(directory / "expected.safetensors");
  const Tensor& ids = file.at("input_ids");
  Expected expected;
  expected.logits = file.at("logits").to(Dtype::f64);
  const Shape& shape = expected.logits.shape();
  const bool fits = ids.dtype() == Dtype::i64 && ids.rank() == 2 && ids.dim(0) >= 1 &&
                    ids.dim(1) > kPrefill && shape.rank() == 3 && shape[0] == ids.dim(0) &&
                    shape[1] == ids.dim(1) && shape[2] == vocabulary;
  if (!fits) {
    fail(Status::corrupt, "[golden] {}: input_ids {} and logits {} do not fit a vocabulary of {}",
         directory.string(), ids.shape().str(), shape.str(), vocabulary);
  }
  expected.ids = Tensor::empty(ids.shape(), Dtype::i32);
  for (std::int64_t i = 0; i < ids.count(); ++i) {
    const std::int64_t id = ids.data<std::int64_t>()[i];
    if (id < 0 || id >= vocabulary) {
      fail(Status::corrupt, "[golden] {}: token {} is not in [0, {})", directory.string(), id,
           vocabulary);
    }
    expected.ids.data<std::int32_t>()[i] = static_cast<std::int32_t>(id);
  }
  // llama has none: its steps are compared with the full pass.
  const Tensor* steps = file.find("step_logits_from_29");
  expected.step_logits = steps != nullptr
                             ? steps->to(Dtype::f64)
                             : expected.logits.slice(1, kPrefill - 1, shape[1]).clone();
  const Shape step_shape = {shape[0], shape[1] - kPrefill + 1, shape[2]};
  if (expected.step_logits.shape() != step_shape) {
    fail(Status::corrupt, "[golden] {}: step logits are {} ({})", directory.string(),
         expected.step_logits.shape().str(), step_shape.str());
  }
  return expected;
}

// Logits of all rows of ids [B, T], a copy: [B, T, V].
Tensor run_logits(const model::Model& model, Context& context, const Tensor& ids,
                  model::State* state) {
  const ArenaScope scope(context.arena());
  const Sequences sequences = Sequences::dense(ids.dim(0), ids.dim(1));
  nn::Tape tape(context, nn::Tape::Mode::inference);
  const nn::Var hidden = model.hidden(tape, sequences, ids.reshape({ids.count()}), state);
  std::vector<std::int64_t> rows(static_cast<std::size_t>(ids.count()));
  std::iota(rows.begin(), rows.end(), 0);
  const Tensor logits = model.logits(context, tape.value(hidden), rows);
  return logits.reshape({ids.dim(0), ids.dim(1), logits.dim(-1)}).clone();
}

Tensor run_steps(const model::Model& model, Context& context, const Tensor& ids) {
  const std::int64_t batch = ids.dim(0);
  const std::int64_t time = ids.dim(1);
  model::State state = model.make_state(batch);
  state.reserve(time);
  const Tensor prefill = run_logits(model, context, ids.slice(1, 0, kPrefill).clone(), &state);
  const Tensor steps =
      Tensor::empty({batch, time - kPrefill + 1, prefill.dim(-1)}, prefill.dtype());
  steps.slice(1, 0, 1).copy_from(prefill.slice(1, kPrefill - 1, kPrefill));
  for (std::int64_t t = kPrefill; t < time; ++t) {
    const std::int64_t at = t - kPrefill + 1;
    steps.slice(1, at, at + 1)
        .copy_from(run_logits(model, context, ids.slice(1, t, t + 1).clone(), &state));
  }
  return steps;
}

// The largest difference, as a fraction of the largest logit and in units of the bound.
TensorCheck compare_logits(const std::string& name, const Tensor& expected, const Tensor& got_,
                           double bound) {
  const Tensor got = got_.to(Dtype::f64);
  double largest = 0, worst = 0;
  for (std::int64_t i = 0; i < expected.count(); ++i) {
    const double want = expected.data<double>()[i];
    const double difference = std::abs(got.data<double>()[i] - want);
    largest = std::max(largest, std::abs(want));
    worst = std::isfinite(difference) ? std::max(worst, difference) : INFINITY;
  }
  TensorCheck check;
  check.name = name;
  check.error = worst == 0 ? 0 : worst / (bound * largest);
  check.passed = check.error <= 1.0;
  check.detail = fmt::format("largest error {:.2e} of the largest logit", worst / largest);
  return check;
}

std::vector<TensorCheck> check_model(const fs::path& directory, Context& context, Dtype dtype) {
  const model::Model model = model::Model::load(directory, dtype);
  const Expected expected = read_expected(directory, model.config().vocab_size);
  // The published MesaNet casts to half precision inside its solver.
  const double bound = model.config().model_type == "mesa_net" ? 5e-3 : 1e-4;
  return {compare_logits("logits", expected.logits,
                         run_logits(model, context, expected.ids, nullptr), bound),
          compare_logits("step_logits", expected.step_logits,
                         run_steps(model, context, expected.ids), bound)};
}

const bool kRegistered = [] {
  golden_checks().model_directory = check_model;
  return true;
}();

}  // namespace
}  // namespace rankone::apps
