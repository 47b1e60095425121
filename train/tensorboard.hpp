#pragma once

// TensorBoard event files: TFRecord frames (u64 length, masked CRC-32C of the length, payload,
// masked CRC-32C of the payload; little-endian), each payload one tensorflow.Event in protobuf.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace rankone::train {

struct Scalar {
  std::string_view tag;
  float value = 0;
};

// Event{wall_time = 1 (double), step = 2 (int64), file_version = 3 (string), summary = 5}, with
// Summary{repeated Value{tag = 1 (string), simple_value = 2 (float)} = 1}.
struct Event {
  double wall_time = 0;  // seconds since 1970
  std::int64_t step = 0;
  std::string_view file_version = {};  // only in the first event of a file: "brain.Event:2"
  std::vector<Scalar> scalars = {};
};

std::string encode_event(const Event& event);
std::string frame_record(std::string_view payload);

// Length of the longest prefix of an event file that consists of whole, undamaged frames of events
// with step <= last_step. Anything may follow it: a torn write, or the events of steps that a
// resumed run repeats.
std::size_t event_prefix(std::span<const std::byte> file, std::int64_t last_step);

}  // namespace rankone::train
