#include "train/trainer.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <map>

#include "core/status.hpp"
#include "nn/backend.hpp"
#include "nn/cpu/cpu_backend.hpp"
#include "train/fixture.hpp"
#include "train/validation.hpp"

namespace rankone::train {
namespace {

using test::Corpus;
using test::model_config;
using test::Scratch;
using test::train_config;

std::string bytes_of(const Optimizer& optimizer) {
  std::string bytes;
  for (const auto& [name, tensor] : optimizer.state().tensors) {
    bytes.append(static_cast<const char*>(tensor.raw()), tensor.bytes());
  }
  return bytes;
}

// A model in training, for `steps` steps.
struct Session {
  Session(const Corpus& corpus, const TrainConfig& config_, const std::string& type = "kla",
          ContextOptions options = {})
      : config(config_),
        context(std::move(options)),
        model(model::Model::create(model_config(type), Dtype::f32, config.seed)),
        trainer(context, model, config),
        batches(corpus.file, config.seq_len, config.batch_tokens, config.seed) {}

  std::vector<Trainer::Result> run(std::int64_t steps) {
    std::vector<Trainer::Result> results;
    for (std::int64_t i = 0; i < steps; ++i) {
      trainer.step(batches.at(done), done + 1);
      ++done;
      if (config.log_every > 1 && i + 1 < steps) continue;
      for (const Trainer::Result& result : trainer.results()) results.push_back(result);
    }
    return results;
  }

  TrainConfig config;
  Context context;
  model::Model model;
  Trainer trainer;
  data::Batches batches;
  std::int64_t done = 0;
};

// Entropy of the pieces by their frequencies, nats: what counting single pieces can reach.
double unigram_entropy(const data::TokenFile& file) {
  std::map<std::int32_t, double> counts;
  for (std::int64_t i = 0; i < file.tokens(); ++i) counts[file[i]] += 1;
  double entropy = 0;
  for (const auto& [id, count] : counts) {
    const double p = count / static_cast<double>(file.tokens());
    entropy -= p * std::log(p);
  }
  return entropy;
}

TEST(Trainer, LearnsWhatCountingPiecesCanNot) {
  const Scratch folder;
  const Corpus corpus(folder);
  for (const char* type : {"kla", "gated_deltanet"}) {
    TrainConfig config = train_config();
    config.steps = 60;
    Session session(corpus, config, type);
    const auto results = session.run(config.steps);
    EXPECT_NEAR(results.front().loss, std::log(test::kVocabulary), 0.5) << type;
    EXPECT_LT(results.back().loss, 0.5 * unigram_entropy(corpus.file)) << type;
    const ValidationSet set =
        make_validation_set(corpus.file, corpus.tokenizer, config.seq_len, 512, 4000);
    const Validation validation = validate(session.context, session.model, set);
    EXPECT_LT(validation.loss(), 0.5 * unigram_entropy(corpus.file)) << type;
  }
}

TEST(Trainer, SplitsBatchesBetweenSequences) {
  data::Batch batch;
  for (std::int32_t i = 0; i < 10; ++i) {
    batch.ids.push_back(i);
    batch.targets.push_back(i + 1);
  }
  const std::vector<std::int64_t> boundaries = {0, 2, 2, 5, 6, 10};
  batch.sequences = Sequences::packed(boundaries);
  const auto lengths = [&](std::int64_t limit) {
    std::vector<std::int64_t> rows;
    std::int32_t next = 0;
    for (const MicroBatch& part : split(batch, limit)) {
      rows.push_back(part.sequences.rows());
      for (const std::int32_t id : part.ids) EXPECT_EQ(id, next++);
      EXPECT_EQ(part.targets.back(), next);
    }
    EXPECT_EQ(next, 10);
    return rows;
  };
  EXPECT_EQ(lengths(0), (std::vector<std::int64_t>{10}));
  EXPECT_EQ(lengths(10), (std::vector<std::int64_t>{10}));
  EXPECT_EQ(lengths(5), (std::vector<std::int64_t>{5, 5}));
  EXPECT_EQ(lengths(4), (std::vector<std::int64_t>{2, 4, 4}));
  EXPECT_EQ(lengths(1), (std::vector<std::int64_t>{2, 3, 1, 4}));
}

double largest_relative_error(const Tensor& tensor, const Tensor& expected) {
  double error = 0;
  double square = 0;
  const auto a = tensor.span<float>();
  const auto b = expected.span<float>();
  for (std::size_t i = 0; i < a.size(); ++i) {
    error = std::max(error, std::abs(double{a[i]} - double{b[i]}));
    square += double{b[i]} * double{b[i]};
  }
  return error / std::sqrt(square / static_cast<double>(a.size()) + 1e-300);
}

TEST(Trainer, MicroBatchesAddUpToTheBatch) {
  const Scratch folder;
  const Corpus corpus(folder);
  TrainConfig config = train_config();
  Session whole(corpus, config);
  config.micro_batch_tokens = 100;
  Session parts(corpus, config);
  const auto expected = whole.run(1);
  const auto result = parts.run(1);
  EXPECT_NEAR(result[0].loss, expected[0].loss, 1e-6 * expected[0].loss);
  EXPECT_NEAR(result[0].grad_norm, expected[0].grad_norm, 1e-5 * expected[0].grad_norm);
  for (std::size_t i = 0; i < parts.trainer.optimizer().parameters().size(); ++i) {
    const nn::Parameter& parameter = *parts.trainer.optimizer().parameters()[i];
    EXPECT_LT(
        largest_relative_error(parameter.grad, whole.trainer.optimizer().parameters()[i]->grad),
        2e-4)
        << parameter.name;
  }
  EXPECT_LT(parts.trainer.arena_bytes(), whole.trainer.arena_bytes());
}

TEST(Trainer, RecomputationChangesNoBitAndSavesMemory) {
  const Scratch folder;
  const Corpus corpus(folder);
  TrainConfig config = train_config();
  Session kept(corpus, config);
  config.recompute = true;
  Session again(corpus, config);
  kept.run(3);
  again.run(3);
  EXPECT_EQ(bytes_of(kept.trainer.optimizer()), bytes_of(again.trainer.optimizer()));
  EXPECT_LT(again.trainer.arena_bytes(), kept.trainer.arena_bytes());
}

TEST(Trainer, TheThreadCountChangesNoBit) {
  const Scratch folder;
  const Corpus corpus(folder);
  std::string first;
  for (const int threads : {1, 2, 3}) {
    Session session(corpus, train_config(), "kla", ContextOptions{.threads = threads});
    session.run(4);
    const std::string bytes = bytes_of(session.trainer.optimizer());
    if (first.empty()) first = bytes;
    EXPECT_EQ(bytes, first) << threads;
  }
}

TEST(Trainer, ReadingSeldomChangesNoBit) {
  const Scratch folder;
  const Corpus corpus(folder);
  TrainConfig config = train_config();
  Session often(corpus, config);
  config.log_every = 5;
  Session seldom(corpus, config);
  const auto expected = often.run(5);
  const auto results = seldom.run(5);
  ASSERT_EQ(results.size(), 5U);
  for (std::size_t i = 0; i < 5; ++i) EXPECT_EQ(results[i].loss, expected[i].loss);
  EXPECT_EQ(bytes_of(often.trainer.optimizer()), bytes_of(seldom.trainer.optimizer()));
}

TEST(Trainer, NothingIsAllocatedInsideAStep) {
  const Scratch folder;
  const Corpus corpus(folder);
  Session session(corpus, train_config());
  session.run(2);
  const std::size_t bytes = session.trainer.arena_bytes();
  session.run(8);
  // A step that outgrew its plan would have added a block, at least as large as the first.
  EXPECT_LT(session.trainer.arena_bytes(), bytes + bytes / 2);
}

TEST(Trainer, MemoryIsLinearInTheLength) {
  const Scratch folder;
  const Corpus corpus(folder);
  std::vector<double> bytes;
  for (const std::int64_t length : {512, 1024, 2048}) {
    TrainConfig config = train_config();
    config.seq_len = length;
    config.batch_tokens = length;
    Session session(corpus, config);
    session.run(1);
    bytes.push_back(static_cast<double>(session.trainer.arena_bytes()));
  }
  EXPECT_LT(bytes[1], 2.1 * bytes[0]);
  EXPECT_LT(bytes[2], 2.1 * bytes[1]);
}

// ---- Values that are not finite ----------------------------------------------------------------

// Passes everything to the CPU backend, and breaks the gradient of one weight in one call.
class BrokenBackend final : public nn::CpuBackend {
 public:
  std::string_view name() const override { return "broken"; }
  void linear_vjp(Context& context, const nn::Linear& args, const Tensor& dy,
                  const nn::LinearGrads& grads) const override {
    nn::CpuBackend::linear_vjp(context, args, dy, grads);
    if (context.planning() || args.weight.raw() != target) return;
    if (calls++ == call) grads.weight.data<float>()[3] = value;
  }

  void* target = nullptr;
  mutable std::int64_t calls = 0;
  std::int64_t call = 0;
  float value = std::numeric_limits<float>::quiet_NaN();
};

TEST(Trainer, ANonFiniteGradientStopsItsStepAndIsNamed) {
  const Scratch folder;
  const Corpus corpus(folder);
  TrainConfig config = train_config();
  config.log_every = 4;
  Session good(corpus, config);
  good.run(2);
  const std::string before = bytes_of(good.trainer.optimizer());
  for (const float value :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    BrokenBackend broken;
    const nn::RegisteredBackend registered(broken);
    Session session(corpus, config, "kla",
                    ContextOptions{.backends = {"broken", "cpu", "reference"}});
    const nn::Parameter* target = nullptr;
    for (const nn::Parameter* parameter : session.trainer.optimizer().parameters()) {
      if (parameter->name.find("layers.1.") != std::string::npos &&
          parameter->name.find("down_proj") != std::string::npos) {
        target = parameter;
      }
    }
    ASSERT_NE(target, nullptr);
    broken.target = target->value.raw();
    broken.call = 2;  // the third step
    broken.value = value;
    const auto results = session.run(4);
    ASSERT_EQ(results.size(), 4U);
    EXPECT_TRUE(results[0].finite() && results[1].finite());
    EXPECT_TRUE(std::isfinite(results[2].loss));
    EXPECT_FALSE(results[2].finite());
    EXPECT_FALSE(results[3].finite());  // nobody had read the third: it must not go on
    EXPECT_EQ(bytes_of(session.trainer.optimizer()), before);
    broken.call = broken.calls;
    EXPECT_EQ(session.trainer.find_non_finite(session.batches.at(2)),
              "the gradient of " + target->name);
  }
}

TEST(Trainer, ANonFiniteParameterIsNamed) {
  const Scratch folder;
  const Corpus corpus(folder);
  Session session(corpus, train_config());
  const nn::Parameter& victim = *session.trainer.optimizer().parameters()[3];
  victim.value.data<float>()[0] = std::numeric_limits<float>::infinity();
  const std::string before = bytes_of(session.trainer.optimizer());
  const auto results = session.run(1);
  EXPECT_FALSE(results[0].finite());
  EXPECT_EQ(bytes_of(session.trainer.optimizer()), before);
  EXPECT_EQ(session.trainer.find_non_finite(session.batches.at(0)), "parameter " + victim.name);
}

// ---- State of the optimiser --------------------------------------------------------------------

TEST(Optimizer, RestoresItsStateAndRefusesAnother) {
  const Scratch folder;
  const Corpus corpus(folder);
  Session session(corpus, train_config());
  session.run(2);
  const std::string saved = bytes_of(session.trainer.optimizer());
  TensorFile copy;
  for (const auto& [name, tensor] : session.trainer.optimizer().state().tensors) {
    copy.add(name, tensor.clone());
  }
  session.run(2);
  EXPECT_NE(bytes_of(session.trainer.optimizer()), saved);
  session.trainer.optimizer().restore(copy);
  EXPECT_EQ(bytes_of(session.trainer.optimizer()), saved);

  TensorFile missing = copy;
  missing.tensors.pop_back();
  TensorFile renamed = copy;
  renamed.tensors[0].first = "parameter.other";
  TensorFile reshaped = copy;
  reshaped.tensors[0].second = Tensor::zeros({1}, Dtype::f32);
  TensorFile retyped = copy;
  retyped.tensors[1].second = copy.tensors[1].second.to(Dtype::f64);
  session.run(1);
  const std::string now = bytes_of(session.trainer.optimizer());
  for (const TensorFile& bad : {missing, renamed, reshaped, retyped}) {
    EXPECT_THROW(session.trainer.optimizer().restore(bad), Error);
    EXPECT_EQ(bytes_of(session.trainer.optimizer()), now);
  }
}

}  // namespace
}  // namespace rankone::train
