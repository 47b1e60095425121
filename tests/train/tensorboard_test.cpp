#include "train/tensorboard.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <map>

#include "tests/train/files.hpp"
#include "train/metrics.hpp"

namespace rankone::train {
namespace {

// A second implementation of the format, from its documents: bit by bit and byte by byte.
std::uint32_t slow_crc32c(std::string_view bytes) {
  std::uint32_t crc = ~0U;
  for (const char byte : bytes) {
    crc ^= static_cast<unsigned char>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1U) != 0 ? 0x82f63b78U : 0U);
  }
  return ~crc;
}

std::uint32_t mask(std::uint32_t crc) { return ((crc >> 15) | (crc << 17)) + 0xa282ead8U; }

std::uint64_t little_endian(std::string_view bytes, std::size_t count) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < count; ++i) {
    value |= std::uint64_t{static_cast<unsigned char>(bytes.at(i))} << (8 * i);
  }
  return value;
}

std::vector<std::string> records(std::string_view file) {
  std::vector<std::string> result;
  while (!file.empty()) {
    const auto length = static_cast<std::size_t>(little_endian(file, 8));
    EXPECT_EQ(little_endian(file.substr(8), 4), mask(slow_crc32c(file.substr(0, 8))));
    const std::string_view payload = file.substr(12, length);
    EXPECT_EQ(little_endian(file.substr(12 + length), 4), mask(slow_crc32c(payload)));
    result.emplace_back(payload);
    file.remove_prefix(16 + length);
  }
  return result;
}

// Fields of one protobuf message: (number, wire type) -> values as raw bytes or numbers.
struct Message {
  std::multimap<unsigned, std::string> bytes;
  std::multimap<unsigned, std::uint64_t> numbers;
};

std::uint64_t take_varint(std::string_view& text) {
  std::uint64_t value = 0;
  for (int shift = 0;; shift += 7) {
    const auto byte = static_cast<unsigned char>(text.at(0));
    text.remove_prefix(1);
    value |= std::uint64_t{byte & 0x7fU} << shift;
    if (byte < 128) return value;
  }
}

Message decode(std::string_view text) {
  Message message;
  while (!text.empty()) {
    const std::uint64_t key = take_varint(text);
    const auto field = static_cast<unsigned>(key >> 3);
    const std::size_t fixed = (key & 7) == 1 ? 8 : 4;
    if ((key & 7) == 0) {
      message.numbers.emplace(field, take_varint(text));
    } else if ((key & 7) == 2) {
      const auto length = static_cast<std::size_t>(take_varint(text));
      message.bytes.emplace(field, std::string(text.substr(0, length)));
      text.remove_prefix(length);
    } else {
      message.numbers.emplace(field, little_endian(text, fixed));
      text.remove_prefix(fixed);
    }
  }
  return message;
}

std::map<std::string, float> scalars_of(const Message& event) {
  std::map<std::string, float> result;
  if (event.bytes.count(5) == 0) return result;
  const Message summary = decode(event.bytes.find(5)->second);
  for (const auto& [field, text] : summary.bytes) {
    const Message value = decode(text);
    const auto bits = static_cast<std::uint32_t>(value.numbers.find(2)->second);
    float number = 0;
    std::memcpy(&number, &bits, 4);
    result[value.bytes.find(1)->second] = number;
  }
  return result;
}

TEST(TensorBoard, EventsDecode) {
  const auto events = records(frame_record(encode_event(
      {.wall_time = 1.5, .step = 300, .scalars = {{"train/loss", 2.25F}, {"x", -1.0F}}})));
  ASSERT_EQ(events.size(), 1U);
  const Message event = decode(events[0]);
  EXPECT_EQ(event.numbers.find(1)->second, 0x3ff8000000000000U);
  EXPECT_EQ(event.numbers.find(2)->second, 300U);
  EXPECT_EQ(scalars_of(event), (std::map<std::string, float>{{"train/loss", 2.25F}, {"x", -1.0F}}));
}

// Known answer: the frame of an empty record, as any TFRecord reader expects it.
TEST(TensorBoard, FramesAnEmptyRecord) {
  const std::string frame = frame_record("");
  ASSERT_EQ(frame.size(), 16U);
  EXPECT_EQ(little_endian(std::string_view(frame).substr(12), 4), 0xa282ead8U);
}

TEST(TensorBoard, CutsBehindAStepAndAtDamage) {
  const auto bytes = [](const std::string& text) {
    return std::as_bytes(std::span(text.data(), text.size()));
  };
  std::string file = frame_record(encode_event({.file_version = "brain.Event:2"}));
  std::vector<std::size_t> ends = {file.size()};
  for (std::int64_t step = 1; step <= 5; ++step) {
    file += frame_record(encode_event({.step = step, .scalars = {{"a", 1.0F}}}));
    ends.push_back(file.size());
  }
  for (std::int64_t step = 0; step <= 5; ++step) {
    EXPECT_EQ(event_prefix(bytes(file), step), ends[static_cast<std::size_t>(step)]);
  }
  for (std::size_t length = 0; length < file.size(); ++length) {
    const std::string torn = file.substr(0, length);
    std::size_t whole = 0;
    for (const std::size_t end : ends) whole = end <= length ? end : whole;
    EXPECT_EQ(event_prefix(bytes(torn), 99), whole);
  }
  for (std::size_t at = ends[1]; at < ends[2]; ++at) {
    std::string damaged = file;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x10);
    EXPECT_EQ(event_prefix(bytes(damaged), 99), ends[1]) << at;
  }
}

TEST(Metrics, LinesAndEventsSayTheSameAndAreCutBackTogether) {
  const test::Scratch folder;
  const auto step = [](std::int64_t n) {
    return StepRecord{n, n * 100, 5.0 / static_cast<double>(n), 1e-3, 0.5, 1234.56};
  };
  {
    Metrics metrics(folder.path(), 0);
    for (std::int64_t n = 1; n <= 4; ++n) metrics.add(step(n));
    metrics.add(EvalRecord{4, 400, 1.5, 2.5, 77});
    metrics.add(step(5));
  }
  const std::string before = test::slurp(folder / "metrics.jsonl");
  const std::string tail = before.substr(before.find("{\"step\":5"));
  test::spill(folder / "metrics.jsonl", before + "{\"step\":6,\"to");  // torn by a kill
  {
    Metrics metrics(folder.path(), 4);
    EXPECT_EQ(test::slurp(folder / "metrics.jsonl") + tail, before);
    metrics.add(step(5));
  }
  EXPECT_EQ(test::slurp(folder / "metrics.jsonl"), before);
  EXPECT_NE(before.find("{\"step\":2,\"tokens\":200,\"loss\":2.5,\"lr\":0.001,\"grad_norm\":0.5,"
                        "\"tokens_per_s\":1234.6}\n"),
            std::string::npos);

  const auto events = records(test::slurp(folder / "events.out.tfevents.rankone"));
  ASSERT_EQ(events.size(), 7U);
  EXPECT_EQ(decode(events[0]).bytes.find(3)->second, "brain.Event:2");
  EXPECT_EQ(scalars_of(decode(events[2])).at("train/loss"), 2.5F);
  EXPECT_EQ(scalars_of(decode(events[5])).at("valid/bits_per_byte"), 2.5F);
  EXPECT_EQ(decode(events[6]).numbers.find(2)->second, 5U);
}

TEST(Metrics, ASecondProcessIsKeptOut) {
  const test::Scratch folder;
  const Metrics metrics(folder.path(), 0);
  EXPECT_ANY_THROW(Metrics(folder.path(), 0));
}

TEST(Metrics, DamagedLinesEndThePrefix) {
  const std::string line = "{\"step\":1}\n";
  for (const char* bad :
       {"[]\n", "{}\n", "{\"step\":\"2\"}\n", "{\"step\":2", "\n", "{\"step\":3}\n"}) {
    EXPECT_EQ(metrics_prefix(line + bad, 2), line.size()) << bad;
  }
  EXPECT_EQ(metrics_prefix("", 5), 0U);
}

TEST(Progress, FormatsDurations) {
  EXPECT_EQ(format_duration(0), "0s");
  EXPECT_EQ(format_duration(59.2), "1m00s");
  EXPECT_EQ(format_duration(130), "2m10s");
  EXPECT_EQ(format_duration(3725), "1h02m");
}

}  // namespace
}  // namespace rankone::train
