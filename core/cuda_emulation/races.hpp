#pragma once

// Races of kernels on emulated threads, found by happens-before (RANKONE_RACES; else all of this is
// empty). Whatever is compiled with -fsanitize=thread calls this runtime, not the compiler's own,
// at each access; emulation.cpp and asynchronous.cpp tell it what orders accesses. Every access to
// shared memory and to global memory is kept, none is dropped, so two accesses of one run that
// nothing orders are reported whatever the order in which they took place.
//
// What orders is what the PTX manual promises and no more: barriers and mbarriers of those who
// arrive before those who wait, __syncwarp of its lanes; a shuffle, ldmatrix, stmatrix, mma or
// wgmma orders nothing. Asynchronous work is a thread of its own: a copy by cp.async writes between
// its start and its wait, wgmma reads until its wait, a bulk copy writes until the phase it is
// counted in ends, a bulk store reads until its wait. wgmma and bulk copies see ordinary stores of
// others only behind fence_async(). An arrival at another block's mbarrier passes on that reads are
// over and, for bulk copies over it, what was written before a fence_async(); no other writes.
// Blocks of one launch are ordered by nothing but the barriers of their cluster.
//
// Exact to two bytes. Words of put_word() and peek_word() and stores of clear_again() are left out.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#if defined(RANKONE_RACES)
// A function whose accesses are not looked at; it names those that count.
#define RANKONE_UNCHECKED __attribute__((no_sanitize("thread"), noinline))
#else
#define RANKONE_UNCHECKED
#endif

namespace rankone::cuda::emulation::races {

struct Member {
  unsigned char* shared;
  std::size_t bytes;
};

#if defined(RANKONE_RACES)

inline constexpr bool kWatched = true;

// How much of the past a thread, or a barrier, has behind it: for each thread the last of its
// epochs whose reads are over; whose writes are seen; whose writes wgmma and bulk copies see.
struct Clock {
  std::vector<std::uint32_t> reads, writes, fenced;
};
// What a barrier hands from those who arrive to those who wait; generations take turns.
struct Meeting {
  Clock arriving, done[2];
};

void start_launch();
void start_cluster(const std::vector<Member>& members, int threads);
// A thread begins or goes on, with its stack; and gives way.
void leave();
void resume(int thread, unsigned block, const unsigned char* stack, std::size_t stack_bytes);

// Of the running thread at a barrier: arrives; ends the generation; passes it.
void arrive(Meeting& meeting);
void complete(Meeting& meeting, std::uint64_t generation);
void pass(Meeting& meeting, std::uint64_t generation);
// The same for lanes that meet in rounds: the first of a round forgets the last but one.
void arrive_fresh(Meeting& meeting, std::uint64_t& met, std::uint64_t round);
void pass_arrived(Meeting& meeting);

// Of the running thread at the mbarrier that stands there.
void mbarrier_start(const void* barrier);
void mbarrier_arrive(const void* barrier, bool reads_only);
void mbarrier_complete(const void* barrier);
void mbarrier_pass(const void* barrier, std::uint32_t parity);

// Accesses of the running thread and of what it started.
void read(const void* from, std::size_t bytes);
void write(const void* to, std::size_t bytes);
void copy_write(const void* to, const void* from, std::size_t bytes, std::size_t valid);
void copy_commit();
void copy_wait(int left);
void product_read(const void* from, std::size_t bytes);
void product_commit();
void product_wait(int left);
void bulk_write(const void* to, const void* from, std::size_t bytes, const void* barrier);
void store_read(const void* from, void* to, std::size_t bytes);
void store_wait(int left);
void fence();

// Accesses until its end are those of the caller of the function that has it.
class Site {
 public:
  explicit Site(const void* caller);
  ~Site();
  Site(const Site&) = delete;
  Site& operator=(const Site&) = delete;

 private:
  bool outermost_;
};
#define RANKONE_SITE const ::rankone::cuda::emulation::races::Site site(__builtin_return_address(0))

// The races found since the last call, one for each pair of places in the source.
std::vector<std::string> take();

#else

inline constexpr bool kWatched = false;

struct Meeting {};
inline void start_launch() {}
inline void start_cluster(const std::vector<Member>&, int) {}
inline void leave() {}
inline void resume(int, unsigned, const unsigned char*, std::size_t) {}
inline void arrive_fresh(Meeting&, std::uint64_t&, std::uint64_t) {}
inline void pass_arrived(Meeting&) {}
inline void read(const void*, std::size_t) {}
inline void write(const void*, std::size_t) {}
inline void arrive(Meeting&) {}
inline void complete(Meeting&, std::uint64_t) {}
inline void pass(Meeting&, std::uint64_t) {}
inline void mbarrier_start(const void*) {}
inline void mbarrier_arrive(const void*, bool) {}
inline void mbarrier_complete(const void*) {}
inline void mbarrier_pass(const void*, std::uint32_t) {}
inline void copy_write(const void*, const void*, std::size_t, std::size_t) {}
inline void copy_commit() {}
inline void copy_wait(int) {}
inline void product_read(const void*, std::size_t) {}
inline void product_commit() {}
inline void product_wait(int) {}
inline void bulk_write(const void*, const void*, std::size_t, const void*) {}
inline void store_read(const void*, void*, std::size_t) {}
inline void store_wait(int) {}
inline void fence() {}
#define RANKONE_SITE static_assert(true)

#endif

}  // namespace rankone::cuda::emulation::races
