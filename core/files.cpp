#include "core/files.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <system_error>
#include <utility>
#include <vector>

#include "core/status.hpp"
#include "core/text.hpp"

namespace rankone {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kBuffer = std::size_t{1} << 20;
constexpr std::size_t kLargestWrite = std::size_t{64} << 20;

[[noreturn]] void fail_call(std::string_view operation, const fs::path& file, int error) {
  fail(Status::io, "[{}] {}: {}", operation, file.string(), std::generic_category().message(error));
}

// A file descriptor that closes itself.
class Descriptor {
 public:
  explicit Descriptor(int value = -1) : value_(value) {}
  Descriptor(Descriptor&& other) noexcept : value_(std::exchange(other.value_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(value_, other.value_);
    return *this;
  }
  ~Descriptor() { reset(); }
  int get() const { return value_; }
  void reset() {
    if (value_ >= 0) ::close(std::exchange(value_, -1));
  }

 private:
  int value_;
};

Descriptor open_file(const fs::path& file, int flags) {
  int descriptor = -1;
  do {
    descriptor = ::open(file.c_str(), flags | O_CLOEXEC, 0666);
  } while (descriptor < 0 && errno == EINTR);
  if (descriptor < 0) fail_call("open", file, errno);
  return Descriptor(descriptor);
}

struct stat status_of(const Descriptor& descriptor, const fs::path& file) {
  struct stat info {};
  if (::fstat(descriptor.get(), &info) != 0) fail_call("stat", file, errno);
  if (S_ISDIR(info.st_mode)) fail_call("open", file, EISDIR);
  return info;
}

// Opens a file of which the size means something.
Descriptor open_regular(const fs::path& file, std::uint64_t& size) {
  // Without O_NONBLOCK, opening a FIFO would wait for its writer.
  Descriptor descriptor = open_file(file, O_RDONLY | O_NONBLOCK);
  const struct stat info = status_of(descriptor, file);
  if (!S_ISREG(info.st_mode)) {
    fail(Status::io, "[open] {} is not a regular file", file.string());
  }
  size = static_cast<std::uint64_t>(info.st_size);
  return descriptor;
}

std::mutex hook_mutex;
FaultHook hook_function;
std::int64_t hook_calls = 0;

int injected(std::string_view operation) {
  const std::lock_guard lock(hook_mutex);
  return hook_function ? hook_function(hook_calls++, operation) : 0;
}

void write_all(const Descriptor& descriptor, const fs::path& file,
               std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    std::size_t wanted = std::min(bytes.size(), kLargestWrite);
    const int fault = injected("write");
    if (fault < 0) wanted = std::min(wanted, static_cast<std::size_t>(-fault));
    if (fault > 0) errno = fault;
    const ssize_t written = fault > 0 ? -1 : ::write(descriptor.get(), bytes.data(), wanted);
    if (written < 0) {
      if (errno == EINTR) continue;
      fail_call("write", file, errno);
    }
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

void sync(const Descriptor& descriptor, const fs::path& file) {
  while (true) {
    const int fault = injected("fsync");
    if (fault > 0) errno = fault;
    if (fault <= 0 && ::fsync(descriptor.get()) == 0) return;
    if (errno != EINTR) fail_call("fsync", file, errno);
  }
}

void rename_file(const fs::path& from, const fs::path& to) {
  const int fault = injected("rename");
  if (fault > 0) errno = fault;
  if (fault > 0 || ::rename(from.c_str(), to.c_str()) != 0) fail_call("rename", to, errno);
}

fs::path folder_of(const fs::path& file) {
  return file.has_parent_path() ? file.parent_path() : fs::path(".");
}

// The temporary file, empty and locked. The lock tells a file in use from one that a killed process
// left behind; a name of its own for every process would leave those for ever.
Descriptor open_temporary(const fs::path& temporary) {
  while (true) {
    Descriptor descriptor = open_file(temporary, O_WRONLY | O_CREAT | O_NOFOLLOW);
    if (::flock(descriptor.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno == EWOULDBLOCK) {
        fail(Status::io, "[open] {} is being written by another process", temporary.string());
      }
      fail_call("lock", temporary, errno);
    }
    // Its former owner may have renamed it between our open and lock: then this is no longer it.
    struct stat ours {};
    struct stat named {};
    if (::fstat(descriptor.get(), &ours) != 0) fail_call("stat", temporary, errno);
    if (::lstat(temporary.c_str(), &named) != 0 || ours.st_ino != named.st_ino ||
        ours.st_dev != named.st_dev) {
      continue;
    }
    if (::ftruncate(descriptor.get(), 0) != 0) fail_call("truncate", temporary, errno);
    return descriptor;
  }
}

}  // namespace

void set_fault_hook(FaultHook hook) {
  const std::lock_guard lock(hook_mutex);
  hook_function = std::move(hook);
  hook_calls = 0;
}

// ---- reading ----

std::string read_file(const fs::path& file, std::size_t limit) {
  const Descriptor descriptor = open_file(file, O_RDONLY);
  const struct stat info = status_of(descriptor, file);
  const auto too_long = [&] {
    fail(Status::corrupt, "[read] {} is longer than {} bytes", file.string(), limit);
  };
  std::string content;
  if (S_ISREG(info.st_mode)) {
    if (static_cast<std::uint64_t>(info.st_size) > limit) too_long();
    content.reserve(static_cast<std::size_t>(info.st_size));
  }
  // The size is only a hint: files of /proc claim 0, pipes have none, others may grow meanwhile.
  std::vector<char> buffer(std::size_t{64} << 10);
  while (true) {
    const ssize_t got = ::read(descriptor.get(), buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_call("read", file, errno);
    if (got == 0) return content;
    if (static_cast<std::size_t>(got) > limit - content.size()) too_long();
    content.append(buffer.data(), static_cast<std::size_t>(got));
  }
}

struct FileReader::Impl {
  fs::path file;
  std::uint64_t size = 0;
  Descriptor descriptor;
};

FileReader::FileReader(const fs::path& file) : impl_(std::make_unique<Impl>()) {
  impl_->file = file;
  impl_->descriptor = open_regular(file, impl_->size);
}
FileReader::FileReader(FileReader&&) noexcept = default;
FileReader& FileReader::operator=(FileReader&&) noexcept = default;
FileReader::~FileReader() = default;

std::uint64_t FileReader::size() const { return impl_->size; }

void FileReader::read(std::uint64_t offset, std::span<std::byte> into) const {
  while (!into.empty()) {
    const ssize_t got = ::pread(impl_->descriptor.get(), into.data(),
                                std::min(into.size(), kLargestWrite), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_call("read", impl_->file, errno);
    if (got == 0) {
      fail(Status::corrupt, "[read] {} ends at byte {}, wanted {} more", impl_->file.string(),
           offset, into.size());
    }
    into = into.subspan(static_cast<std::size_t>(got));
    offset += static_cast<std::uint64_t>(got);
  }
}

struct MappedFile::Impl {
  void* data = nullptr;
  std::size_t size = 0;
  ~Impl() {
    if (data != nullptr) ::munmap(data, size);
  }
};

MappedFile::MappedFile(const fs::path& file) : impl_(std::make_unique<Impl>()) {
  std::uint64_t size = 0;
  const Descriptor descriptor = open_regular(file, size);
  if (size == 0) return;
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, descriptor.get(), 0);
  if (data == MAP_FAILED) fail_call("map", file, errno);
  impl_->data = data;
  impl_->size = size;
}
MappedFile::MappedFile(MappedFile&&) noexcept = default;
MappedFile& MappedFile::operator=(MappedFile&&) noexcept = default;
MappedFile::~MappedFile() = default;

std::span<const std::byte> MappedFile::bytes() const {
  return {static_cast<const std::byte*>(impl_->data), impl_->size};
}

// ---- writing ----

void sync_directory(const fs::path& directory) {
  const Descriptor descriptor = open_file(directory, O_RDONLY | O_DIRECTORY);
  sync(descriptor, directory);
}

void replace_path(const fs::path& from, const fs::path& to) {
  rename_file(from, to);
  sync_directory(folder_of(to));
}

struct AtomicFile::Impl {
  fs::path file;
  fs::path temporary;
  Descriptor descriptor;
  std::vector<std::byte> buffer;

  void flush() {
    write_all(descriptor, temporary, buffer);
    buffer.clear();
  }
  // While it still exists under its temporary name; the lock is held until after.
  void remove() {
    if (descriptor.get() < 0) return;
    ::unlink(temporary.c_str());
    descriptor.reset();
  }
};

AtomicFile::AtomicFile(fs::path file) : impl_(std::make_unique<Impl>()) {
  struct stat info {};
  if (::stat(file.c_str(), &info) == 0 && !S_ISREG(info.st_mode)) {
    fail(Status::io, "[write] {} exists and is not a regular file", file.string());
  }
  require(file.has_filename(), "[write] {} is no name for a file", printable(file.string()));
  impl_->temporary = folder_of(file) / fmt::format(".{}.tmp", file.filename().string());
  impl_->file = std::move(file);
  impl_->descriptor = open_temporary(impl_->temporary);
  impl_->buffer.reserve(kBuffer);
}

AtomicFile::~AtomicFile() { impl_->remove(); }

void AtomicFile::write(std::span<const std::byte> bytes) {
  require(impl_->descriptor.get() >= 0, "[write] {} is already committed or failed",
          impl_->file.string());
  try {
    if (impl_->buffer.size() + bytes.size() > kBuffer) impl_->flush();
    if (bytes.size() >= kBuffer) {
      write_all(impl_->descriptor, impl_->temporary, bytes);
    } else {
      impl_->buffer.insert(impl_->buffer.end(), bytes.begin(), bytes.end());
    }
  } catch (...) {
    impl_->remove();  // a full disk wants its space back now
    throw;
  }
}

void AtomicFile::write(std::string_view text) {
  write(std::as_bytes(std::span<const char>(text.data(), text.size())));
}

void AtomicFile::commit() {
  require(impl_->descriptor.get() >= 0, "[write] {} is already committed or failed",
          impl_->file.string());
  try {
    impl_->flush();
    sync(impl_->descriptor, impl_->temporary);
    rename_file(impl_->temporary, impl_->file);
  } catch (...) {
    impl_->remove();
    throw;
  }
  impl_->descriptor.reset();
  sync_directory(folder_of(impl_->file));
}

void write_file(const fs::path& file, std::string_view content) {
  AtomicFile atomic(file);
  atomic.write(content);
  atomic.commit();
}

}  // namespace rankone
