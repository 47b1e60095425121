#include "train/config.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/status.hpp"

namespace rankone::train {
namespace {

using nlohmann::json;

std::string message_of(const std::string& text, const std::vector<std::string>& settings = {}) {
  try {
    parse_run_config(text, "test.json", {"", settings});
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

std::string with_train(const std::string& train) {
  return R"({"model": {}, "train": )" + train + "}";
}

TEST(Config, ReadsEveryKeyAndWritesItBack) {
  const json value = json::parse(R"({"seq_len": 64, "batch_tokens": 1024, "micro_batch_tokens": 256,
    "steps": 7, "lr": 0.01, "lr_min_fraction": 0.2, "warmup": 3, "weight_decay": 0.05, "beta1": 0.8,
    "beta2": 0.99, "clip": 0.5, "seed": 12345678901234, "valid_fraction": 0.1, "vocab_size": 512,
    "log_every": 2, "eval_every": 5, "eval_tokens": 100, "checkpoint_every": 6, "recompute": true})");
  EXPECT_EQ(to_json(parse_train_config(value)), value);
}

TEST(Config, UnknownKeysNameTheNearest) {
  EXPECT_NE(message_of(with_train(R"({"bach_tokens": 5})")).find("train.batch_tokens"),
            std::string::npos);
  EXPECT_NE(message_of(R"({"model": {}, "trian": {}})").find("trian"), std::string::npos);
}

TEST(Config, ValuesOutOfRangeOrOfAnotherTypeAreRefused) {
  for (const char* train :
       {R"({"seq_len": 0})", R"({"seq_len": 1.5})", R"({"seq_len": "64"})", R"({"steps": -1})",
        R"({"lr": -0.1})", R"({"lr": "fast"})", R"({"beta1": 1})", R"({"valid_fraction": 1})",
        R"({"seed": -1})", R"({"log_every": 0})", R"({"recompute": 1})",
        R"({"seq_len": 99999999999999999999})", R"({"seed": 18446744073709551615})",
        R"({"vocab_size": 10000000})", R"({"seq_len": 512, "batch_tokens": 256})",
        R"({"seq_len": 512, "micro_batch_tokens": 256})", R"([])"}) {
    const std::string message = message_of(with_train(train));
    EXPECT_NE(message, "accepted") << train;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  }
}

TEST(Config, FilesThatAreNoRunConfigurationAreRefused) {
  for (const char* text : {"", "[]", "{", "null", R"({"train": {}})", R"({"model": 3})"}) {
    EXPECT_NE(message_of(text), "accepted") << text;
  }
}

TEST(Config, SettingsOverride) {
  const std::vector<std::string> settings = {"train.lr=0.5", "train.steps=3",
                                             "model.hidden_size=32", "mixer.gain=sigmoid2",
                                             "mixer.rope=true"};
  const RunConfig config =
      parse_run_config(with_train(R"({"lr": 0.1})"), "test.json", {"", settings});
  EXPECT_EQ(config.train.lr, 0.5);
  EXPECT_EQ(config.train.steps, 3);
  EXPECT_EQ(config.model,
            json::parse(R"({"hidden_size": 32, "mixer": {"gain": "sigmoid2", "rope": true}})"));
}

TEST(Config, SettingsThatCanNotBeMeantAreRefused) {
  for (const char* setting : {"", "lr=1", "train.lr", "=1", "train.=1", "train.lr.deep=1",
                              "train.speed=1", "train.lr=fast", "model..x=1"}) {
    EXPECT_NE(message_of(with_train(R"({"lr": 0.1})"), {setting}), "accepted") << setting;
  }
}

TEST(Config, NamesTheFirstDifference) {
  EXPECT_EQ(first_difference(R"({"a": 1})", R"({"a": 1})"), "");
  EXPECT_EQ(first_difference(R"({"train": {"lr": 0.1}})", R"({"train": {"lr": 0.2}})"),
            "train.lr was 0.1, now 0.2");
  EXPECT_EQ(first_difference(R"({"a": {"b": 1}})", R"({"a": {}})"), "a.b was 1, now absent");
  EXPECT_EQ(first_difference(R"({"a": {}})", R"({"a": {"b": [1]}})"), "a.b was absent, now [1]");
}

}  // namespace
}  // namespace rankone::train
