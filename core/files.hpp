#pragma once

// Files: whole-file reads with a cap, atomic replacement that survives a crash, memory maps,
// hashes.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "core/hash.hpp"

namespace rankone {

// The whole file; fails with io if it can not be read and with corrupt if it is longer than
// `limit`. Pipes and devices are read to their end.
std::string read_file(const std::filesystem::path& file, std::size_t limit);

// Reads parts of a regular file at given offsets.
class FileReader {
 public:
  explicit FileReader(const std::filesystem::path& file);
  FileReader(FileReader&&) noexcept;
  FileReader& operator=(FileReader&&) noexcept;
  ~FileReader();
  std::uint64_t size() const;  // when it was opened
  // Fills `into` from `offset`; fails with corrupt where the file ends before.
  void read(std::uint64_t offset, std::span<std::byte> into) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Replaces `file` with what was written: a temporary file .NAME.tmp in the same folder, write,
// fsync, rename, fsync of the folder. On a failure the old file is untouched, the temporary one is
// removed, and Error (io) says which call failed. (If only the last call fails, the fsync of the
// folder, the complete new file is in place but may not outlast a power cut.) A temporary file
// that a killed process left behind is taken over; one that another process is writing is an
// error.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path file);
  ~AtomicFile();  // without commit(): removes the temporary file
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  void write(std::span<const std::byte> bytes);  // buffered: small pieces are cheap
  void write(std::string_view text);
  void commit();  // once, last

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};
void write_file(const std::filesystem::path& file, std::string_view content);  // atomic

// Makes the entries of `directory` durable (fsync).
void sync_directory(const std::filesystem::path& directory);

// Renames a file, or a folder onto an absent or empty one, and makes the new entry durable.
void replace_path(const std::filesystem::path& from, const std::filesystem::path& to);

// A read-only map of a whole regular file. Empty files map to an empty span. Nothing may shorten
// the file meanwhile: the kernel answers reads past the end with SIGBUS.
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& file);
  MappedFile(MappedFile&&) noexcept;
  MappedFile& operator=(MappedFile&&) noexcept;
  ~MappedFile();
  std::span<const std::byte> bytes() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Fault injection for tests: called before every write, fsync and rename with its running number
// (from 0 for each hook) and name. A positive result is the errno the call then fails with, without
// being made; a negative one, -n, makes a write short: at most n bytes. Empty: none.
using FaultHook = std::function<int(std::int64_t call, std::string_view operation)>;
void set_fault_hook(FaultHook hook);

}  // namespace rankone
