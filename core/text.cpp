#include "core/text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace rankone {
namespace {

// Length of the well-formed sequence at `data` (at most `left` bytes), 0 if there is none; table
// 3-7 of the Unicode standard.
std::size_t sequence_length(const unsigned char* data, std::size_t left) {
  const unsigned char lead = data[0];
  if (lead < 0x80) return 1;
  unsigned char low = 0x80;
  unsigned char high = 0xbf;
  std::size_t length = 0;
  if (lead >= 0xc2 && lead <= 0xdf) {
    length = 2;
  } else if (lead >= 0xe0 && lead <= 0xef) {
    length = 3;
    if (lead == 0xe0) low = 0xa0;   // overlong
    if (lead == 0xed) high = 0x9f;  // surrogates
  } else if (lead >= 0xf0 && lead <= 0xf4) {
    length = 4;
    if (lead == 0xf0) low = 0x90;   // overlong
    if (lead == 0xf4) high = 0x8f;  // above U+10FFFF
  }
  if (length == 0 || length > left || data[1] < low || data[1] > high) return 0;
  for (std::size_t i = 2; i < length; ++i) {
    if (data[i] < 0x80 || data[i] > 0xbf) return 0;
  }
  return length;
}

}  // namespace

std::size_t utf8_error(std::string_view text) {
  const auto* data = reinterpret_cast<const unsigned char*>(text.data());
  std::size_t at = 0;
  while (at < text.size()) {
    std::uint64_t word = 0;
    if (text.size() - at >= 8) {  // mostly ASCII: eight bytes at once
      std::memcpy(&word, data + at, 8);
      if ((word & 0x8080808080808080U) == 0) {
        at += 8;
        continue;
      }
    }
    const std::size_t length = sequence_length(data + at, text.size() - at);
    if (length == 0) return at;
    at += length;
  }
  return at;
}

bool control_free(std::string_view text) {
  return std::none_of(text.begin(), text.end(), [](char letter) {
    const auto byte = static_cast<unsigned char>(letter);
    return byte < 0x20 || byte == 0x7f;
  });
}

std::string printable(std::string_view text) {
  constexpr std::size_t kShown = 80;
  std::string result = "'";
  for (const char letter : text.substr(0, kShown)) {
    const auto byte = static_cast<unsigned char>(letter);
    if (byte < 0x20 || byte >= 0x7f) {
      result += fmt::format("\\x{:02x}", byte);
    } else {
      result += letter;
    }
  }
  return result + (text.size() > kShown ? "...'" : "'");
}

}  // namespace rankone
