// The detector of races (core/cuda_emulation/races.hpp): kernels that are right, of which nothing
// is reported, and each with one thing left out, which must be. And every other test of this
// program fails where a race is found in it.

#include "core/cuda/language.hpp"

#if defined(RANKONE_RACES)

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "core/cuda/instructions.hpp"
#include "core/cuda_emulation/races.hpp"

namespace rankone::test {
namespace {

using namespace cuda;  // NOLINT(google-build-using-namespace): the kernel language
namespace races = emulation::races;

class NoRaces : public testing::EmptyTestEventListener {
  void OnTestEnd(const testing::TestInfo&) override {
    for (const std::string& race : races::take()) ADD_FAILURE() << race;
  }
};
const bool kListens = [] {
  testing::UnitTest::GetInstance()->listeners().Append(new NoRaces);
  return true;
}();

// Each kernel is right where `planted` is 0; its other values each leave something out.

void next_of_block(int planted, float* to) {
  auto* const shared = reinterpret_cast<float*>(shared_memory());
  const unsigned t = threadIdx.x;
  for (int round = 0; round < 3; ++round) {
    shared[t] = static_cast<float>(t);
    if (planted != 1) __syncthreads();
    const float next = shared[(t + 1) % blockDim.x];
    if (planted != 2) __syncthreads();
    to[blockIdx.x * blockDim.x + t] = next;
  }
}

void next_of_warp(int planted, float* to) {
  auto* const shared = reinterpret_cast<float*>(shared_memory());
  const unsigned t = threadIdx.x;
  shared[t] = static_cast<float>(t);
  if (planted == 1) {
    __shfl_xor_sync(0xffffffffU, t, 1);  // orders nothing
  } else {
    __syncwarp();
  }
  to[t] = shared[t ^ 1U];
}

// A warp feeds another through two slots, with named barriers.
void named(int planted, float* to) {
  auto* const shared = reinterpret_cast<float*>(shared_memory());
  const int lane = static_cast<int>(threadIdx.x % 32);
  for (int round = 0; round < 6; ++round) {
    const int slot = round % 2;
    float* const place = shared + slot * 32;
    if (threadIdx.x < 32) {
      if (round >= 2) barrier_sync(3 + slot, 64);  // has been read
      if (planted == 1) barrier_arrive(1 + slot, 64);
      place[lane] = static_cast<float>(round);
      if (planted != 1) barrier_arrive(1 + slot, 64);
    } else {
      barrier_sync(1 + slot, 64);
      if (planted == 2 && round < 4) barrier_arrive(3 + slot, 64);
      to[lane] = place[31 - lane];
      if (planted != 2 && round < 4) barrier_arrive(3 + slot, 64);
    }
  }
}

// The same with bulk copies and barriers in shared memory.
void ring(int planted, const float* from, float* to) {
  unsigned char* const shared = shared_memory();
  auto* const full = reinterpret_cast<std::uint64_t*>(shared + 256);
  std::uint64_t* const empty = full + 2;
  const int lane = static_cast<int>(threadIdx.x % 32);
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; ++i) {
      mbarrier_init(full + i, 1);
      mbarrier_init(empty + i, 32);
    }
    mbarrier_fence();
  }
  __syncthreads();
  for (int round = 0; round < 6; ++round) {
    const int slot = round % 2;
    const auto turn = static_cast<std::uint32_t>(round / 2 % 2);
    if (threadIdx.x == 0) {
      if (round >= 2) mbarrier_wait(empty + slot, turn ^ 1U);
      mbarrier_arrive_expect(full + slot, 128);
      copy_bulk(shared + slot * 128, from + round * 32, 128, full + slot);
    } else if (threadIdx.x >= 32) {
      const auto* const place = reinterpret_cast<const float*>(shared + slot * 128);
      if (planted == 1) to[lane] = place[31 - lane];  // has not come yet
      mbarrier_wait(full + slot, turn);
      if (planted == 2) mbarrier_arrive(empty + slot);
      if (planted != 1) to[lane] = place[31 - lane];
      if (planted != 2) mbarrier_arrive(empty + slot);
    }
  }
}

// Ordinary copies in groups, read by the whole block.
void copies(int planted, const float* from, float* to) {
  auto* const shared = reinterpret_cast<float*>(shared_memory());
  const unsigned t = threadIdx.x, size = blockDim.x;
  float sum = 0.0F;
  copy_4(shared + t, from + t);
  copy_commit();
  for (unsigned round = 0; round < 4; ++round) {
    const unsigned next = round + 1;
    if (planted == 1) copy_4(shared + next % 2 * size + t, from + next * size + t);
    if (planted != 2) copy_wait<0>();
    if (planted != 3) __syncthreads();
    if (planted != 1) copy_4(shared + next % 2 * size + t, from + next * size + t);
    copy_commit();
    sum += shared[round % 2 * size + (t + 1) % size];
  }
  copy_wait<0>();
  to[t] = sum;
}

// Four warps multiply by a tile that they wrote themselves, twice.
void products(int planted, float* to) {
  unsigned char* const shared = shared_memory();
  float d[16] = {};
  const std::uint32_t a[4] = {};
  for (int round = 0; round < 2; ++round) {
    for (unsigned i = threadIdx.x; i < 16 * 32; i += blockDim.x) {
      reinterpret_cast<std::uint16_t*>(shared)[i] = 0;
    }
    if (planted != 1) fence_async();
    __syncthreads();
    wgmma_fence();
    wgmma_k16<bf16, false>(d, a, matrix_descriptor(shared, 512, 128, 0), false);
    wgmma_commit();
    if (planted != 2) wgmma_wait<0>();
    __syncthreads();
    wgmma_wait<0>();
  }
  to[threadIdx.x] = d[0];
}

// A block's result leaves by a bulk store, and its memory is written again.
void stores(int planted, float* to) {
  auto* const shared = reinterpret_cast<float*>(shared_memory());
  for (int round = 0; round < 2; ++round) {
    shared[threadIdx.x] = 1.0F;
    if (planted != 1) fence_async();
    __syncthreads();
    if (threadIdx.x == 0) {
      store_bulk(to + round * 64, shared, 256);
      if (planted != 2) store_bulk_read();
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) store_bulk_read();
}

void blocks(int planted, float* to) {
  if (threadIdx.x == 0) to[planted == 1 ? 0 : blockIdx.x] = 1.0F;
  if (planted == 2) to[32] = to[blockIdx.x];
}

// Two blocks send each other rounds.
void pair(int planted, const float* from, float* to) {
  unsigned char* const shared = shared_memory();
  auto* const full = reinterpret_cast<std::uint64_t*>(shared + 256);
  std::uint64_t* const empty = full + 1;
  const int rank = cluster_rank(), lane = static_cast<int>(threadIdx.x);
  if (threadIdx.x == 0) {
    mbarrier_init(full, 1);
    mbarrier_init(empty, 2);
    mbarrier_fence();
  }
  cluster_sync();
  for (int round = 0; round < 3; ++round) {
    if (threadIdx.x == 0) {
      if (round > 0) mbarrier_wait(empty, static_cast<std::uint32_t>(round - 1) % 2);
      mbarrier_arrive_expect(full, 256);
      copy_bulk_to(shared + rank * 128, from, 128, full, 3);
    }
    mbarrier_wait(full, static_cast<std::uint32_t>(round) % 2);
    if (planted == 1 && lane < 2) mbarrier_arrive_at(empty, lane);
    to[blockIdx.x * 32 + threadIdx.x] = reinterpret_cast<const float*>(shared)[63 - lane];
    if (planted != 2) __syncwarp();
    if (planted != 1 && lane < 2) mbarrier_arrive_at(empty, lane);
  }
  cluster_sync();
}

struct Planted {
  const char* name;
  int ways;    // to leave something out
  int orders;  // in which it then still ends
  void (*run)(int planted);
};
alignas(16) float source[1024];
float result[1024];

const Planted kPlanted[] = {
    {"next_of_block", 2, 3, [](int p) { launch(next_of_block, 2, 64, 1024, nullptr, p, +result); }},
    {"next_of_warp", 1, 3, [](int p) { launch(next_of_warp, 1, 32, 1024, nullptr, p, +result); }},
    {"named", 2, 3, [](int p) { launch(named, 1, 64, 1024, nullptr, p, +result); }},
    {"ring", 2, 3, [](int p) { launch(ring, 1, 64, 1024, nullptr, p, +source, +result); }},
    {"copies", 3, 3, [](int p) { launch(copies, 1, 64, 1024, nullptr, p, +source, +result); }},
    {"products", 2, 3, [](int p) { launch(products, 1, 128, 2048, nullptr, p, +result); }},
    {"stores", 2, 3, [](int p) { launch(stores, 1, 64, 1024, nullptr, p, +result); }},
    {"blocks", 2, 3, [](int p) { launch(blocks, 4, 32, 1024, nullptr, p, +result); }},
    {"pair", 2, 1,
     [](int p) { launch_clusters(pair, 2, 2, 32, 1024, nullptr, p, +source, +result); }},
};

TEST(Races, WhatIsLeftOutIsFound) {
  for (const Planted& kernel : kPlanted) {
    for (int order = 0; order < 3; ++order) {
      emulation::set_order(static_cast<std::uint64_t>(order));
      kernel.run(0);
      for (const std::string& race : races::take()) ADD_FAILURE() << kernel.name << ": " << race;
      for (int way = 1; way <= kernel.ways && order < kernel.orders; ++way) {
        kernel.run(way);
        const std::vector<std::string> found = races::take();
        EXPECT_FALSE(found.empty()) << kernel.name << " " << way << ", order " << order;
        for (const std::string& race : found) {
          EXPECT_NE(race.find("races_test.cpp"), std::string::npos) << race;
        }
      }
    }
  }
  emulation::set_order(0);
}

}  // namespace
}  // namespace rankone::test

#endif
