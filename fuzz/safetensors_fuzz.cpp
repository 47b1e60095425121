#include "core/safetensors.hpp"

#include "fuzz/fuzz.hpp"

using namespace rankone;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes_of = [](std::string_view text) {
    return std::as_bytes(std::span<const char>(text.data(), text.size()));
  };
  TensorFile file;
  if (!fuzz::accepts([&] { file = parse_safetensors(bytes_of(fuzz::text_of(data, size)), "x"); })) {
    return 0;
  }
  // What was read can be written, and what was written here is kept byte for byte.
  const std::string once = format_safetensors(file);
  const TensorFile again = parse_safetensors(bytes_of(once), "x");
  fuzz::expect(again.metadata == file.metadata, "metadata is kept");
  fuzz::expect(format_safetensors(again) == once, "a written file is kept byte for byte");
  return 0;
}
