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

#include "core/status.hpp"
#include "core/temporary_folder.hpp"

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
  explicit MemoryFile(const std::string& name)
      : descriptor_(::memfd_create("fuzz", 0)), folder_("fuzz"), path_(folder_ / name) {
    expect(descriptor_ >= 0, "files can be made");
    std::filesystem::create_symlink("/proc/self/fd/" + std::to_string(descriptor_), path_);
  }
  ~MemoryFile() { ::close(descriptor_); }
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
  TemporaryFolder folder_;
  std::filesystem::path path_;
};

}  // namespace rankone::fuzz
