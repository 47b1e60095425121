#pragma once

// A bump allocator for activations and scratch. A planning pass runs the same code on shapes alone:
// it hands out no memory and measures the peak, which reserve() then provides in one piece, so that
// nothing is allocated inside a step.

#include <cstddef>
#include <memory>
#include <vector>

namespace rankone {

// Memory of a device. `allocate` gives at least 64-byte aligned memory or fails.
struct MemorySource {
  std::byte* (*allocate)(std::size_t bytes);
  void (*release)(std::byte* memory);
};

class Arena {
 public:
  static constexpr std::size_t kAlignment = 64;  // of everything handed out

  struct Mark {
    std::size_t block = 0;
    std::size_t used = 0;
  };

  // Ensures one block of at least `bytes`; the arena must be empty (nothing handed out).
  void reserve(std::size_t bytes);
  // Where blocks come from; the host's memory if never called. Before any block is there.
  void set_source(const MemorySource& source);
  // Uses `memory` (64-byte aligned, `bytes` long) of the caller's and never grows.
  void adopt(void* memory, std::size_t bytes);

  // 64-byte aligned; null while planning. Beyond the reserve a growing arena adds a block; an
  // adopted one fails with out_of_memory.
  void* allocate(std::size_t bytes);

  Mark mark() const { return current_; }
  void release(Mark mark);  // frees everything allocated since mark()
  void reset() { release(Mark{}); }

  void set_planning(bool planning);  // resets the arena and, when turned on, the peak
  bool planning() const { return planning_; }
  std::size_t peak() const { return peak_; }  // most bytes in use since the last set_planning(true)
  std::size_t capacity() const;               // bytes held

 private:
  struct Block {
    std::unique_ptr<std::byte, void (*)(std::byte*)> owner;
    std::byte* memory;
    std::size_t size;
  };
  static MemorySource host_memory();
  void add_block(std::size_t bytes);

  MemorySource source_ = host_memory();
  std::vector<Block> blocks_;
  Mark current_;
  std::size_t peak_ = 0;
  bool planning_ = false;
  bool fixed_ = false;
};

// Releases on destruction what was allocated during its life.
class ArenaScope {
 public:
  explicit ArenaScope(Arena& arena) : arena_(arena), mark_(arena.mark()) {}
  ~ArenaScope() { arena_.release(mark_); }
  ArenaScope(const ArenaScope&) = delete;
  ArenaScope& operator=(const ArenaScope&) = delete;

 private:
  Arena& arena_;
  Arena::Mark mark_;
};

}  // namespace rankone
