#include "core/text.hpp"
#include "data/tokens.hpp"
#include "fuzz/fuzz.hpp"

using namespace rankone;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const fuzz::MemoryFile plain("input.txt");
  static const fuzz::MemoryFile lines("input.jsonl");
  const std::string_view text = fuzz::text_of(data, size);
  for (const fuzz::MemoryFile* input : {&plain, &lines}) {
    const std::filesystem::path& file = input->put(text);
    fuzz::accepts([&] {
      for (const data::Document& document : data::read_documents(file)) {
        fuzz::expect(!document.text.empty() && utf8_error(document.text) == document.text.size(),
                     "a document is UTF-8");
      }
    });
  }
  return 0;
}
