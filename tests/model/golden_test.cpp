// The golden models: logits of the published implementations, full pass and single steps.

#include "core/safetensors.hpp"
#include "support/paths.hpp"
#include "tests/model/support.hpp"

namespace rankone::test {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kPrefill = 30;

struct Golden {
  explicit Golden(const fs::path& directory) {
    const TensorFile file = read_safetensors(directory / "expected.safetensors");
    const Tensor& tokens = file.at("input_ids");
    ids = Tensor::empty(tokens.shape(), Dtype::i32);
    for (std::int64_t i = 0; i < tokens.count(); ++i) {
      ids.data<std::int32_t>()[i] = static_cast<std::int32_t>(tokens.data<std::int64_t>()[i]);
    }
    logits = file.at("logits").to(Dtype::f64);
    const Tensor* stepwise = file.find("step_logits_from_29");
    steps = stepwise != nullptr ? stepwise->to(Dtype::f64)
                                : logits.slice(1, kPrefill - 1, logits.dim(1)).clone();
  }
  Tensor ids, logits, steps;
};

// Logits of all rows, cut to the tokens that the golden data keeps: [B, T, kept].
Tensor logits_of(const Model& model, Context& context, const Tensor& ids, State* state,
                 std::int64_t kept) {
  const Sequences sequences = Sequences::dense(ids.dim(0), ids.dim(1));
  const Tensor hidden =
      run_hidden(model, context, sequences, ids.clone().reshape({ids.count()}), state);
  std::vector<std::int64_t> rows(static_cast<std::size_t>(ids.count()));
  std::iota(rows.begin(), rows.end(), 0);
  const ArenaScope scope(context.arena());
  const Tensor logits = model.logits(context, hidden, rows);
  return logits.reshape({ids.dim(0), ids.dim(1), logits.dim(-1)}).slice(2, 0, kept).clone();
}

void check(const fs::path& directory, Context& context, Dtype dtype) {
  SCOPED_TRACE(directory.filename().string());
  const Golden golden(directory);
  const Model model = Model::load(directory, dtype);
  const double bound =
      (model.config().model_type == "mesa_net" ? 5e-3 : 1e-4) * largest(golden.logits);
  const std::int64_t kept = golden.logits.dim(2);
  const Tensor full = logits_of(model, context, golden.ids, nullptr, kept);
  EXPECT_LT(largest_difference(full, golden.logits), bound);
  State state = model.make_state(golden.ids.dim(0));
  state.reserve(golden.ids.dim(1));
  const Tensor prefill = logits_of(model, context, golden.ids.slice(1, 0, kPrefill), &state, kept);
  EXPECT_LT(largest_difference(prefill.slice(1, kPrefill - 1, kPrefill).clone(),
                               golden.steps.slice(1, 0, 1).clone()),
            bound);
  for (std::int64_t t = kPrefill; t < golden.ids.dim(1); ++t) {
    const Tensor step = logits_of(model, context, golden.ids.slice(1, t, t + 1), &state, kept);
    const std::int64_t at = t - kPrefill + 1;
    EXPECT_LT(largest_difference(step, golden.steps.slice(1, at, at + 1).clone()), bound)
        << "step " << t;
  }
}

void check_all(const fs::path& folder, int expected) {
  int seen = 0;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (!fs::exists(entry.path() / "config.json")) continue;
    ++seen;
    Context reference = reference_context();
    check(entry.path(), reference, Dtype::f64);
    Context cpu = cpu_context();
    check(entry.path(), cpu, Dtype::f32);
  }
  EXPECT_EQ(seen, expected);
}

TEST(GoldenModels, TheTwoThatTravelWithTheSources) {
  check_all(source_dir() / "tests" / "data" / "golden_models", 2);
}

TEST(GoldenModels, AllTwelve) {
  const fs::path folder = shared_dir() / "golden" / "models";
  if (!fs::exists(folder))
    GTEST_SKIP() << folder << " is not here: the full set is the developers'";
  check_all(folder, 12);
}

}  // namespace
}  // namespace rankone::test
