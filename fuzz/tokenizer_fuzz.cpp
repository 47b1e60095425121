#include "data/tokenizer.hpp"

#include "data/sentencepiece_check.hpp"
#include "fuzz/fuzz.hpp"

using namespace rankone;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view model = fuzz::text_of(data, size);
  fuzz::accepts([&] {
    const std::string passed = data::format_sentencepiece(data::check_sentencepiece(model, "x"));
    fuzz::expect(data::format_sentencepiece(data::check_sentencepiece(passed, "x")) == passed,
                 "what SentencePiece gets passes the check itself");
  });
  fuzz::accepts([&] {
    const data::Tokenizer tokenizer = data::Tokenizer::parse(std::string(model), "x");
    const std::string text = " the\n  caf\xc3\xa9 <0x0A>\n\nabab 42" + std::string(1, '\0');
    const auto ids = tokenizer.encode(text);
    for (const std::int32_t id : ids) {
      fuzz::expect(id >= 0 && id < tokenizer.size(), "ids are in the vocabulary");
    }
    tokenizer.decode(ids);
    std::vector<std::int32_t> all;
    for (std::int32_t id = 0; id < std::min(tokenizer.size(), 500); ++id) {
      fuzz::expect(tokenizer.piece_bytes(id) >= 0, "a piece has no negative length");
      all.push_back(id);
    }
    tokenizer.decode(all);
  });
  return 0;
}
