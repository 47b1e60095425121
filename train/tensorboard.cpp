#include "train/tensorboard.hpp"

#include <bit>
#include <cstring>
#include <optional>

#include "core/files.hpp"

namespace rankone::train {
namespace {

static_assert(std::endian::native == std::endian::little,
              "frames are copied as they lie in memory");

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

template <class T>
void put(std::string& out, T value) {
  char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  out.append(bytes, sizeof(T));
}

// The mask of the TFRecord format: a CRC of data that holds CRCs is a weak one.
std::uint32_t masked_crc(std::span<const std::byte> bytes) {
  const std::uint32_t crc = crc32c(bytes);
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8U;
}

void put_varint(std::string& out, std::uint64_t value) {
  while (value >= 0x80) {
    out.push_back(static_cast<char>(value | 0x80));
    value >>= 7;
  }
  out.push_back(static_cast<char>(value));
}

enum Wire : unsigned { kVarint = 0, kFixed64 = 1, kLength = 2, kFixed32 = 5 };

void put_key(std::string& out, unsigned field, Wire wire) { put_varint(out, field << 3 | wire); }

void put_bytes(std::string& out, unsigned field, std::string_view value) {
  put_key(out, field, kLength);
  put_varint(out, value.size());
  out.append(value);
}

// Takes values off the front of a message; every failure means a damaged one.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  bool empty() const { return bytes_.empty(); }

  std::optional<std::uint64_t> varint() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64 && !bytes_.empty(); shift += 7) {
      const auto byte = static_cast<std::uint64_t>(bytes_.front());
      bytes_ = bytes_.subspan(1);
      value |= (byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
    return std::nullopt;
  }

  bool skip(std::uint64_t count) {
    if (count > bytes_.size()) return false;
    bytes_ = bytes_.subspan(count);
    return true;
  }

 private:
  std::span<const std::byte> bytes_;
};

std::optional<std::int64_t> step_of(std::span<const std::byte> payload) {
  Reader reader(payload);
  std::int64_t step = 0;  // proto3 leaves a zero out
  while (!reader.empty()) {
    const auto key = reader.varint();
    if (!key) return std::nullopt;
    switch (*key & 7U) {
      case kVarint: {
        const auto value = reader.varint();
        if (!value) return std::nullopt;
        if (*key >> 3 == 2) step = static_cast<std::int64_t>(*value);
        break;
      }
      case kFixed64:
        if (!reader.skip(8)) return std::nullopt;
        break;
      case kLength: {
        const auto length = reader.varint();
        if (!length || !reader.skip(*length)) return std::nullopt;
        break;
      }
      case kFixed32:
        if (!reader.skip(4)) return std::nullopt;
        break;
      default:
        return std::nullopt;
    }
  }
  return step;
}

template <class T>
T get(std::span<const std::byte> bytes) {
  T value;
  std::memcpy(&value, bytes.data(), sizeof(T));
  return value;
}

}  // namespace

std::string encode_event(const Event& event) {
  std::string out;
  put_key(out, 1, kFixed64);
  put(out, event.wall_time);
  if (event.step != 0) {
    put_key(out, 2, kVarint);
    put_varint(out, static_cast<std::uint64_t>(event.step));
  }
  if (!event.file_version.empty()) put_bytes(out, 3, event.file_version);
  if (!event.scalars.empty()) {
    std::string summary;
    for (const Scalar& scalar : event.scalars) {
      std::string value;
      put_bytes(value, 1, scalar.tag);
      put_key(value, 2, kFixed32);
      put(value, scalar.value);
      put_bytes(summary, 1, value);
    }
    put_bytes(out, 5, summary);
  }
  return out;
}

std::string frame_record(std::string_view payload) {
  std::string frame;
  put(frame, static_cast<std::uint64_t>(payload.size()));
  put(frame, masked_crc(bytes_of(frame)));
  frame.append(payload);
  put(frame, masked_crc(bytes_of(payload)));
  return frame;
}

std::size_t event_prefix(std::span<const std::byte> file, std::int64_t last_step) {
  constexpr std::size_t kHead = 12;
  constexpr std::size_t kTail = 4;
  std::size_t good = 0;
  while (file.size() - good >= kHead + kTail) {
    const auto frame = file.subspan(good);
    const auto length = get<std::uint64_t>(frame);
    if (masked_crc(frame.first(8)) != get<std::uint32_t>(frame.subspan(8))) break;
    if (length > frame.size() - kHead - kTail) break;
    const auto payload = frame.subspan(kHead, length);
    if (masked_crc(payload) != get<std::uint32_t>(frame.subspan(kHead + length))) break;
    const auto step = step_of(payload);
    if (!step || *step > last_step) break;
    good += kHead + length + kTail;
  }
  return good;
}

}  // namespace rankone::train
