#include "core/arena.hpp"

#include <algorithm>
#include <cassert>
#include <cstdlib>

#include "core/status.hpp"

namespace rankone {
namespace {

constexpr std::size_t kSmallestBlock = std::size_t{1} << 20;

std::size_t round_up(std::size_t bytes) {
  return checked_add(bytes, Arena::kAlignment - 1, Status::out_of_memory) / Arena::kAlignment *
         Arena::kAlignment;
}

}  // namespace

// The peak counts bytes in use as if blocks were one piece, so that a plan made on an empty arena
// is exactly what one block must hold.
void* Arena::allocate(std::size_t bytes) {
  const std::size_t size = round_up(bytes);
  if (planning_) {
    current_.used += size;
    peak_ = std::max(peak_, current_.used);
    return nullptr;
  }
  while (current_.block < blocks_.size() && current_.used + size > blocks_[current_.block].size) {
    if (current_.block + 1 == blocks_.size()) break;
    ++current_.block;
    current_.used = 0;
  }
  if (blocks_.empty() || current_.used + size > blocks_[current_.block].size) {
    if (fixed_) {
      fail(Status::out_of_memory, "[arena] the workspace of {} bytes is too small", capacity());
    }
    add_block(size);
    current_ = Mark{blocks_.size() - 1, 0};
  }
  std::byte* memory = blocks_[current_.block].memory + current_.used;
  current_.used += size;
  std::size_t in_use = current_.used;
  for (std::size_t i = 0; i < current_.block; ++i) in_use += blocks_[i].size;
  peak_ = std::max(peak_, in_use);
  return memory;
}

void Arena::add_block(std::size_t bytes) {
  const std::size_t size =
      std::max(bytes, blocks_.empty() ? kSmallestBlock : blocks_.back().size * 2);
  std::byte* memory = source_.allocate(size);
  blocks_.push_back(Block{{memory, source_.release}, memory, size});
}

MemorySource Arena::host_memory() {
  return {[](std::size_t bytes) {
            auto* memory = static_cast<std::byte*>(std::aligned_alloc(kAlignment, bytes));
            if (memory == nullptr) {
              fail(Status::out_of_memory, "[arena] can not allocate {} bytes", bytes);
            }
            return memory;
          },
          [](std::byte* memory) { std::free(memory); }};
}

void Arena::set_source(const MemorySource& source) {
  assert(blocks_.empty());
  source_ = source;
}

void Arena::reserve(std::size_t bytes) {
  assert(current_.block == 0 && current_.used == 0);
  const std::size_t size = round_up(bytes);
  if (fixed_ || (blocks_.size() == 1 && blocks_[0].size >= size)) return;
  blocks_.clear();
  add_block(size);
}

void Arena::adopt(void* memory, std::size_t bytes) {
  blocks_.clear();
  blocks_.push_back(Block{{nullptr, [](std::byte*) {}}, static_cast<std::byte*>(memory), bytes});
  current_ = Mark{};
  fixed_ = true;
}

void Arena::release(Mark mark) {
  assert(mark.block < current_.block ||
         (mark.block == current_.block && mark.used <= current_.used));
  current_ = mark;
}

void Arena::set_planning(bool planning) {
  planning_ = planning;
  current_ = Mark{};
  if (planning) peak_ = 0;
}

std::size_t Arena::capacity() const {
  std::size_t total = 0;
  for (const Block& block : blocks_) total += block.size;
  return total;
}

}  // namespace rankone
