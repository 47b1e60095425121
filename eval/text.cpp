#include "eval/text.hpp"

#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <system_error>
#include <vector>

#include "core/status.hpp"

namespace rankone::eval {
namespace {

namespace fs = std::filesystem;

// A folder that is gone with its content when the scope ends.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (fs::temp_directory_path() / "rankone-eval-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) {
      fail(Status::io, "[eval] can not make a temporary folder {}", pattern);
    }
    path_ = pattern;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

bool is_token_file(const fs::path& path) {
  constexpr std::string_view kMagic = "RANKTOK1";
  std::error_code none;
  if (!fs::is_regular_file(path, none)) return false;
  std::string first(kMagic.size(), '\0');
  std::ifstream file(path, std::ios::binary);
  file.read(first.data(), static_cast<std::streamsize>(first.size()));
  return file && first == kMagic;
}

}  // namespace

data::TokenFile open_text(const fs::path& path, const data::Tokenizer& tokenizer) {
  if (is_token_file(path)) {
    data::TokenFile file = data::TokenFile::open(path);
    require(file.tokenizer_hash() == tokenizer.hash(),
            "[eval] {} was written with another tokenizer, of hash {:.12} (must be {:.12})",
            path.string(), file.tokenizer_hash(), tokenizer.hash());
    return file;
  }
  const std::vector<data::Document> documents = data::read_documents(path);
  // The map of a file outlives its name.
  const TemporaryFolder folder;
  const fs::path tokens = folder.path() / "text.tokens";
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
