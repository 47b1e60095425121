#pragma once

// What every fuzz target shares. A target may throw rankone::Error, which is how a parser refuses
// an input; anything else that leaves it, and every sanitizer report, is a finding.

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <system_error>

#include "core/status.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace rankone::fuzz {

inline std::string_view text_of(const std::uint8_t* data, std::size_t size) {
  // libFuzzer passes a null pointer for the empty input.
  return size == 0 ? std::string_view("", 0)
                   : std::string_view(reinterpret_cast<const char*>(data), size);
}

// Stops the run where an accepted input does not behave as promised.
inline void expect(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "broken promise: %s\n", what);
  std::abort();
}

// True if `work` accepted its input.
template <class Work>
bool accepts(Work&& work) {
  try {
    work();
    return true;
  } catch (const Error& error) {
    expect(std::string_view(error.what()).find('\n') == std::string_view::npos,
           "a message is one line");
    expect(error.status() == Status::corrupt || error.status() == Status::unsupported ||
               error.status() == Status::invalid_argument,
           "a bad input is no failure of the machine");
    return false;
  }
}

// A file in memory under a path of its own, for parsers that open files. (The temporary folder
// holds only a link to it: disks are slow, and a fuzzer asks for thousands of files a second.)
class MemoryFile {
 public:
  explicit MemoryFile(const std::string& name) : descriptor_(::memfd_create("fuzz", 0)) {
    std::string pattern = (std::filesystem::temp_directory_path() / "rankone-fuzz-XXXXXX").string();
    expect(descriptor_ >= 0 && ::mkdtemp(pattern.data()) != nullptr, "files can be made");
    folder_ = pattern;
    path_ = folder_ / name;
    std::filesystem::create_symlink("/proc/self/fd/" + std::to_string(descriptor_), path_);
  }
  ~MemoryFile() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
    ::close(descriptor_);
  }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  const std::filesystem::path& put(std::string_view content) const {
    expect(::ftruncate(descriptor_, 0) == 0 && ::pwrite(descriptor_, content.data(), content.size(),
                                                        0) == static_cast<ssize_t>(content.size()),
           "memory can be written");
    return path_;
  }

 private:
  int descriptor_;
  std::filesystem::path folder_;
  std::filesystem::path path_;
};

}  // namespace rankone::fuzz
