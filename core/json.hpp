#pragma once

// JSON from outside, under limits.

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string_view>

namespace rankone {

using Json = nlohmann::json;

struct JsonLimits {
  std::size_t bytes = std::size_t{16} << 20;
  int depth = 64;
};

// Parses one JSON value. Beyond the standard it reads the literals Infinity, -Infinity and NaN that
// Python writes, as the objects {"__float__": "Infinity"} and so on that newer Python tools write
// in their place. Refused as corrupt, with `where`, line and column: invalid UTF-8, NUL bytes,
// duplicate keys, numbers beyond double, text beyond the limits.
Json parse_json(std::string_view text, std::string_view where, const JsonLimits& limits = {});

}  // namespace rankone
