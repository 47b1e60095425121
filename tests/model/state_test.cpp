// The recurrent state: steps equal the full pass, packed equals separate, and whatever is done to a
// state that should not change it leaves the bits of the continuation alone.

#include "core/status.hpp"
#include "tests/model/support.hpp"

namespace rankone::test {
namespace {

constexpr std::int64_t kTokens = 9;
constexpr std::int64_t kPrefill = 5;

class EveryState : public testing::TestWithParam<NamedConfig> {
 protected:
  EveryState() : model_(Model::create(GetParam().config, Dtype::f32, 3)) {}

  State prefilled(std::int64_t tokens = kPrefill) {
    State state = model_.make_state(1);
    state.reserve(kTokens);
    run_hidden(model_, context_, Sequences::dense(1, tokens), ids_.slice(0, 0, tokens), &state);
    return state;
  }
  // Hidden states of the tokens from `begin` on, one step each.
  std::vector<Tensor> steps(State& state, std::int64_t begin = kPrefill) {
    std::vector<Tensor> result;
    for (std::int64_t t = begin; t < kTokens; ++t) {
      result.push_back(
          run_hidden(model_, context_, Sequences::dense(1, 1), ids_.slice(0, t, t + 1), &state));
    }
    return result;
  }
  void expect_same(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
    ASSERT_EQ(a.size(), b.size());
    for (std::size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(same_bits(a[i], b[i])) << "step " << i;
  }

  Context context_ = cpu_context();
  Model model_;
  Tensor ids_ = random_ids(kTokens, 13, 4);
};

TEST_P(EveryState, PrefillAndStepsEqualTheFullPass) {
  Context context = reference_context();
  const Model model = Model::create(GetParam().config, Dtype::f64, 3);
  const Tensor full = run_hidden(model, context, Sequences::dense(1, kTokens), ids_);
  for (const std::int64_t prefill : {0, 1, 2, 5}) {
    State state = model.make_state(1);
    state.reserve(kTokens);
    std::int64_t at = 0;
    while (at < kTokens) {
      const std::int64_t end = at == 0 && prefill > 0 ? prefill : at + 1;
      const Tensor part =
          run_hidden(model, context, Sequences::dense(1, end - at), ids_.slice(0, at, end), &state);
      EXPECT_LT(largest_difference(part, full.slice(0, at, end).clone()), 1e-11);
      at = end;
    }
    EXPECT_EQ(state.position(0), kTokens);
  }
}

TEST_P(EveryState, ForkSaveRestoreAndSelectContinueWithTheSameBits) {
  State original = prefilled();
  State fork = original.clone();
  const std::vector<std::byte> bytes = original.export_bytes();
  State restored = model_.make_state(1);
  restored.import_bytes(bytes);
  restored.reserve(kTokens);
  State selected = original.select(0);
  State again = prefilled();
  const std::vector<Tensor> expected = steps(original);
  expect_same(expected, steps(fork));
  expect_same(expected, steps(restored));
  expect_same(expected, steps(selected));
  expect_same(expected, steps(again));
  again.reset();
  EXPECT_EQ(again.position(0), 0);
  run_hidden(model_, context_, Sequences::dense(1, kPrefill), ids_.slice(0, 0, kPrefill), &again);
  expect_same(expected, steps(again));
}

TEST_P(EveryState, ExportIsTheSameBytesAgain) {
  const State state = prefilled();
  const std::vector<std::byte> bytes = state.export_bytes();
  State other = model_.make_state(1);
  other.import_bytes(bytes);
  EXPECT_EQ(other.export_bytes(), bytes);
}

TEST_P(EveryState, PackedSequencesAreThoseRunApart) {
  const std::vector<std::int64_t> boundaries{0, 4, 4, 5, kTokens};
  const Sequences sequences = Sequences::packed(boundaries);
  State all = model_.make_state(4);
  all.reserve(kTokens);
  const Tensor together = run_hidden(model_, context_, sequences, ids_, &all);
  for (std::int64_t i = 0; i < 4; ++i) {
    const std::int64_t begin = sequences.begin(i), end = sequences.end(i);
    State one = model_.make_state(1);
    one.reserve(kTokens);
    const Tensor apart = run_hidden(model_, context_, Sequences::dense(1, end - begin),
                                    ids_.slice(0, begin, end), &one);
    EXPECT_LE(largest_difference(apart, together.slice(0, begin, end).clone()), 2e-6);
    EXPECT_EQ(all.position(i), end - begin);
    State chosen = all.select(i);
    EXPECT_EQ(chosen.position(0), end - begin);
    for (const State::Entry& entry : one.entries()) {
      const Tensor& other = chosen.get(entry.name);
      const std::int64_t held = end - begin;
      const Tensor a = entry.grows ? entry.value.slice(2, 0, held).clone() : entry.value;
      const Tensor b = entry.grows ? other.slice(2, 0, held).clone() : other;
      EXPECT_LE(largest_difference(a, b), 2e-6) << entry.name;
    }
  }
}

TEST_P(EveryState, TheSameBitsForAnyNumberOfThreads) {
  const Tensor two = run_hidden(model_, context_, Sequences::dense(1, kTokens), ids_);
  for (const int threads : {1, 5}) {
    Context context = cpu_context(threads);
    EXPECT_TRUE(same_bits(two, run_hidden(model_, context, Sequences::dense(1, kTokens), ids_)));
  }
}

INSTANTIATE_TEST_SUITE_P(Models, EveryState, testing::ValuesIn(tiny_models()),
                         [](const auto& information) {
                           std::string name = information.param.name;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

Model hybrid() { return Model::create(tiny_models().back().config, Dtype::f32, 3); }

TEST(State, RecurrentModelsHaveAConstantSizeAndCachesGrowByReserve) {
  const Model gdn = Model::create(tiny_config(tiny_mixer("gdn")), Dtype::f32, 3);
  State state = gdn.make_state(1);
  const std::size_t before = state.bytes();
  state.reserve(1000);
  EXPECT_EQ(state.bytes(), before);
  EXPECT_GT(state.room(), 1000);
  State cached = hybrid().make_state(2);
  EXPECT_EQ(cached.room(), 0);
  cached.reserve(7);
  EXPECT_EQ(cached.room(), 7);
  EXPECT_EQ(cached.get("layers.1.cache_k").shape(), (Shape{2, 2, 7, 2}));
}

TEST(State, CallsThatDoNotFitAreRefused) {
  const Model model = hybrid();
  Context context = cpu_context();
  const Tensor ids = random_ids(3, 13, 1);
  State state = model.make_state(1);
  EXPECT_THROW(run_hidden(model, context, Sequences::dense(1, 3), ids, &state), Error);  // no room
  state.reserve(3);
  EXPECT_THROW(run_hidden(model, context, Sequences::dense(3, 1), ids, &state), Error);
  EXPECT_THROW(run_hidden(model, context, Sequences::dense(1, 2), ids, &state), Error);
  nn::Tape tape(context, nn::Tape::Mode::training);
  EXPECT_THROW(model.hidden(tape, Sequences::dense(1, 3), ids, &state), Error);
  EXPECT_EQ(state.position(0), 0);
  EXPECT_THROW(state.get("layers.9.S"), Error);
  EXPECT_THROW(state.select(1), Error);
  EXPECT_THROW(state.reserve(-1), Error);
}

// A changed or cut export never gets in, and the state stays what it was.
TEST(State, HostileBytesAreRefused) {
  const Model model = hybrid();
  Context context = cpu_context();
  State state = model.make_state(1);
  state.reserve(3);
  run_hidden(model, context, Sequences::dense(1, 3), random_ids(3, 13, 1), &state);
  const std::vector<std::byte> good = state.export_bytes();
  for (std::size_t size = 0; size < good.size(); size += 7) {
    EXPECT_THROW(state.import_bytes(std::span(good).first(size)), Error) << size;
  }
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text(reinterpret_cast<const char*>(good.data()), good.size());
    text.replace(text.find(from), from.size(), to);
    std::vector<std::byte> bytes(text.size());
    std::transform(text.begin(), text.end(), bytes.begin(), [](char c) { return std::byte(c); });
    return bytes;
  };
  EXPECT_THROW(state.import_bytes(with("layers.1.cache_k", "layers.1.cache_q")), Error);
  EXPECT_THROW(state.import_bytes(with("\"F32\"", "\"I32\"")), Error);
  State other = Model::create(tiny_config(tiny_mixer("kda")), Dtype::f32, 3).make_state(1);
  EXPECT_THROW(other.import_bytes(good), Error);
  State two = model.make_state(2);
  EXPECT_THROW(two.import_bytes(good), Error);
  EXPECT_EQ(state.export_bytes(), good);
}

}  // namespace
}  // namespace rankone::test
