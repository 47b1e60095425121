#include "core/files.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "core/status.hpp"
#include "core/text.hpp"
#include "tests/support/scratch.hpp"

namespace rankone {
namespace {

namespace fs = std::filesystem;
using test::Scratch;

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span<const char>(text.data(), text.size()));
}

std::string slurp(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

std::vector<std::string> entries(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename());
  return names;
}

template <class Work>
Status status_of(Work&& work) {
  try {
    work();
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    return error.status();
  }
  return Status::ok;
}

struct HookGuard {
  explicit HookGuard(FaultHook hook) { set_fault_hook(std::move(hook)); }
  ~HookGuard() { set_fault_hook({}); }
};

// More than the buffer of AtomicFile, so that a file takes several writes.
std::string long_text() {
  std::string text;
  for (int i = 0; text.size() < 3'000'000; ++i) text += std::to_string(i) + "\n";
  return text;
}

TEST(Hash, Sha256VectorsOfFips180) {
  EXPECT_EQ(sha256({}), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256(bytes_of("abc")),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256(bytes_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  const std::string million(1'000'000, 'a');
  EXPECT_EQ(sha256(bytes_of(million)),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Hash, Sha256OfPiecesIsThatOfTheWhole) {
  const std::string text = long_text().substr(0, 1000);
  for (const std::size_t piece : {1, 3, 55, 56, 63, 64, 65, 127, 999}) {
    Sha256 hash;
    for (std::size_t at = 0; at < text.size(); at += piece) {
      hash.update(bytes_of(std::string_view(text).substr(at, piece)));
    }
    EXPECT_EQ(hash.finish(), sha256(bytes_of(text))) << piece;
  }
}

TEST(Hash, Crc32cVectorsOfRfc3720) {
  EXPECT_EQ(crc32c(bytes_of("123456789")), 0xe3069283U);
  EXPECT_EQ(crc32c(bytes_of(std::string(32, '\0'))), 0x8a9136aaU);
  EXPECT_EQ(crc32c(bytes_of(std::string(32, '\xff'))), 0x62a8ab43U);
  std::string rising;
  for (char i = 0; i < 32; ++i) rising += i;
  EXPECT_EQ(crc32c(bytes_of(rising)), 0x46dd794eU);
  EXPECT_EQ(crc32c({}), 0U);
  for (std::size_t cut = 0; cut <= rising.size(); ++cut) {
    const std::string_view text = rising;
    EXPECT_EQ(crc32c(bytes_of(text.substr(cut)), crc32c(bytes_of(text.substr(0, cut)))),
              0x46dd794eU);
  }
}

TEST(Text, Utf8ErrorIsTheFirstBadByte) {
  EXPECT_EQ(utf8_error(""), 0U);
  EXPECT_EQ(utf8_error("plain and \xc3\xa9, \xe2\x82\xac, \xf0\x9f\x98\x80, \xf4\x8f\xbf\xbf"),
            29U);
  EXPECT_EQ(utf8_error("abc\x80"), 3U);
  EXPECT_EQ(utf8_error("12345678\xff"), 8U);
  for (const char* bad : {"\xc0\x80", "\xc1\xbf", "\xe0\x9f\xbf", "\xed\xa0\x80",
                          "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xc3",
                          "\xe2\x82", "\xe2\x82z", "\xf0\x9f\x98", "\xbf"}) {
    EXPECT_EQ(utf8_error(std::string("ok") + bad), 2U) << printable(bad);
  }
}

TEST(Text, PrintableIsOneShortLine) {
  EXPECT_EQ(printable("a\nb\x01\xff"), "'a\\x0ab\\x01\\xff'");
  EXPECT_LT(printable(std::string(10'000, '\n')).size(), 400U);
}

TEST(Files, ReadFileObeysItsLimit) {
  const Scratch scratch;
  const fs::path file = scratch / "file";
  write_file(file, "12345");
  EXPECT_EQ(read_file(file, 5), "12345");
  EXPECT_EQ(status_of([&] { read_file(file, 4); }), Status::corrupt);
  EXPECT_EQ(status_of([&] { read_file(scratch / "absent", 4); }), Status::io);
  EXPECT_EQ(status_of([&] { read_file(scratch.path(), 4); }), Status::io);
  // Endless, and of size 0 if one asks.
  EXPECT_EQ(status_of([&] { read_file("/dev/zero", 1000); }), Status::corrupt);
}

TEST(Files, ReaderAndMapSeeTheBytes) {
  const Scratch scratch;
  const std::string text = long_text();
  write_file(scratch / "file", text);
  const FileReader reader(scratch / "file");
  EXPECT_EQ(reader.size(), text.size());
  std::string part(100'000, ' ');
  reader.read(77, std::as_writable_bytes(std::span<char>(part)));
  EXPECT_EQ(part, text.substr(77, part.size()));
  EXPECT_EQ(status_of([&] {
              reader.read(text.size() - 1, std::as_writable_bytes(std::span<char>(part)));
            }),
            Status::corrupt);
  const MappedFile map(scratch / "file");
  EXPECT_EQ(sha256(map.bytes()), sha256(bytes_of(text)));

  write_file(scratch / "empty", "");
  EXPECT_TRUE(MappedFile(scratch / "empty").bytes().empty());
  EXPECT_EQ(status_of([&] { MappedFile(scratch.path()); }), Status::io);
  EXPECT_EQ(status_of([&] { FileReader("/dev/zero"); }), Status::io);
  ASSERT_EQ(::mkfifo((scratch / "fifo").c_str(), 0600), 0);
  EXPECT_EQ(status_of([&] { FileReader(scratch / "fifo"); }), Status::io);  // and does not wait
}

TEST(AtomicFile, ReplacesOnlyWhenCommitted) {
  const Scratch scratch;
  const fs::path file = scratch / "file";
  write_file(file, "old");
  {
    AtomicFile atomic(file);
    atomic.write("new");
    EXPECT_EQ(slurp(file), "old");
  }
  EXPECT_EQ(slurp(file), "old");
  EXPECT_EQ(entries(scratch.path()), std::vector<std::string>{"file"});
  AtomicFile atomic(file);
  atomic.write("n");
  atomic.write("ew");
  atomic.commit();
  EXPECT_EQ(slurp(file), "new");
  EXPECT_EQ(entries(scratch.path()), std::vector<std::string>{"file"});
  EXPECT_EQ(status_of([&] { atomic.commit(); }), Status::invalid_argument);
  EXPECT_EQ(status_of([&] { atomic.write("x"); }), Status::invalid_argument);
}

TEST(AtomicFile, RefusesWhatItCanNotReplace) {
  const Scratch scratch;
  EXPECT_EQ(status_of([&] { AtomicFile("/dev/null"); }), Status::io);
  EXPECT_EQ(status_of([&] { AtomicFile file(scratch.path()); }), Status::io);
  EXPECT_EQ(status_of([&] { AtomicFile(scratch / "absent" / "file"); }), Status::io);
  EXPECT_EQ(status_of([&] { AtomicFile(scratch / "name/"); }), Status::invalid_argument);
}

TEST(AtomicFile, WorksInTheCurrentFolder) {
  const Scratch scratch;
  const fs::path before = fs::current_path();
  fs::current_path(scratch.path());
  write_file("file", "text");
  fs::current_path(before);
  EXPECT_EQ(slurp(scratch / "file"), "text");
}

TEST(AtomicFile, TakesOverWhatAKilledProcessLeftButNotWhatIsInUse) {
  const Scratch scratch;
  const fs::path file = scratch / "file";
  std::ofstream(scratch / ".file.tmp") << "half of something longer than the new content";
  {
    AtomicFile first(file);
    EXPECT_EQ(status_of([&] { AtomicFile second(file); }), Status::io);
    first.write("new");
    first.commit();
  }
  EXPECT_EQ(slurp(file), "new");
  // A link planted under the temporary name is not followed.
  fs::create_symlink(scratch / "file", scratch / ".file.tmp");
  EXPECT_EQ(status_of([&] { write_file(file, "through a link"); }), Status::io);
  EXPECT_EQ(slurp(file), "new");
}

// Fails the i-th call for every i: afterwards the old content is whole and nothing else is left.
class FaultTest : public testing::TestWithParam<int> {};

TEST_P(FaultTest, EveryFailedCallLeavesTheOldFile) {
  const Scratch scratch;
  const fs::path file = scratch / "file";
  const std::string old_text = "old";
  const std::string new_text = long_text();
  std::vector<std::string> calls;
  {
    const HookGuard guard([&](std::int64_t, std::string_view operation) {
      calls.emplace_back(operation);
      return 0;
    });
    write_file(file, new_text);
    const AtomicFile unused(scratch / "other");  // not a call
  }
  ASSERT_GE(calls.size(), 4U);
  ASSERT_EQ(std::vector<std::string>(calls.end() - 3, calls.end()),
            (std::vector<std::string>{"fsync", "rename", "fsync"}));

  for (std::size_t i = 0; i < calls.size(); ++i) {
    write_file(file, old_text);
    {
      const HookGuard guard([&](std::int64_t call, std::string_view) {
        return call == static_cast<std::int64_t>(i) ? GetParam() : 0;
      });
      EXPECT_EQ(status_of([&] { write_file(file, new_text); }), Status::io) << "call " << i;
    }
    // The last call comes after the rename: there the complete new file is in place.
    EXPECT_EQ(slurp(file), i + 1 < calls.size() ? old_text : new_text) << "call " << i;
    EXPECT_EQ(entries(scratch.path()), std::vector<std::string>{"file"}) << "call " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Errors, FaultTest, testing::Values(ENOSPC, EIO));

TEST(AtomicFile, ErrorNamesCallAndCause) {
  const Scratch scratch;
  const HookGuard guard(
      [](std::int64_t, std::string_view operation) { return operation == "rename" ? ENOSPC : 0; });
  try {
    write_file(scratch / "file", "text");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.what(),
              "[rename] " + (scratch / "file").string() + ": No space left on device");
  }
}

TEST(AtomicFile, ShortAndInterruptedWritesAreContinued) {
  const Scratch scratch;
  const std::string text = long_text().substr(0, 20'000);
  std::int64_t calls = 0;
  {
    const HookGuard guard([&](std::int64_t call, std::string_view operation) {
      calls = call + 1;
      if (operation == "rename") return 0;  // the one call that is never interrupted
      if (call % 3 == 0) return EINTR;
      return operation == "write" ? -7 : 0;
    });
    write_file(scratch / "file", text);
  }
  EXPECT_GT(calls, 20'000 / 7);
  EXPECT_EQ(slurp(scratch / "file"), text);
}

}  // namespace
}  // namespace rankone
