#include "eval/text.hpp"

#include <cstdint>
#include <vector>

#include "core/status.hpp"
#include "core/temporary_folder.hpp"

namespace rankone::eval {

namespace fs = std::filesystem;

data::TokenFile open_text(const fs::path& path, const data::Tokenizer& tokenizer) {
  if (data::TokenFile::recognises(path)) {
    data::TokenFile file = data::TokenFile::open(path);
    require(file.tokenizer_hash() == tokenizer.hash(),
            "[eval] {} was written with another tokenizer, of hash {:.12} (must be {:.12})",
            path.string(), file.tokenizer_hash(), tokenizer.hash());
    return file;
  }
  const std::vector<data::Document> documents = data::read_documents(path);
  // The map of a file outlives its name.
  const TemporaryFolder folder("eval");
  const fs::path tokens = folder / "text.tokens";
  data::TokenFile::build(tokens, documents, tokenizer);
  return data::TokenFile::open(tokens);
}

Ngram count_ngrams(const data::TokenFile& file) {
  Ngram counts(file.vocabulary());
  std::vector<std::int32_t> tokens;
  for (std::int64_t document = 0; document < file.documents(); ++document) {
    tokens.clear();
    for (std::int64_t at = file.begin(document); at + 1 < file.end(document); ++at) {
      tokens.push_back(file[at]);
    }
    counts.add_document(tokens);
  }
  counts.finish();
  return counts;
}

}  // namespace rankone::eval
