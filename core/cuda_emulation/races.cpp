#include "core/cuda_emulation/races.hpp"

#if defined(RANKONE_RACES)

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <memory>
#include <set>
#include <unordered_map>
#include <utility>

namespace rankone::cuda::emulation::races {
namespace {

// ---- Threads and their clocks. A number names a thread of the cluster, or one of the agents that
// work for it: its cp.async copies, its products, its bulk stores; and the bulk copies of a
// barrier.

using Times = std::vector<std::uint32_t>;

enum Agent { kCopies, kProducts, kStores, kAgents };

struct Thread {
  Clock clock;
  std::array<std::uint32_t, kAgents> agent{};  // number of the agent, 0 while it has none
  std::array<std::uint32_t, kAgents> group{};  // the one that is being collected, from 1
};

struct Who {
  const char* kind;
  int thread;  // of the cluster, -1 for bulk copies
};

std::vector<Thread> threads;
std::vector<Who> names;    // of all numbers
Thread* now = nullptr;     // the running thread
std::uint32_t number = 0;  // its number
unsigned block = 0;
const unsigned char* stack = nullptr;
std::size_t stack_bytes = 0;
const void* site_of_caller = nullptr;
std::uint32_t cluster = 0;  // counts those of all launches
bool active = false;        // accesses count

// While this runtime is at work: what it takes from the standard library may be watched as well.
class Quiet {
 public:
  Quiet() : was_(active) { active = false; }
  ~Quiet() { active = was_; }
  Quiet(const Quiet&) = delete;
  Quiet& operator=(const Quiet&) = delete;

 private:
  bool was_;
};

std::uint32_t at(const Times& times, std::uint32_t who) {
  return who < times.size() ? times[who] : 0;
}
void raise(Times& times, std::uint32_t who, std::uint32_t when) {
  if (times.size() <= who) times.resize(std::max<std::size_t>(names.size(), who + 1));
  times[who] = std::max(times[who], when);
}
void join(Times& to, const Times& from) {
  if (to.size() < from.size()) to.resize(from.size());
  std::uint32_t* const t = to.data();
  const std::uint32_t* const f = from.data();
  for (std::size_t i = 0, size = from.size(); i < size; ++i) t[i] = std::max(t[i], f[i]);
}
void join(Clock& to, const Clock& from) {
  join(to.reads, from.reads);
  join(to.writes, from.writes);
  join(to.fenced, from.fenced);
}
void clear(Clock& clock) {
  clock.reads.clear();
  clock.writes.clear();
  clock.fenced.clear();
}
// What the running thread does from here on is later than what it has handed on.
void next_epoch() {
  const std::uint32_t epoch = at(now->clock.reads, number) + 1;
  raise(now->clock.reads, number, epoch);
  raise(now->clock.writes, number, epoch);
}
std::uint32_t agent_of(Agent kind) {
  std::uint32_t& agent = now->agent[kind];
  if (agent == 0) {
    static constexpr const char* kNames[kAgents] = {"cp.async of thread", "wgmma of thread",
                                                    "bulk store of thread"};
    agent = static_cast<std::uint32_t>(names.size());
    names.push_back({kNames[kind], static_cast<int>(number)});
    now->group[kind] = 1;
  }
  return agent;
}

// ---- Memory ------------------------------------------------------------------------------------

struct Access {
  std::uint32_t who = 0, when = 0;  // when 0: none
  const void* site = nullptr;
};

constexpr std::size_t kCell = 2;  // bytes

struct Cell {
  std::uint32_t of_cluster = 0;
  Access write, read;                           // the last write and a read since
  std::unique_ptr<std::vector<Access>> others;  // further reads since
  Access far_write, far_read;                   // by other clusters
};

constexpr std::uintptr_t kPage = 4096;
using Page = std::array<Cell, kPage / kCell>;

struct Shared {
  std::uintptr_t start = 0;
  std::size_t bytes = 0;
  std::vector<Cell> cells;
};

std::vector<Shared> shared_memories;
std::unordered_map<std::uintptr_t, std::unique_ptr<Page>> pages;
std::uintptr_t last_page = 0;
Page* last_cells = nullptr;

Page& page_of(std::uintptr_t address) {
  const std::uintptr_t page = address / kPage;
  if (last_cells == nullptr || page != last_page) {
    auto& cells = pages[page];
    if (!cells) cells = std::make_unique<Page>();
    last_page = page;
    last_cells = cells.get();
  }
  return *last_cells;
}

// ---- Reports -----------------------------------------------------------------------------------

std::set<std::pair<const void*, const void*>> seen;
std::map<const void*, std::string> places;
std::set<std::string> told;
std::vector<std::string> reports;

// Where in the source `site` returns to: the functions it was inlined into, innermost first.
std::string find_place(const void* site) {
  Dl_info info;
  if (dladdr(site, &info) == 0) return "?";
  const auto offset =
      reinterpret_cast<std::uintptr_t>(site) - reinterpret_cast<std::uintptr_t>(info.dli_fbase) - 1;
  char command[256];
  std::snprintf(command, sizeof command, "addr2line -i -s -e /proc/%d/exe 0x%zx 2>/dev/null",
                static_cast<int>(getpid()), static_cast<std::size_t>(offset));
  std::string result;
  if (FILE* lines = popen(command, "r")) {
    char line[256];
    while (std::fgets(line, sizeof line, lines) != nullptr) {
      std::string text = line;
      text = text.substr(0, text.find_first_of(" \n"));
      if (!result.empty()) result += " < ";
      result += text;
    }
    pclose(lines);
  }
  return result.empty() ? "?" : result;
}

const std::string& place(const void* site) {
  std::string& known = places[site];
  if (known.empty()) known = find_place(site);
  return known;
}

std::string described(const Access& access, bool writes, bool far) {
  std::string text = writes ? "write by " : "read by ";
  if (far) {
    text += "another block";
  } else {
    const Who& who = names[access.who];
    text += who.kind + (who.thread < 0 ? std::string() : " " + std::to_string(who.thread)) +
            " (epoch " + std::to_string(access.when) + ")";
  }
  return text + "\n    at " + place(access.site);
}

void report(std::uintptr_t address, bool shared, const Access& access, bool writes,
            const Access& earlier, bool wrote, bool far) {
  if (!seen.emplace(access.site, earlier.site).second) return;
  if (!told.insert((writes ? "w" : "r") + place(access.site) + (wrote ? "w" : "r") +
                   place(earlier.site))
           .second) {
    return;
  }
  char where[64];
  std::snprintf(where, sizeof where, shared ? "shared memory + %zu" : "global memory at %zx",
                static_cast<std::size_t>(address));
  reports.push_back("block " + std::to_string(block) + ", " + where + ": " +
                    described(access, writes, false) + "\n  after " +
                    described(earlier, wrote, far));
}

// ---- Accesses ----------------------------------------------------------------------------------

bool ordered(const Times& behind, const Access& earlier) {
  return earlier.when == 0 || at(behind, earlier.who) >= earlier.when;
}

// An access by one who has behind it the writes of `seen_writes` and the reads of `over`.
void touch_cell(Cell& cell, std::uintptr_t address, bool shared, bool writes, const Access& access,
                const Times& seen_writes, const Times& over) {
  if (cell.of_cluster != cluster) {
    if (!shared) {
      if (cell.write.when != 0) cell.far_write = cell.write;
      if (cell.read.when != 0) cell.far_read = cell.read;
    }
    cell.of_cluster = cluster;
    cell.write = cell.read = Access{};
    if (cell.others) cell.others->clear();
  }
  if (cell.far_write.when != 0) report(address, shared, access, writes, cell.far_write, true, true);
  if (!ordered(seen_writes, cell.write)) {
    report(address, shared, access, writes, cell.write, true, false);
  }
  if (writes) {
    if (cell.far_read.when != 0) report(address, shared, access, true, cell.far_read, false, true);
    if (!ordered(over, cell.read)) report(address, shared, access, true, cell.read, false, false);
    if (cell.others) {
      for (const Access& other : *cell.others) {
        if (!ordered(over, other)) report(address, shared, access, true, other, false, false);
      }
      cell.others->clear();
    }
    cell.read = Access{};
    cell.write = access;
    return;
  }
  // What comes after this read comes after all that this read has behind it.
  if (cell.read.who == access.who || ordered(over, cell.read)) {
    cell.read = access;
    return;
  }
  if (!cell.others) cell.others = std::make_unique<std::vector<Access>>();
  for (Access& other : *cell.others) {
    if (other.who == access.who || ordered(over, other)) {
      other = access;
      return;
    }
  }
  cell.others->push_back(access);
}

void touch(const void* start, std::size_t bytes, bool writes, const Access& access,
           const Times& seen_writes, const Times& over) {
  const auto first = reinterpret_cast<std::uintptr_t>(start);
  const std::uintptr_t last = first + bytes - 1;
  for (Shared& memory : shared_memories) {
    if (first - memory.start >= memory.bytes) continue;
    for (std::uintptr_t cell = (first - memory.start) / kCell;
         cell <= (last - memory.start) / kCell; ++cell) {
      if (cell >= memory.cells.size()) return;  // beyond the end: for an address sanitizer
      touch_cell(memory.cells[cell], cell * kCell, true, writes, access, seen_writes, over);
    }
    return;
  }
  for (std::uintptr_t cell = first / kCell; cell <= last / kCell; ++cell) {
    const std::uintptr_t address = cell * kCell;
    touch_cell(page_of(address)[address % kPage / kCell], address, false, writes, access,
               seen_writes, over);
  }
}

Access by(std::uint32_t who, std::uint32_t when, const void* site) {
  return {who, when, site_of_caller != nullptr ? site_of_caller : site};
}

void plain(const void* start, std::size_t bytes, bool writes, const void* site) {
  if (!active || bytes == 0) return;
  if (static_cast<std::size_t>(static_cast<const unsigned char*>(start) - stack) < stack_bytes) {
    return;
  }
  const Quiet quiet;
  touch(start, bytes, writes, by(number, at(now->clock.reads, number), site), now->clock.writes,
        now->clock.reads);
}

// ---- Barriers in shared memory
// -------------------------------------------------------------------

struct Mbarrier {
  Meeting meeting;
  std::uint32_t phase = 0;
  std::uint32_t copies = 0;  // number of its bulk copies
  bool copied = false;       // in this phase
};
std::unordered_map<const void*, Mbarrier> mbarriers;

Mbarrier& mbarrier(const void* barrier) { return mbarriers[barrier]; }

}  // namespace

// ---- Launches, clusters, threads
// -------------------------------------------------------------------

void start_launch() {
  pages.clear();
  last_cells = nullptr;
}

void start_cluster(const std::vector<Member>& members, int count) {
  const Quiet quiet;
  ++cluster;
  names.clear();
  for (int i = 0; i < count; ++i) names.push_back({"thread", i});
  threads.assign(static_cast<std::size_t>(count), Thread{});
  for (std::uint32_t i = 0; i < threads.size(); ++i) {
    raise(threads[i].clock.reads, i, 1);
    raise(threads[i].clock.writes, i, 1);
  }
  mbarriers.clear();
  shared_memories.resize(members.size());
  for (std::size_t i = 0; i < members.size(); ++i) {
    shared_memories[i].start = reinterpret_cast<std::uintptr_t>(members[i].shared);
    shared_memories[i].bytes = members[i].bytes;
    shared_memories[i].cells.resize((members[i].bytes + kCell - 1) / kCell);
  }
}

void leave() { active = false; }

void resume(int thread, unsigned of_block, const unsigned char* its_stack, std::size_t its_bytes) {
  number = static_cast<std::uint32_t>(thread);
  now = &threads[number];
  block = of_block;
  stack = its_stack;
  stack_bytes = its_bytes;
  active = true;
}

void arrive(Meeting& meeting) {
  const Quiet quiet;
  join(meeting.arriving, now->clock);
  next_epoch();
}
void complete(Meeting& meeting, std::uint64_t generation) {
  std::swap(meeting.done[generation % 2], meeting.arriving);
  clear(meeting.arriving);
}
void pass(Meeting& meeting, std::uint64_t generation) {
  const Quiet quiet;
  join(now->clock, meeting.done[generation % 2]);
}

void arrive_fresh(Meeting& meeting, std::uint64_t& met, std::uint64_t round) {
  if (met != round) clear(meeting.arriving);
  met = round;
  arrive(meeting);
}
void pass_arrived(Meeting& meeting) { join(now->clock, meeting.arriving); }

void mbarrier_start(const void* barrier) {
  plain(barrier, sizeof(std::uint64_t), true, nullptr);
  const Quiet quiet;
  mbarriers[barrier] = Mbarrier{};
}
void mbarrier_arrive(const void* barrier, bool reads_only) {
  plain(barrier, sizeof(std::uint64_t), false, nullptr);
  const Quiet quiet;
  Meeting& meeting = mbarrier(barrier).meeting;
  join(meeting.arriving.reads, now->clock.reads);
  join(meeting.arriving.fenced, now->clock.fenced);
  if (!reads_only) join(meeting.arriving.writes, now->clock.writes);
  next_epoch();
}
void mbarrier_complete(const void* barrier) {
  const Quiet quiet;
  Mbarrier& state = mbarrier(barrier);
  const std::uint32_t phase = ++state.phase;  // from 1
  if (state.copied) {
    Clock& clock = state.meeting.arriving;
    for (Times* times : {&clock.reads, &clock.writes, &clock.fenced}) {
      raise(*times, state.copies, phase);
    }
    state.copied = false;
  }
  complete(state.meeting, phase - 1);
}
void mbarrier_pass(const void* barrier, std::uint32_t parity) {
  plain(barrier, sizeof(std::uint64_t), false, nullptr);
  const Quiet quiet;
  pass(mbarrier(barrier).meeting, parity);
}

// ---- What agents do
// ------------------------------------------------------------------------------

void read(const void* from, std::size_t bytes) {
  plain(from, bytes, false, __builtin_return_address(0));
}
void write(const void* to, std::size_t bytes) {
  plain(to, bytes, true, __builtin_return_address(0));
}

void copy_write(const void* to, const void* from, std::size_t bytes, std::size_t valid) {
  const Quiet quiet;
  const std::uint32_t agent = agent_of(kCopies);
  const Access access = by(agent, now->group[kCopies], __builtin_return_address(0));
  if (valid > 0) touch(from, valid, false, access, now->clock.writes, now->clock.reads);
  touch(to, bytes, true, access, now->clock.writes, now->clock.reads);
}
void copy_commit() {
  const Quiet quiet;
  agent_of(kCopies);
  ++now->group[kCopies];
}
void copy_wait(int left) {
  const Quiet quiet;
  const std::uint32_t agent = agent_of(kCopies), open = now->group[kCopies];
  const std::uint32_t over = open - 1 - std::min(open - 1, static_cast<std::uint32_t>(left));
  raise(now->clock.reads, agent, over);
  raise(now->clock.writes, agent, over);
}

void product_read(const void* from, std::size_t bytes) {
  const Quiet quiet;
  const std::uint32_t agent = agent_of(kProducts);
  touch(from, bytes, false, by(agent, now->group[kProducts], __builtin_return_address(0)),
        now->clock.fenced, now->clock.reads);
}
void product_commit() {
  const Quiet quiet;
  agent_of(kProducts);
  ++now->group[kProducts];
}
void product_wait(int left) {
  const Quiet quiet;
  const std::uint32_t agent = agent_of(kProducts), open = now->group[kProducts];
  raise(now->clock.reads, agent, open - 1 - std::min(open - 1, static_cast<std::uint32_t>(left)));
}

void bulk_write(const void* to, const void* from, std::size_t bytes, const void* barrier) {
  const Quiet quiet;
  Mbarrier& state = mbarrier(barrier);
  if (state.copies == 0) {
    state.copies = static_cast<std::uint32_t>(names.size());
    names.push_back({"a bulk copy", -1});
  }
  state.copied = true;
  const Access access = by(state.copies, state.phase + 1, __builtin_return_address(0));
  if (from != nullptr) touch(from, bytes, false, access, now->clock.writes, now->clock.reads);
  touch(to, bytes, true, access, now->clock.fenced, now->clock.reads);
}

void store_read(const void* from, void* to, std::size_t bytes) {
  const Quiet quiet;
  const std::uint32_t agent = agent_of(kStores);
  const Access access = by(agent, now->group[kStores], __builtin_return_address(0));
  touch(from, bytes, false, access, now->clock.fenced, now->clock.reads);
  touch(to, bytes, true, access, now->clock.writes, now->clock.reads);
  ++now->group[kStores];
}
void store_wait(int left) {
  const Quiet quiet;
  const std::uint32_t agent = agent_of(kStores), open = now->group[kStores];
  raise(now->clock.reads, agent, open - 1 - std::min(open - 1, static_cast<std::uint32_t>(left)));
}

void fence() {
  const Quiet quiet;
  join(now->clock.fenced, now->clock.writes);
  next_epoch();
}

Site::Site(const void* caller) : outermost_(site_of_caller == nullptr) {
  if (outermost_) site_of_caller = caller;
}
Site::~Site() {
  if (outermost_) site_of_caller = nullptr;
}

std::vector<std::string> take() {
  seen.clear();
  told.clear();
  return std::exchange(reports, {});
}

}  // namespace rankone::cuda::emulation::races

// ---- What -fsanitize=thread calls
// ------------------------------------------------------------------

// NOLINTBEGIN: the compiler's names
using rankone::cuda::emulation::races::plain;
#define RANKONE_ACCESS(bytes)                                                               \
  void __tsan_read##bytes(void* p) { plain(p, bytes, false, __builtin_return_address(0)); } \
  void __tsan_write##bytes(void* p) { plain(p, bytes, true, __builtin_return_address(0)); } \
  void __tsan_unaligned_read##bytes(void* p) {                                              \
    plain(p, bytes, false, __builtin_return_address(0));                                    \
  }                                                                                         \
  void __tsan_unaligned_write##bytes(void* p) {                                             \
    plain(p, bytes, true, __builtin_return_address(0));                                     \
  }
extern "C" {
RANKONE_ACCESS(1)
RANKONE_ACCESS(2)
RANKONE_ACCESS(4)
RANKONE_ACCESS(8)
RANKONE_ACCESS(16)
void __tsan_read_range(void* p, unsigned long bytes) {
  plain(p, bytes, false, __builtin_return_address(0));
}
void __tsan_write_range(void* p, unsigned long bytes) {
  plain(p, bytes, true, __builtin_return_address(0));
}
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
// Of the host's code.
unsigned char __tsan_atomic8_load(const volatile unsigned char* p, int) {
  return __atomic_load_n(p, __ATOMIC_SEQ_CST);
}
unsigned __tsan_atomic32_fetch_add(volatile unsigned* p, unsigned value, int) {
  return __atomic_fetch_add(p, value, __ATOMIC_SEQ_CST);
}
}
// NOLINTEND

#endif
