// Fibers for the threads of a block, and what they wait at.

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <vector>

#include "core/cuda/language.hpp"
#include "core/cuda_emulation/asynchronous.hpp"
#include "core/cuda_emulation/races.hpp"

#if defined(__x86_64__)
// Saves the callee-saved registers on the stack, and the stack pointer to *save; continues at `to`.
extern "C" void rankone_switch_fiber(void** save, void* to);
asm(R"(
.text
.p2align 4
.globl rankone_switch_fiber
.type rankone_switch_fiber, @function
rankone_switch_fiber:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size rankone_switch_fiber, .-rankone_switch_fiber
)");
#else
#include <ucontext.h>
#endif

namespace rankone::cuda::emulation {

Index3 thread_index, block_index, block_size, grid_size;

namespace {

constexpr std::size_t kStack = std::size_t{256} * 1024;
constexpr int kBarriers = 16;

struct Fiber {
  std::unique_ptr<unsigned char[]> stack;
#if defined(__x86_64__)
  void* pointer = nullptr;
#else
  ucontext_t context;
#endif
  bool done = false;
};

struct Warp {
  // Two sets of slots: a lane may be at its next collective while another still reads.
  std::array<std::array<unsigned char, 32 * kSlot>, 2> slots;
  std::array<std::uint64_t, 32> round{};  // collectives that each lane has entered
  std::array<races::Meeting, 2> meetings;
  std::array<std::uint64_t, 2> met{};  // rounds that the meetings belong to
};

struct Barrier {
  int arrived = 0;
  std::uint64_t generation = 0;
  races::Meeting meeting;
};

struct Block {
  std::vector<Warp> warps;
  std::array<Barrier, kBarriers> barriers;
  std::unique_ptr<unsigned char[]> memory;
  unsigned char* shared = nullptr;
  std::size_t shared_bytes = 0;
  const std::function<void()>* kernel = nullptr;
};

std::vector<Fiber> fibers;   // of the blocks of a cluster, one block behind the other
std::vector<Block> members;  // of a cluster
std::size_t current = 0;     // the block of the running fiber
Barrier cluster_barrier;
int running = 0;
unsigned cluster_first = 0;  // number of the cluster's first block
bool moved = false;
std::uint64_t order_seed = 0;
#if defined(__x86_64__)
void* scheduler = nullptr;
#else
ucontext_t scheduler;
#endif

Block& block() { return members[current]; }
int block_thread() { return running % static_cast<int>(block_size.x); }

void leave() {
#if defined(__x86_64__)
  rankone_switch_fiber(&fibers[static_cast<std::size_t>(running)].pointer, scheduler);
#else
  swapcontext(&fibers[static_cast<std::size_t>(running)].context, &scheduler);
#endif
}

void fiber_main() {
  (*block().kernel)();
  finish_copies(running);
  fibers[static_cast<std::size_t>(running)].done = true;
  progress();
  leave();
  std::abort();  // a finished fiber is never resumed
}

void prepare(Fiber& fiber) {
  if (!fiber.stack) fiber.stack.reset(new unsigned char[kStack]);
  fiber.done = false;
#if defined(__x86_64__)
  auto top = reinterpret_cast<std::uintptr_t>(fiber.stack.get() + kStack) & ~std::uintptr_t{15};
  auto* stack = reinterpret_cast<void**>(top);
  *--stack = nullptr;  // as if fiber_main had been called: the stack is 8 off a multiple of 16
  *--stack = reinterpret_cast<void*>(&fiber_main);
  stack -= 6;
  std::fill_n(stack, 6, nullptr);
  fiber.pointer = stack;
#else
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = fiber.stack.get();
  fiber.context.uc_stack.ss_size = kStack;
  fiber.context.uc_link = nullptr;
  makecontext(&fiber.context, &fiber_main, 0);
#endif
}

void resume(int number) {
  running = number;
  current = static_cast<std::size_t>(number) / block_size.x;
  block_index.x = cluster_first + static_cast<unsigned>(current);
  thread_index = Index3{static_cast<unsigned>(block_thread()), 0, 0};
  races::resume(number, block_index.x, fibers[static_cast<std::size_t>(number)].stack.get(),
                kStack);
#if defined(__x86_64__)
  rankone_switch_fiber(&scheduler, fibers[static_cast<std::size_t>(number)].pointer);
#else
  swapcontext(&scheduler, &fibers[static_cast<std::size_t>(number)].context);
#endif
  races::leave();
}

// xorshift64*: the order only has to differ.
std::uint64_t next(std::uint64_t& state) {
  state ^= state >> 12;
  state ^= state << 25;
  state ^= state >> 27;
  return state * 0x2545F4914F6CDD1DULL;
}

void run_cluster(int threads) {
  std::vector<int> order(static_cast<std::size_t>(threads));
  std::iota(order.begin(), order.end(), 0);
  std::uint64_t random = order_seed;
  for (int alive = threads; alive > 0;) {
    if (order_seed != 0) {
      for (std::size_t i = order.size(); i > 1; --i) {
        std::swap(order[i - 1], order[next(random) % i]);
      }
    }
    moved = false;
    for (const int number : order) {
      Fiber& fiber = fibers[static_cast<std::size_t>(number)];
      if (fiber.done) continue;
      resume(number);
      if (fiber.done) --alive;
    }
    if (!moved && alive > 0) broken("every thread waits");
  }
}

}  // namespace

void set_order(std::uint64_t seed) { order_seed = seed; }
void yield() { leave(); }
void progress() { moved = true; }
unsigned char* shared_base() { return block().shared; }
std::size_t shared_size() { return block().shared_bytes; }
int cluster_blocks() { return static_cast<int>(members.size()); }
unsigned char* shared_base_of(int rank) { return members[static_cast<std::size_t>(rank)].shared; }

void broken(const char* what) {
  std::fprintf(stderr, "cuda emulation: block %u: %s\n", block_index.x, what);
  if (cluster_barrier.arrived > 0) {
    std::fprintf(stderr, "  barrier of the cluster: %d threads wait\n", cluster_barrier.arrived);
  }
  for (std::size_t rank = 0; rank < members.size(); ++rank) {
    const Block& block = members[rank];
    if (members.size() > 1) std::fprintf(stderr, "  block %zu of the cluster\n", rank);
    for (std::size_t id = 0; id < block.barriers.size(); ++id) {
      if (block.barriers[id].arrived == 0) continue;
      std::fprintf(stderr, "  barrier %zu: %d threads wait\n", id, block.barriers[id].arrived);
    }
    for (std::size_t warp = 0; warp < block.warps.size(); ++warp) {
      std::fprintf(stderr, "  warp %zu, collectives by lane:", warp);
      for (const std::uint64_t round : block.warps[warp].round) {
        std::fprintf(stderr, " %llu", static_cast<unsigned long long>(round));
      }
      std::fprintf(stderr, "\n");
    }
  }
  std::abort();
}

namespace {

const unsigned char* enter_round(std::uint32_t mask, const void* mine, std::size_t bytes,
                                 bool orders) {
  if (bytes > kSlot) broken("a lane puts more than fits a slot");
  const auto lane = static_cast<std::size_t>(running % 32);
  Warp& warp = block().warps[static_cast<std::size_t>(block_thread() / 32)];
  const std::uint64_t round = ++warp.round[lane];
  auto& slots = warp.slots[round % 2];
  if (bytes > 0) std::memcpy(slots.data() + lane * kSlot, mine, bytes);
  if (orders) races::arrive_fresh(warp.meetings[round % 2], warp.met[round % 2], round);
  progress();
  const auto all_here = [&] {
    for (std::size_t other = 0; other < 32; ++other) {
      if ((mask >> other & 1U) != 0 && warp.round[other] < round) return false;
    }
    return true;
  };
  while (!all_here()) yield();
  if (orders) races::pass_arrived(warp.meetings[round % 2]);
  return slots.data();
}

}  // namespace

const unsigned char* exchange(std::uint32_t mask, const void* mine, std::size_t bytes) {
  return enter_round(mask, mine, bytes, false);
}
void sync_warp(std::uint32_t mask) { enter_round(mask, nullptr, 0, true); }

namespace {

void meet(Barrier& barrier, int count, bool wait) {
  const std::uint64_t generation = barrier.generation;
  progress();
  races::arrive(barrier.meeting);
  if (++barrier.arrived == count) {
    barrier.arrived = 0;
    ++barrier.generation;
    races::complete(barrier.meeting, generation);
  }
  while (wait && barrier.generation == generation) yield();
  if (wait) races::pass(barrier.meeting, generation);
}

}  // namespace

void barrier(int id, int count, bool wait) {
  meet(block().barriers[static_cast<std::size_t>(id)], count, wait);
}
void cluster_meet() {
  meet(cluster_barrier, cluster_blocks() * static_cast<int>(block_size.x), true);
}

int running_thread() { return running; }

void run(std::int64_t blocks, int cluster, int threads, std::size_t shared_bytes,
         const std::function<void()>& kernel) {
  if (threads % 32 != 0) broken("the threads of a block are no whole warps");
  if (blocks % cluster != 0) broken("the blocks are no whole clusters");
  const auto all = static_cast<std::size_t>(threads * cluster);
  if (fibers.size() < all) fibers.resize(all);
  block_size = Index3{static_cast<unsigned>(threads), 1, 1};
  grid_size = Index3{static_cast<unsigned>(blocks), 1, 1};
  races::start_launch();
  for (std::int64_t number = 0; number < blocks; number += cluster) {
    cluster_first = static_cast<unsigned>(number);
    block_index = Index3{cluster_first, 0, 0};
    cluster_barrier = Barrier{};
    members.resize(static_cast<std::size_t>(cluster));
    for (Block& block : members) {
      block.warps.assign(static_cast<std::size_t>(threads / 32), Warp{});
      block.barriers.fill(Barrier{});
      // Fresh memory full of NaN for each block, of the exact size: an address sanitizer sees what
      // lies beyond it.
      block.memory.reset(new unsigned char[shared_bytes + 1024]);
      std::memset(block.memory.get(), 0xff, shared_bytes + 1024);
      const auto address = reinterpret_cast<std::uintptr_t>(block.memory.get());
      block.shared = block.memory.get() + (1024 - address % 1024);
      block.shared_bytes = shared_bytes;
      block.kernel = &kernel;
    }
    start_copies(threads * cluster);
    std::vector<races::Member> memories;
    for (const Block& block : members) memories.push_back({block.shared, block.shared_bytes});
    races::start_cluster(memories, threads * cluster);
    for (std::size_t i = 0; i < all; ++i) prepare(fibers[i]);
    run_cluster(threads * cluster);
  }
}

}  // namespace rankone::cuda::emulation
