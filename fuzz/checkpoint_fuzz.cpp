#include "train/checkpoint.hpp"

#include "core/files.hpp"
#include "fuzz/fuzz.hpp"

using namespace rankone;

namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span<const char>(text.data(), text.size()));
}

template <class T>
void append(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof(T));
}

void parse(std::string_view text) {
  train::Checkpoint checkpoint;
  if (!fuzz::accepts([&] { checkpoint = train::parse_checkpoint(bytes_of(text), "x"); })) return;
  const std::string once = train::format_checkpoint(checkpoint);
  const train::Checkpoint again = train::parse_checkpoint(bytes_of(once), "x");
  fuzz::expect(again.step == checkpoint.step && again.config == checkpoint.config,
               "what was read can be written");
  fuzz::expect(train::format_checkpoint(again) == once, "a written file is kept byte for byte");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input = fuzz::text_of(data, size);
  parse(input);
  // The checksum stops nearly every input at the door, so each is also the payload behind a right
  // one.
  std::string framed = "RANKCKPT";
  append(framed, std::uint64_t{1});
  append(framed, static_cast<std::uint64_t>(size));
  framed.append(input);
  append(framed, crc32c(bytes_of(framed)));
  parse(framed);
  return 0;
}
