#include "train/config.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <variant>

#include "core/files.hpp"
#include "core/nearest.hpp"
#include "core/status.hpp"
#include "core/text.hpp"
#include "model/config.hpp"

namespace rankone::train {
namespace {

constexpr std::size_t kLargestConfig = std::size_t{1} << 20;

// One key: where its value goes and what it may be.
struct Key {
  std::string_view name;
  std::variant<std::int64_t TrainConfig::*, std::uint64_t TrainConfig::*, double TrainConfig::*,
               bool TrainConfig::*>
      member;
  double low = 0;
  double high = 0;
};

constexpr double kMany = 1e12;  // of counts: far beyond any use, far below overflow

const std::vector<Key>& keys() {
  static const std::vector<Key> list = {
      {"seq_len", &TrainConfig::seq_len, 1, 1 << 24},
      {"batch_tokens", &TrainConfig::batch_tokens, 1, 1 << 30},
      {"micro_batch_tokens", &TrainConfig::micro_batch_tokens, 0, 1 << 30},
      {"steps", &TrainConfig::steps, 0, 1e9},
      {"lr", &TrainConfig::lr, 0, 10},
      {"lr_min_fraction", &TrainConfig::lr_min_fraction, 0, 1},
      {"warmup", &TrainConfig::warmup, 0, 1e9},
      {"weight_decay", &TrainConfig::weight_decay, 0, 10},
      {"beta1", &TrainConfig::beta1, 0, 0.9999999},
      {"beta2", &TrainConfig::beta2, 0, 0.9999999},
      {"clip", &TrainConfig::clip, 0, 1e9},
      {"seed", &TrainConfig::seed, 0, 0x1p63},
      {"valid_fraction", &TrainConfig::valid_fraction, 0, 0.9},
      {"vocab_size", &TrainConfig::vocab_size, 0, 1 << 18},
      {"log_every", &TrainConfig::log_every, 1, 1e6},
      {"eval_every", &TrainConfig::eval_every, 0, 1e9},
      {"eval_tokens", &TrainConfig::eval_tokens, 1, kMany},
      {"checkpoint_every", &TrainConfig::checkpoint_every, 0, 1e9},
      {"recompute", &TrainConfig::recompute, 0, 0},
  };
  return list;
}

void read_value(const Json& value, const Key& key, TrainConfig& config) {
  if (const auto* flag = std::get_if<bool TrainConfig::*>(&key.member)) {
    require(value.is_boolean(), "[config] train.{} is {} (must be true or false)", key.name,
            value.dump());
    config.*(*flag) = value.get<bool>();
    return;
  }
  const bool real = std::holds_alternative<double TrainConfig::*>(key.member);
  require(real ? value.is_number() : value.is_number_integer(),
          "[config] train.{} is {} (must be {})", key.name, value.dump(),
          real ? "a number" : "an integer");
  const double number = value.get<double>();
  require(number >= key.low && number <= key.high, "[config] train.{} is {} (must be in [{}, {}])",
          key.name, value.dump(), key.low, key.high);
  if (const auto* count = std::get_if<std::int64_t TrainConfig::*>(&key.member)) {
    config.*(*count) = value.get<std::int64_t>();
  } else if (const auto* seed = std::get_if<std::uint64_t TrainConfig::*>(&key.member)) {
    config.*(*seed) = value.get<std::uint64_t>();
  } else {
    config.*std::get<double TrainConfig::*>(key.member) = number;
  }
}

void check_together(const TrainConfig& config) {
  require(config.batch_tokens >= config.seq_len,
          "[config] train.batch_tokens is {} (must be at least train.seq_len, {})",
          config.batch_tokens, config.seq_len);
  require(config.micro_batch_tokens == 0 || config.micro_batch_tokens >= config.seq_len,
          "[config] train.micro_batch_tokens is {} (must be 0 or at least train.seq_len, {})",
          config.micro_batch_tokens, config.seq_len);
}

// "train.lr=0.01" into root["train"]["lr"].
void apply_setting(Json& root, const std::string& setting) {
  const std::size_t equals = setting.find('=');
  require(equals != std::string::npos && equals > 0,
          "[--set] got '{}' (must be train.KEY=VALUE, model.KEY=VALUE or mixer.KEY=VALUE)",
          setting);
  std::string path = setting.substr(0, equals);
  if (path.rfind("mixer.", 0) == 0) path = "model." + path;
  require(path.rfind("train.", 0) == 0 || path.rfind("model.", 0) == 0,
          "[--set] got '{}' (a key begins with train., model. or mixer.)", setting);
  const std::string text = setting.substr(equals + 1);
  Json value = Json::parse(text, nullptr, false);
  if (value.is_discarded()) value = text;
  Json* at = &root;
  std::size_t begin = 0;
  while (true) {
    const std::size_t dot = path.find('.', begin);
    const std::string name = path.substr(begin, dot - begin);
    require(!name.empty(), "[--set] got '{}' (a part of the key is empty)", setting);
    require(at->is_object() || at->is_null(), "[--set] '{}': {} is no object", setting,
            path.substr(0, begin == 0 ? 0 : begin - 1));
    at = &(*at)[name];
    if (dot == std::string::npos) break;
    begin = dot + 1;
  }
  *at = std::move(value);
}

std::string difference(const Json& before, const Json& now, const std::string& path) {
  if (before == now) return "";
  if (before.is_object() && now.is_object()) {
    for (const auto& [key, value] : before.items()) {
      const std::string name = path.empty() ? key : path + "." + key;
      if (!now.contains(key)) return fmt::format("{} was {}, now absent", name, value.dump());
      std::string found = difference(value, now.at(key), name);
      if (!found.empty()) return found;
    }
    for (const auto& [key, value] : now.items()) {
      if (!before.contains(key)) {
        return fmt::format("{} was absent, now {}", path.empty() ? key : path + "." + key,
                           value.dump());
      }
    }
  }
  return fmt::format("{} was {}, now {}", path, before.dump(), now.dump());
}

}  // namespace

TrainConfig parse_train_config(const Json& value) {
  require(value.is_object(), "[config] train is {} (must be an object)", value.type_name());
  TrainConfig config;
  std::vector<std::string_view> names;
  for (const Key& key : keys()) names.push_back(key.name);
  for (const auto& item : value.items()) {
    const std::string& name = item.key();
    const auto key = std::find_if(keys().begin(), keys().end(),
                                  [&](const Key& candidate) { return candidate.name == name; });
    require(key != keys().end(), "[config] unknown key train.{} (the nearest one is train.{})",
            printable(name), nearest(name, names));
    read_value(item.value(), *key, config);
  }
  check_together(config);
  return config;
}

Json to_json(const TrainConfig& config) {
  Json result = Json::object();
  for (const Key& key : keys()) {
    std::visit([&](auto member) { result[std::string(key.name)] = config.*member; }, key.member);
  }
  return result;
}

RunConfig parse_run_config(std::string_view text, std::string_view where,
                           const Overrides& overrides) {
  Json root = parse_json(text, where);
  require(root.is_object(), "[config] {} holds {} (must be an object with model and train)", where,
          root.type_name());
  for (const auto& item : root.items()) {
    require(item.key() == "model" || item.key() == "train",
            "[config] {}: unknown key {} (must be model or train)", where, printable(item.key()));
    require(item.value().is_object(), "[config] {}: {} is {} (must be an object)", where,
            item.key(), item.value().type_name());
  }
  require(root.contains("model"), "[config] {} has no model", where);
  if (!overrides.mixer.empty()) {
    // It writes every key; a vocabulary that was left open stays so, for the tokenizer to decide.
    const bool open = !root["model"].contains("vocab_size");
    root["model"] = model::apply_mixer(root["model"], overrides.mixer, where);
    if (open) root["model"].erase("vocab_size");
  }
  for (const std::string& setting : overrides.settings) apply_setting(root, setting);
  RunConfig config;
  config.train = parse_train_config(root.value("train", Json::object()));
  config.model = std::move(root["model"]);
  return config;
}

RunConfig read_run_config(const std::filesystem::path& file, const Overrides& overrides) {
  return parse_run_config(read_file(file, kLargestConfig), file.string(), overrides);
}

std::string first_difference(std::string_view before, std::string_view now) {
  const Json old_value = Json::parse(before, nullptr, false);
  const Json new_value = Json::parse(now, nullptr, false);
  if (old_value.is_discarded() || new_value.is_discarded())
    return "the configuration is unreadable";
  return difference(old_value, new_value, "");
}

}  // namespace rankone::train
