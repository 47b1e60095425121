#pragma once

// Text that came from outside: UTF-8 validation, and quoting for one-line messages.

#include <cstddef>
#include <string>
#include <string_view>

namespace rankone {

// Offset of the first byte that is not part of well-formed UTF-8 (no overlong forms, no surrogates,
// nothing above U+10FFFF); text.size() if there is none.
std::size_t utf8_error(std::string_view text);

// No control characters (0x00 to 0x1f, 0x7f).
bool control_free(std::string_view text);

// 'text' for a message: control characters and bytes outside ASCII escaped, cut after 80 bytes.
std::string printable(std::string_view text);

}  // namespace rankone
