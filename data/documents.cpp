// Text from files and folders as documents, and the split that holds some of it out.

#include <algorithm>
#include <system_error>

#include "core/files.hpp"
#include "core/json.hpp"
#include "core/status.hpp"
#include "core/text.hpp"
#include "data/tokens.hpp"

namespace rankone::data {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kLargestFile = std::size_t{1} << 36;
constexpr std::size_t kHeldOutFrom = 100'000;  // bytes; shorter documents stay whole

void check_utf8(std::string_view text, const fs::path& file) {
  const std::size_t bad = utf8_error(text);
  if (bad < text.size()) {
    fail(Status::corrupt, "[data] {}: byte {} (0x{:02x}) is not UTF-8", file.string(), bad,
         static_cast<unsigned char>(text[bad]));
  }
}

// One object with a string `text` a line; empty lines are passed over.
void read_jsonl(const fs::path& file, std::string_view content, std::vector<Document>& documents) {
  std::size_t number = 0;
  for (std::size_t at = 0; at < content.size();) {
    const std::size_t end = std::min(content.find('\n', at), content.size());
    const std::string_view line = content.substr(at, end - at);
    at = end + 1;
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const std::string where = fmt::format("{}:{}", file.string(), number);
    Json object = parse_json(line, where, {.bytes = std::size_t{1} << 30, .depth = 64});
    const auto text = object.is_object() ? object.find("text") : object.end();
    if (text == object.end() || !text->is_string()) {
      fail(Status::corrupt, "[data] {}: no object with a string \"text\"", where);
    }
    auto& value = text->get_ref<std::string&>();
    if (!value.empty()) documents.push_back({where, std::move(value)});
  }
}

void read_one(const fs::path& file, std::vector<Document>& documents) {
  std::string content = read_file(file, kLargestFile);
  check_utf8(content, file);
  if (file.extension() == ".jsonl") {
    read_jsonl(file, content, documents);
  } else if (!content.empty()) {
    documents.push_back({file.string(), std::move(content)});
  }
}

// The files of a folder and of its subfolders, in byte order of their paths. Hidden ones are left
// out; links to files are read, links to folders (which may run in circles) are not followed.
std::vector<fs::path> files_below(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  fs::recursive_directory_iterator it(folder, error);
  const auto check = [&] {
    if (error) fail(Status::io, "[data] {}: {}", folder.string(), error.message());
  };
  check();
  for (; it != fs::recursive_directory_iterator(); it.increment(error), check()) {
    if (it->path().filename().native().starts_with('.')) {
      it.disable_recursion_pending();
    } else if (it->is_regular_file(error)) {
      files.push_back(it->path());
    }
  }
  std::sort(files.begin(), files.end(),
            [](const fs::path& a, const fs::path& b) { return a.native() < b.native(); });
  return files;
}

// The line start nearest to `wanted`: after it if there is one, else before; 0 or the end: none.
std::size_t line_start(std::string_view text, std::size_t wanted) {
  const std::size_t after = text.find('\n', wanted);
  if (after != std::string_view::npos && after + 1 < text.size()) return after + 1;
  return text.substr(0, wanted).rfind('\n') + 1;  // npos + 1 == 0
}

}  // namespace

std::vector<Document> read_documents(const fs::path& path) {
  std::vector<Document> documents;
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) {
    for (const fs::path& file : files_below(path)) read_one(file, documents);
  } else {
    read_one(path, documents);
  }
  if (documents.empty()) {
    fail(Status::invalid_argument, "[data] {} holds no text", path.string());
  }
  return documents;
}

Split hold_out(std::vector<Document> documents, double fraction) {
  require(fraction >= 0 && fraction < 1, "[data] the held-out fraction {} (0 to below 1)",
          fraction);
  Split split;
  for (Document& document : documents) {
    std::string& text = document.text;
    std::size_t cut = text.size();
    if (text.size() > kHeldOutFrom && fraction > 0) {
      cut = line_start(text,
                       static_cast<std::size_t>(static_cast<double>(text.size()) * (1 - fraction)));
    }
    if (cut > 0 && cut < text.size()) {
      split.valid.push_back({document.name, text.substr(cut)});
      text.resize(cut);
    }
    split.train.push_back(std::move(document));
  }
  return split;
}

}  // namespace rankone::data
