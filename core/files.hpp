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

namespace rankone {

// The whole file; fails with io if it can not be read and with corrupt if it is longer than
// `limit`.
std::string read_file(const std::filesystem::path& file, std::size_t limit);

// Replaces `file` with what `write` produces: a temporary file in the same folder, write, fsync,
// rename, fsync of the folder. On any failure the old file is untouched, the temporary one is
// removed, and Error (io) says which call failed.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path file);
  ~AtomicFile();  // without commit(): removes the temporary file
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text);
  void commit();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};
void write_file(const std::filesystem::path& file, std::string_view content);  // atomic

// Makes the entry of `directory` durable (fsync).
void sync_directory(const std::filesystem::path& directory);

// A read-only map of a whole file. Empty files map to an empty span.
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

// SHA-256 in hex, and CRC-32C (Castagnoli; TensorBoard's and our checkpoints' checksum).
std::string sha256(std::span<const std::byte> bytes);
std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t seed = 0);

// Fault injection for tests: called before every write, fsync and rename with its running number
// and name; a non-zero result is the errno the call then fails with, without being made. Empty:
// none.
using FaultHook = std::function<int(std::int64_t call, std::string_view operation)>;
void set_fault_hook(FaultHook hook);

}  // namespace rankone
