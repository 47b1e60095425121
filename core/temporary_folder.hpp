#pragma once

#include <filesystem>
#include <string_view>

namespace rankone {

// A folder of its own among the system's temporary files, empty at first and gone with its content
// when the object is. `purpose` becomes part of its name. Fails with Status::io.
class TemporaryFolder {
 public:
  explicit TemporaryFolder(std::string_view purpose);
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::filesystem::path& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

}  // namespace rankone
