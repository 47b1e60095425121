#pragma once

// Memory of the host for a fixture's tensors, every block aligned to kAlignment bytes.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <list>
#include <vector>

namespace rankone::test {

template <std::size_t kAlignment>
class HostMemory {
  struct alignas(kAlignment) Line {
    unsigned char bytes[kAlignment];
  };

 public:
  void* copy(const void* data, std::size_t bytes) {
    Line* const block = add(bytes).data();
    if (bytes > 0) std::memcpy(static_cast<void*>(block), data, bytes);
    return block;
  }
  std::vector<unsigned char> read(const void* data, std::size_t bytes) const {
    const auto* first = static_cast<const unsigned char*>(data);
    return {first, first + bytes};
  }
  // All bits set: a NaN in every format.
  void* empty(std::int64_t bytes) {
    std::vector<Line>& block = add(static_cast<std::size_t>(bytes));
    std::memset(static_cast<void*>(block.data()), 0xff, block.size() * sizeof(Line));
    return block.data();
  }

 private:
  std::vector<Line>& add(std::size_t bytes) {
    return blocks_.emplace_back(bytes / sizeof(Line) + 1);
  }

  std::list<std::vector<Line>> blocks_;
};

}  // namespace rankone::test
