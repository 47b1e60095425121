#include "model/generate.hpp"

#include "core/status.hpp"
#include "tests/model/support.hpp"

namespace rankone::test {
namespace {

using model::generate;
using model::Generator;
using model::Sampler;
using model::SamplerOptions;

TEST(Sampler, GreedyTakesTheFirstOfEquals) {
  Sampler sampler({.temperature = 0});
  EXPECT_EQ(sampler.choose(std::vector<float>{0, 2, 1, 2}), 1);
}

TEST(Sampler, DrawsFollowTheProbabilities) {
  const std::vector<float> logits = {std::log(0.5F), std::log(0.2F), std::log(0.3F)};
  Sampler sampler({.temperature = 1, .seed = 7});
  std::vector<int> counts(3);
  for (int i = 0; i < 20000; ++i) ++counts[static_cast<std::size_t>(sampler.choose(logits))];
  EXPECT_NEAR(counts[0], 10000, 300);
  EXPECT_NEAR(counts[1], 4000, 300);
  EXPECT_NEAR(counts[2], 6000, 300);
}

TEST(Sampler, TopKAndTopPKeepTheMostProbable) {
  const std::vector<float> logits = {std::log(0.4F), std::log(0.1F), std::log(0.1F),
                                     std::log(0.4F)};
  const auto seen = [&](const SamplerOptions& options) {
    Sampler sampler(options);
    std::vector<bool> result(4);
    for (int i = 0; i < 500; ++i) result[static_cast<std::size_t>(sampler.choose(logits))] = true;
    return result;
  };
  EXPECT_EQ(seen({.top_k = 1}), (std::vector<bool>{true, false, false, false}));
  EXPECT_EQ(seen({.top_k = 3}), (std::vector<bool>{true, true, false, true}));
  EXPECT_EQ(seen({.top_p = 0.75}), (std::vector<bool>{true, false, false, true}));
  EXPECT_EQ(seen({.top_p = 0.85}), (std::vector<bool>{true, true, false, true}));
  EXPECT_EQ(seen({}), (std::vector<bool>{true, true, true, true}));
}

TEST(Sampler, TheSameSeedGivesTheSameTokens) {
  const Tensor logits = random_tensor({50}, Dtype::f32, 3);
  Sampler a({.temperature = 2, .seed = 5}), b({.temperature = 2, .seed = 5});
  Sampler other({.temperature = 2, .seed = 6});
  bool differs = false;
  for (int i = 0; i < 100; ++i) {
    const std::int32_t token = a.choose(logits.span<float>());
    EXPECT_EQ(token, b.choose(logits.span<float>()));
    differs = differs || token != other.choose(logits.span<float>());
  }
  EXPECT_TRUE(differs);
}

TEST(Sampler, BadOptionsAndLogitsAreRefused) {
  EXPECT_THROW(Sampler({.temperature = -1}), Error);
  EXPECT_THROW(Sampler({.temperature = NAN}), Error);
  EXPECT_THROW(Sampler({.top_k = -1}), Error);
  EXPECT_THROW(Sampler({.top_p = 0}), Error);
  EXPECT_THROW(Sampler({.top_p = 1.5}), Error);
  Sampler sampler({});
  EXPECT_THROW(sampler.choose({}), Error);
  EXPECT_THROW(sampler.choose(std::vector<float>{0, NAN}), Error);
}

std::vector<std::int32_t> prompt_of(std::int64_t count) {
  const Tensor ids = random_ids(count, 13, 8);
  return {ids.data<std::int32_t>(), ids.data<std::int32_t>() + count};
}

// Reading in pieces gives what one pass gives, for every model.
TEST(Generator, ReadsLongPromptsInPieces) {
  const std::vector<std::int32_t> prompt = prompt_of(40);
  for (const NamedConfig& named : tiny_models()) {
    const Model model = Model::create(named.config, Dtype::f32, 3);
    Context one = cpu_context(), many = cpu_context();
    Generator whole(model, one), pieces(model, many, 7);
    whole.read(prompt);
    pieces.read(prompt);
    ASSERT_EQ(whole.logits().size(), 13u);
    for (std::size_t i = 0; i < 13; ++i) {
      EXPECT_NEAR(whole.logits()[i], pieces.logits()[i], 2e-5) << named.name;
    }
    EXPECT_EQ(pieces.state().position(0), 40);
  }
}

TEST(Generator, MemoryOfAStepIsConstant) {
  const Model model = Model::create(tiny_config(tiny_mixer("kla")), Dtype::f32, 3);
  Context context = cpu_context();
  Generator generator(model, context, 16);
  generator.read(prompt_of(40));
  const std::size_t capacity = context.arena().capacity();
  const std::size_t state = generator.state().bytes();
  for (const std::int32_t id : prompt_of(200)) generator.read({&id, 1});
  EXPECT_EQ(context.arena().capacity(), capacity);
  EXPECT_EQ(generator.state().bytes(), state);
  EXPECT_EQ(generator.state().position(0), 240);
}

TEST(Generator, ContinuesFromAForkWithTheSameTokens) {
  for (const NamedConfig& named : tiny_models()) {
    const Model model = Model::create(named.config, Dtype::f32, 3);
    Context context = cpu_context(), other = cpu_context();
    Generator first(model, context);
    first.read(prompt_of(9));
    Generator second(model, other, first.state().clone());
    const auto continuation = [&](Generator& generator) {
      std::vector<std::int32_t> tokens;
      Sampler sampler({.temperature = 1, .seed = 2});
      const std::vector<std::int32_t> next{4};
      generate(generator, next, 20, sampler, -1, [&](std::int32_t token) {
        tokens.push_back(token);
        return true;
      });
      return tokens;
    };
    const std::vector<std::int32_t> tokens = continuation(first);
    EXPECT_EQ(tokens.size(), 20u);
    EXPECT_EQ(tokens, continuation(second)) << named.name;
  }
}

TEST(Generator, StopsAtTheEndOfTextAndWhereTheCallerSays) {
  const Model model = Model::create(tiny_config(tiny_mixer("gdn")), Dtype::f32, 3);
  Context context = cpu_context();
  Generator generator(model, context);
  Sampler greedy({.temperature = 0});
  std::vector<std::int32_t> tokens;
  const auto keep = [&](std::int32_t token) {
    tokens.push_back(token);
    return tokens.size() < 3;
  };
  EXPECT_EQ(generate(generator, prompt_of(5), 10, greedy, -1, keep), 3);
  Context again = cpu_context();
  Generator fresh(model, again);
  EXPECT_EQ(generate(fresh, prompt_of(5), 10, greedy, tokens[0], keep), 0);
  EXPECT_EQ(generate(fresh, prompt_of(1), 0, greedy, -1, keep), 0);
  const auto small = [](std::int32_t token) {
    EXPECT_LT(token, 2);
    return true;
  };
  EXPECT_EQ(generate(fresh, prompt_of(5), 10, greedy, -1, small, 2), 10);
}

TEST(Generator, TokensOutsideTheVocabularyAreRefused) {
  const Model model = Model::create(tiny_config(tiny_mixer("gdn")), Dtype::f32, 3);
  Context context = cpu_context();
  Generator generator(model, context);
  EXPECT_THROW(generator.read(std::vector<std::int32_t>{13}), Error);
  EXPECT_THROW(generator.read(std::vector<std::int32_t>{-1}), Error);
  EXPECT_THROW(generator.read({}), Error);
  EXPECT_TRUE(generator.logits().empty());
  EXPECT_THROW(Generator(model, context, 0), Error);
  EXPECT_THROW(Generator(model, context, model.make_state(2)), Error);
}

}  // namespace
}  // namespace rankone::test
