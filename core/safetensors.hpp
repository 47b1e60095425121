#pragma once

// The safetensors format: u64 little-endian header length, JSON header, raw data. Files from
// outside are hostile; rules: every length is compared with the bytes that are left before anything
// is allocated, header at most 16 MiB, names at most 256 bytes, rank at most 8, at most 65,536
// tensors, no duplicate names, tensors in any order but covering the data exactly. Any alignment is
// read (by copy); files written here align the data at a multiple of 64. docs/formats.md has the
// details.

#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/tensor.hpp"

namespace rankone {

// Named tensors in the order of the file, with its metadata.
struct TensorFile {
  std::vector<std::pair<std::string, Tensor>> tensors;
  std::vector<std::pair<std::string, std::string>> metadata;

  const Tensor* find(std::string_view name) const;  // null: absent
  const Tensor& at(std::string_view name) const;    // fails with corrupt, naming the tensor
  void add(std::string name, Tensor tensor) {
    tensors.emplace_back(std::move(name), std::move(tensor));
  }
};

// F64, F32, BF16, F16, I64, I32, U32, U16. `where` names the source in messages.
TensorFile parse_safetensors(std::span<const std::byte> bytes, std::string_view where);
TensorFile read_safetensors(const std::filesystem::path& file);
// The weight_map of a model.safetensors.index.json: tensor name -> shard, a plain base name.
std::map<std::string, std::string> parse_shard_index(std::string_view text, std::string_view where);
// `path` is a .safetensors file, an index.json of shards with plain base names, or a folder that
// holds model.safetensors or model.safetensors.index.json. The tensors of shards are joined, in the
// byte order of the shards' names.
TensorFile read_safetensors_model(const std::filesystem::path& path);
// Keeps order and metadata. The result of reading a file that was written here is written byte for
// byte.
std::string format_safetensors(const TensorFile& file);
void write_safetensors(const std::filesystem::path& path, const TensorFile& file);  // atomic

}  // namespace rankone
