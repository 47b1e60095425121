#include "model/config_reader.hpp"

#include <cmath>
#include <limits>

#include "core/nearest.hpp"
#include "core/text.hpp"

namespace rankone::model {

ConfigReader::ConfigReader(const Json& object, std::string where, std::string prefix)
    : object_(object), where_(std::move(where)), prefix_(std::move(prefix)) {
  require(object.is_object(), "[config] {}: {} is {} (must be an object)", where_,
          prefix_.empty() ? "the configuration" : prefix_, object.type_name());
}

std::string ConfigReader::shown(std::string_view key) const { return prefix_ + std::string(key); }

void ConfigReader::refuse(std::string_view key, const std::string& reason) const {
  const auto found = object_.find(key);
  if (found == object_.end()) {
    fail(Status::invalid_argument, "[config] {}: {}: {}", where_, shown(key), reason);
  }
  const std::string value = found->dump(-1, ' ', true, Json::error_handler_t::replace);
  fail(Status::invalid_argument, "[config] {}: {} is {}: {}", where_, shown(key),
       value.size() > 80 ? value.substr(0, 77) + "..." : value, reason);
}

const Json* ConfigReader::find(std::string_view key) {
  known_.insert(std::string(key));
  const auto found = object_.find(key);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

bool ConfigReader::has(std::string_view key) { return find(key) != nullptr; }

std::int64_t ConfigReader::integer(std::string_view key, std::int64_t otherwise, std::int64_t low,
                                   std::int64_t high) {
  return *optional_integer(key, otherwise, low, high);
}

std::optional<std::int64_t> ConfigReader::optional_integer(std::string_view key,
                                                           std::optional<std::int64_t> otherwise,
                                                           std::int64_t low, std::int64_t high) {
  const Json* value = find(key);
  if (value == nullptr) return otherwise;
  // An unsigned value above 2^63 would wrap round.
  const bool fits = value->is_number_integer() &&
                    (!value->is_number_unsigned() ||
                     value->get<std::uint64_t>() <=
                         static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()));
  const std::int64_t number = fits ? value->get<std::int64_t>() : 0;
  check(fits && number >= low && number <= high, key, "must be an integer in [{}, {}]", low, high);
  return number;
}

double ConfigReader::number(std::string_view key, double otherwise, double low, double high) {
  const Json* value = find(key);
  if (value == nullptr) return otherwise;
  bool valid = true;
  const double number = json_number(*value, valid);
  check(valid && number >= low && number <= high, key, "must be a number in [{}, {}]", low, high);
  return number;
}

bool ConfigReader::flag(std::string_view key, bool otherwise) {
  const Json* value = find(key);
  if (value == nullptr) return otherwise;
  check(value->is_boolean(), key, "must be true or false");
  return value->get<bool>();
}

std::string ConfigReader::text(std::string_view key, std::string_view otherwise) {
  const Json* value = find(key);
  if (value == nullptr) return std::string(otherwise);
  check(value->is_string(), key, "must be a text");
  return value->get<std::string>();
}

std::size_t ConfigReader::choice(std::string_view key, std::size_t otherwise,
                                 std::span<const std::string_view> names) {
  const std::string value = text(key, names[otherwise]);
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (names[i] == value) return i;
  }
  std::string all;
  for (const std::string_view name : names) all.append(all.empty() ? "" : ", ").append(name);
  refuse(key, fmt::format("must be one of {}; nearest: {}", all, nearest(value, names)));
}

void ConfigReader::ignore(std::initializer_list<std::string_view> keys) {
  for (const std::string_view key : keys) known_.insert(std::string(key));
}

void ConfigReader::unsupported(std::string_view key, std::string_view reason, const Json& allowed) {
  const Json* value = find(key);
  if (value == nullptr || *value == allowed || *value == Json(false)) return;
  refuse(key, fmt::format("not supported ({})", reason));
}

void ConfigReader::refuse_unknown() const {
  const std::vector<std::string_view> names(known_.begin(), known_.end());
  for (const auto& [key, value] : object_.items()) {
    require(known_.contains(key), "[config] {}: unknown key {} (nearest: {})", where_,
            printable(shown(key)), shown(nearest(key, names)));
  }
}

double json_number(const Json& value, bool& valid) {
  if (value.is_number()) return value.get<double>();
  const auto found = value.is_object() ? value.find("__float__") : value.end();
  if (value.is_object() && found != value.end() && found->is_string()) {
    const auto text = found->get<std::string>();
    if (text == "Infinity") return std::numeric_limits<double>::infinity();
    if (text == "-Infinity") return -std::numeric_limits<double>::infinity();
  }
  valid = false;
  return 0;
}

Json number_to_json(double value) {
  if (std::isfinite(value)) return value;
  return Json{{"__float__", value > 0 ? "Infinity" : "-Infinity"}};
}

}  // namespace rankone::model
