#include "train/checkpoint.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>

#include "core/files.hpp"
#include "core/status.hpp"
#include "tests/train/files.hpp"

namespace rankone::train {
namespace {

Checkpoint checkpoint_of(std::int64_t step) {
  Checkpoint checkpoint;
  checkpoint.step = step;
  checkpoint.tokens = step * 1000;
  checkpoint.config = R"({"train": {"lr": 0.1}})";
  checkpoint.data = "d";
  checkpoint.valid = "v";
  checkpoint.tokenizer = "t";
  std::vector<float> values(37);
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(step) + static_cast<float>(i) / 64;
  }
  checkpoint.state.add("parameter.a", Tensor::of<float>(values, {37}));
  checkpoint.state.add("m.a", Tensor::zeros({37}, Dtype::f32));
  return checkpoint;
}

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

void expect_equal(const Checkpoint& a, const Checkpoint& b) {
  EXPECT_EQ(format_checkpoint(a), format_checkpoint(b));
}

std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

Status status_of(const std::string& bytes) {
  try {
    parse_checkpoint(bytes_of(bytes), "test");
  } catch (const Error& error) {
    return error.status();
  }
  return Status::ok;
}

// A checkpoint file with any payload, its checksum right.
std::string framed(const std::string& payload, std::uint64_t version, std::uint64_t length) {
  std::string bytes = "RANKCKPT";
  bytes.append(reinterpret_cast<const char*>(&version), 8);
  bytes.append(reinterpret_cast<const char*>(&length), 8);
  bytes += payload;
  const std::uint32_t crc = crc32c(bytes_of(bytes));
  bytes.append(reinterpret_cast<const char*>(&crc), 4);
  return bytes;
}

TEST(Checkpoint, ReadsBackWhatWasWritten) {
  const Checkpoint written = checkpoint_of(12);
  const std::string bytes = format_checkpoint(written);
  const Checkpoint read = parse_checkpoint(bytes_of(bytes), "test");
  EXPECT_EQ(read.step, 12);
  EXPECT_EQ(read.tokens, 12000);
  EXPECT_EQ(read.config, written.config);
  EXPECT_EQ(read.state.at("parameter.a").span<float>()[1], 12.0F + 1.0F / 64);
  expect_equal(read, written);
}

TEST(Checkpoint, EveryFlippedByteAndEveryTruncationIsFound) {
  const std::string bytes = format_checkpoint(checkpoint_of(3));
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    std::string damaged = bytes;
    damaged[at] = static_cast<char>(damaged[at] ^ 1);
    ASSERT_EQ(status_of(damaged), Status::corrupt) << at;
    ASSERT_EQ(status_of(bytes.substr(0, at)), Status::corrupt) << at;
  }
  EXPECT_EQ(status_of(bytes + "x"), Status::corrupt);
}

TEST(Checkpoint, HostileContentWithARightChecksumIsRefused) {
  TensorFile file;
  file.metadata = {{"step", "1"}, {"tokens", "1"}, {"config", ""},
                   {"data", ""},  {"valid", ""},   {"tokenizer", ""}};
  const std::string good = format_safetensors(file);
  EXPECT_EQ(status_of(framed(good, 1, good.size())), Status::ok);
  EXPECT_EQ(status_of(framed(good, 2, good.size())), Status::corrupt);
  EXPECT_EQ(status_of(framed(good, 1, good.size() + 1)), Status::corrupt);
  EXPECT_EQ(status_of(framed(good, 1, ~std::uint64_t{0})), Status::corrupt);
  EXPECT_EQ(status_of(framed("", 1, 0)), Status::corrupt);
  EXPECT_EQ(status_of(framed(std::string(64, '\xff'), 1, 64)), Status::corrupt);
  for (const char* step : {"", "-1", "1x", "99999999999999999999", "2000000000", " 1"}) {
    file.metadata[0].second = step;
    const std::string bad = format_safetensors(file);
    EXPECT_EQ(status_of(framed(bad, 1, bad.size())), Status::corrupt) << step;
  }
  file.metadata.erase(file.metadata.begin());
  const std::string without = format_safetensors(file);
  EXPECT_EQ(status_of(framed(without, 1, without.size())), Status::corrupt);
}

TEST(Checkpoint, TheLastTwoAreKept) {
  const test::Scratch folder;
  for (const std::int64_t step : {2, 9, 10, 100})
    write_checkpoint(folder.path(), checkpoint_of(step));
  EXPECT_EQ(names_in(folder.path()), (std::vector<std::string>{"step-10.ckpt", "step-100.ckpt"}));
  EXPECT_EQ(checkpoint_steps(folder.path()), (std::vector<std::int64_t>{10, 100}));
}

TEST(Checkpoint, TheNewestGoodOneIsFound) {
  const test::Scratch folder;
  std::vector<std::string> warnings;
  const auto warn = [&](const std::string& message) { warnings.push_back(message); };
  EXPECT_FALSE(newest_checkpoint(folder / "none", warn).has_value());
  EXPECT_FALSE(newest_checkpoint(folder.path(), warn).has_value());
  write_checkpoint(folder.path(), checkpoint_of(5));
  write_checkpoint(folder.path(), checkpoint_of(10));
  test::spill(folder / ".step-15.ckpt.tmp", "half a checkpoint of a killed process");
  expect_equal(*newest_checkpoint(folder.path(), warn), checkpoint_of(10));
  EXPECT_TRUE(warnings.empty());
  EXPECT_FALSE(std::filesystem::exists(folder / ".step-15.ckpt.tmp"));

  test::spill(folder / "step-10.ckpt", "no checkpoint");
  expect_equal(*newest_checkpoint(folder.path(), warn), checkpoint_of(5));
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_NE(warnings[0].find("step-10.ckpt"), std::string::npos);
  // The damaged one is out of the way: the next checkpoint keeps the good one beside itself.
  write_checkpoint(folder.path(), checkpoint_of(7));
  EXPECT_EQ(names_in(folder.path()),
            (std::vector<std::string>{"step-10.ckpt.corrupt", "step-5.ckpt", "step-7.ckpt"}));

  test::spill(folder / "step-5.ckpt", "");
  std::filesystem::rename(folder / "step-7.ckpt", folder / "step-8.ckpt");  // says 8, holds 7
  try {
    newest_checkpoint(folder.path(), warn);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), Status::corrupt);
  }
  EXPECT_TRUE(std::filesystem::exists(folder / "step-8.ckpt"));
}

// Whatever call fails, with whatever error, and also when writes are cut short: the checkpoint
// before is intact and found, no temporary file stays, and the failure is reported in one line.
TEST(Checkpoint, AFailureOfAnyCallLeavesTheOneBefore) {
  for (const int fault : {ENOSPC, EIO, EACCES}) {
    bool reached_the_end = false;
    for (std::int64_t failing = 0; !reached_the_end; ++failing) {
      const test::Scratch folder;
      write_checkpoint(folder.path(), checkpoint_of(5));
      const std::string before = test::slurp(folder / "step-5.ckpt");
      std::string operation;
      set_fault_hook([&](std::int64_t call, std::string_view name) {
        if (call != failing) return 0;
        operation = name;
        return fault;
      });
      std::string message;
      try {
        write_checkpoint(folder.path(), checkpoint_of(10));
        reached_the_end = true;
      } catch (const Error& error) {
        EXPECT_EQ(error.status(), Status::io);
        message = error.what();
      }
      set_fault_hook({});
      if (reached_the_end) {
        EXPECT_GE(failing, 4);  // write, fsync, rename, fsync of the folder
        EXPECT_TRUE(operation.empty());
        break;
      }
      SCOPED_TRACE(operation + " " + std::to_string(failing));
      EXPECT_FALSE(message.empty());
      EXPECT_EQ(message.find('\n'), std::string::npos);
      EXPECT_EQ(test::slurp(folder / "step-5.ckpt"), before);
      for (const std::string& name : names_in(folder.path())) {
        EXPECT_TRUE(name == "step-5.ckpt" || name == "step-10.ckpt") << name;
      }
      const auto found =
          newest_checkpoint(folder.path(), [](const std::string& text) { ADD_FAILURE() << text; });
      ASSERT_TRUE(found.has_value());
      // Only the fsync of the folder comes after the rename.
      expect_equal(*found, checkpoint_of(found->step));
    }
  }
}

}  // namespace
}  // namespace rankone::train
