#include <map>

#include "core/safetensors.hpp"
#include "fuzz/fuzz.hpp"

using namespace rankone;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::accepts([&] {
    for (const auto& [tensor, shard] : parse_shard_index(fuzz::text_of(data, size), "x")) {
      const std::filesystem::path path(shard);
      fuzz::expect(path == path.filename() && shard.find('\0') == std::string::npos,
                   "a shard is a plain base name");
    }
  });
  return 0;
}
