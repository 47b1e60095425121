#pragma once

// Reads the keys of one JSON object of a configuration: types, ranges, names. Every failure is
// Status::invalid_argument and names the file, the key and what would be right.

#include <array>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.hpp"
#include "core/status.hpp"

namespace rankone::model {

class ConfigReader {
 public:
  // `prefix` is put before the keys in messages: "mixer.".
  ConfigReader(const Json& object, std::string where, std::string prefix = "");

  // A key that is absent or null has its default.
  bool has(std::string_view key);
  const Json* find(std::string_view key);  // null: absent or null
  std::int64_t integer(std::string_view key, std::int64_t otherwise, std::int64_t low,
                       std::int64_t high);
  std::optional<std::int64_t> optional_integer(std::string_view key,
                                               std::optional<std::int64_t> otherwise,
                                               std::int64_t low, std::int64_t high);
  double number(std::string_view key, double otherwise, double low, double high);
  bool flag(std::string_view key, bool otherwise);
  std::string text(std::string_view key, std::string_view otherwise);
  // Index of the text among `names`.
  std::size_t choice(std::string_view key, std::size_t otherwise,
                     std::span<const std::string_view> names);

  // Known, but of no effect here.
  void ignore(std::initializer_list<std::string_view> keys);
  // Refuses a key that is present with any value but null, false or `allowed`.
  void unsupported(std::string_view key, std::string_view reason, const Json& allowed = nullptr);
  [[noreturn]] void refuse(std::string_view key, const std::string& reason) const;
  template <class... Args>
  void check(bool condition, std::string_view key, fmt::format_string<Args...> format,
             Args&&... args) const {
    if (!condition) refuse(key, fmt::format(format, std::forward<Args>(args)...));
  }

  // Fails on a key that was not asked for, naming the nearest one.
  void refuse_unknown() const;

  const std::string& where() const { return where_; }

 private:
  std::string shown(std::string_view key) const;

  const Json& object_;
  std::string where_;
  std::string prefix_;
  std::set<std::string, std::less<>> known_;
};

// A JSON number that may be infinite: a number, or the object that stands for Infinity.
double json_number(const Json& value, bool& valid);
Json number_to_json(double value);

}  // namespace rankone::model
