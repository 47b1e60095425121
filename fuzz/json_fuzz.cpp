#include "core/json.hpp"

#include "fuzz/fuzz.hpp"

using namespace rankone;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Json value;
  if (fuzz::accepts([&] { value = parse_json(fuzz::text_of(data, size), "x"); })) {
    const std::string text = value.dump();
    fuzz::expect(parse_json(text, "x").dump() == text, "a written value is read back");
  }
  fuzz::accepts([&] { parse_json(fuzz::text_of(data, size), "x", {.bytes = 100, .depth = 3}); });
  return 0;
}
