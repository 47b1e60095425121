#include "core/temporary_folder.hpp"

#include <unistd.h>

#include <cstdlib>
#include <string>
#include <system_error>

#include "core/status.hpp"

namespace rankone {

namespace fs = std::filesystem;

TemporaryFolder::TemporaryFolder(std::string_view purpose) {
  std::string pattern =
      (fs::temp_directory_path() / "rankone-").string() + std::string(purpose) + "-XXXXXX";
  if (::mkdtemp(pattern.data()) == nullptr) {
    fail(Status::io, "[files] can not make a temporary folder {}", pattern);
  }
  path_ = pattern;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

}  // namespace rankone
