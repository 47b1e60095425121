#pragma once

// The nearest of some names, for messages about unknown ones.

#include <span>
#include <string>
#include <string_view>

namespace rankone {

// The name with the smallest edit distance (insert, delete, replace, swap of neighbours), the first
// of several; empty if there are no names. A name of more than 256 bytes is compared by its start.
std::string nearest(std::string_view name, std::span<const std::string_view> names);

}  // namespace rankone
