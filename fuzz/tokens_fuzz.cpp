#include "core/files.hpp"
#include "data/tokens.hpp"
#include "fuzz/fuzz.hpp"

using namespace rankone;

namespace {

void open(const std::filesystem::path& path) {
  fuzz::accepts([&] {
    const data::TokenFile file = data::TokenFile::open(path);
    std::int64_t tokens = 0;
    for (std::int64_t d = 0; d < file.documents(); ++d) {
      fuzz::expect(file.begin(d) == tokens, "documents follow each other");
      for (; tokens < file.end(d); ++tokens) {
        fuzz::expect(file[tokens] >= 0 && file[tokens] < file.vocabulary(),
                     "ids are in the vocabulary");
      }
      file.document_bytes(d);
    }
    fuzz::expect(tokens == file.tokens(), "documents cover the tokens");
    if (tokens > 0) data::Batches(file, 3, 5, 1).at(2);
  });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const fuzz::MemoryFile file("tokens");
  const std::string_view text = fuzz::text_of(data, size);
  open(file.put(text));
  // With a checksum that holds, or nothing behind it would ever be reached.
  const std::string_view body = text.substr(0, size < 64 ? 0 : size - 64);
  const std::string hash = sha256(std::as_bytes(std::span<const char>(body.data(), body.size())));
  open(file.put(std::string(body) + hash));
  return 0;
}
