#include "core/cuda_emulation/asynchronous.hpp"

#include <cstring>
#include <deque>
#include <vector>

#include "core/cuda/language.hpp"
#include "core/cuda_emulation/races.hpp"

namespace rankone::cuda::emulation {
namespace {

struct Copy {
  void* to;
  const void* from;
  std::size_t bytes, valid;
};

struct Thread {
  std::vector<Copy> open;
  std::deque<std::vector<Copy>> groups;
  std::deque<Copy> stores;
};

std::vector<Thread> threads_;

Thread& mine() { return threads_[static_cast<std::size_t>(running_thread())]; }

}  // namespace

void start_copies(int threads) { threads_.assign(static_cast<std::size_t>(threads), Thread{}); }

void finish_copies(int thread) {
  const Thread& state = threads_[static_cast<std::size_t>(thread)];
  bool pending = !state.open.empty() || !state.stores.empty();
  for (const auto& group : state.groups) pending = pending || !group.empty();
  if (pending) broken("a thread ended with copies it never waited for");
}

void copy_later(void* shared, const void* global, std::size_t bytes, std::size_t valid) {
  RANKONE_SITE;
  races::copy_write(shared, global, bytes, valid);
  mine().open.push_back({shared, global, bytes, valid});
}

void commit_copies() {
  races::copy_commit();
  mine().groups.push_back(std::move(mine().open));
  mine().open.clear();
}

void await_copies(int groups_left) {
  races::copy_wait(groups_left);
  auto& groups = mine().groups;
  while (static_cast<int>(groups.size()) > groups_left) {
    for (const Copy& copy : groups.front()) {
      std::memcpy(copy.to, copy.from, copy.valid);
      std::memset(static_cast<unsigned char*>(copy.to) + copy.valid, 0, copy.bytes - copy.valid);
    }
    groups.pop_front();
  }
}

void store_later(void* global, const void* shared, std::size_t bytes) {
  RANKONE_SITE;
  races::store_read(shared, global, bytes);
  mine().stores.push_back({global, shared, bytes, bytes});
}

void await_stores(int left) {
  races::store_wait(left);
  auto& stores = mine().stores;
  while (static_cast<int>(stores.size()) > left) {
    const Copy& store = stores.front();
    std::memcpy(store.to, store.from, store.bytes);
    stores.pop_front();
  }
}

}  // namespace rankone::cuda::emulation
