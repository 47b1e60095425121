#include <algorithm>
#include <set>

#include "core/files.hpp"
#include "core/json.hpp"
#include "core/safetensors.hpp"
#include "core/status.hpp"
#include "core/text.hpp"

namespace rankone {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostTensors = 65536;

void check_shard_name(const std::string& shard, std::string_view where) {
  constexpr std::string_view kSuffix = ".safetensors";
  // A base name and no more: an index must not reach outside its folder.
  const bool plain = shard.size() > kSuffix.size() && shard.size() <= 255 && shard.front() != '.' &&
                     shard.ends_with(kSuffix) && control_free(shard) &&
                     shard.find_first_of("/\\") == std::string::npos;
  if (!plain) {
    fail(Status::corrupt,
         "[safetensors] {}: {} can not name a shard (NAME.safetensors, without a "
         "folder)",
         where, printable(shard));
  }
}

TensorFile read_sharded(const fs::path& index) {
  const std::string where = index.string();
  const auto shard_of = parse_shard_index(read_file(index, JsonLimits{}.bytes), where);
  std::set<std::string> shards;
  for (const auto& [tensor, shard] : shard_of) shards.insert(shard);
  TensorFile whole;
  for (const std::string& shard : shards) {
    TensorFile part = read_safetensors(index.parent_path() / shard);
    for (auto& [name, tensor] : part.tensors) {
      const auto found = shard_of.find(name);
      if (found == shard_of.end() || found->second != shard) {
        fail(Status::corrupt, "[safetensors] {}: {} holds {}, which the index does not place there",
             where, printable(shard), printable(name));
      }
      whole.add(std::move(name), std::move(tensor));
    }
    for (auto& pair : part.metadata) {
      const bool known = std::any_of(whole.metadata.begin(), whole.metadata.end(),
                                     [&](const auto& other) { return other.first == pair.first; });
      if (!known) whole.metadata.push_back(std::move(pair));
    }
  }
  // Every tensor that was found stands in the index; equal counts leave none that was not found.
  if (whole.tensors.size() != shard_of.size()) {
    for (const auto& [tensor, shard] : shard_of) {
      if (whole.find(tensor) == nullptr) {
        fail(Status::corrupt, "[safetensors] {}: {} does not hold {}", where, printable(shard),
             printable(tensor));
      }
    }
  }
  return whole;
}

}  // namespace

std::map<std::string, std::string> parse_shard_index(std::string_view text,
                                                     std::string_view where) {
  const Json index = parse_json(text, where);
  const auto map = index.find("weight_map");
  if (!index.is_object() || map == index.end() || !map->is_object()) {
    fail(Status::corrupt, "[safetensors] {}: no object weight_map", where);
  }
  std::map<std::string, std::string> shards;
  for (const auto& [tensor, shard] : map->items()) {
    if (!shard.is_string()) {
      fail(Status::corrupt, "[safetensors] {}: the shard of {} is no string", where,
           printable(tensor));
    }
    check_shard_name(shard.get_ref<const std::string&>(), where);
    shards.emplace(tensor, shard.get_ref<const std::string&>());
  }
  if (shards.size() > kMostTensors) {
    fail(Status::corrupt, "[safetensors] {}: {} tensors (at most {})", where, shards.size(),
         kMostTensors);
  }
  return shards;
}

TensorFile read_safetensors_model(const fs::path& path) {
  if (path.extension() == ".json") return read_sharded(path);
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) return read_safetensors(path);
  const fs::path single = path / "model.safetensors";
  const fs::path index = path / "model.safetensors.index.json";
  if (!fs::exists(single, ignored) && fs::exists(index, ignored)) return read_sharded(index);
  return read_safetensors(single);
}

}  // namespace rankone
