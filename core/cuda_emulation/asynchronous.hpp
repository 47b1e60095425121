#pragma once

// Asynchronous copies of the emulation: a cp.async takes place when its thread waits for its group
// (as late as the language allows, so a missing wait shows), a bulk copy at once, with its bytes
// counted at the barrier, a bulk store when its thread waits until it has been read.

#include <cstddef>
#include <cstdint>

namespace rankone::cuda::emulation {

int running_thread();
void start_copies(int threads);  // of a block
void finish_copies(int thread);  // at the end of a thread: fails where copies were never awaited

void copy_later(void* shared, const void* global, std::size_t bytes, std::size_t valid);
void commit_copies();
void await_copies(int groups_left);

void store_later(void* global, const void* shared, std::size_t bytes);
void await_stores(int left);  // all but the last

}  // namespace rankone::cuda::emulation
