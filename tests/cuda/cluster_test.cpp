// What the kernels of Hopper share besides single blocks: clusters and their copies, narrow tiles,
// and products with both sides in shared memory. On emulated threads, in several orders.

#if defined(RANKONE_CUDA_EMULATION)

#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <vector>

#include "recurrence/cuda/tile.hpp"

namespace rankone::test {
namespace {

using namespace cuda;  // NOLINT(google-build-using-namespace): the kernel language
using recurrence::cuda::NarrowTile;
using recurrence::cuda::RowTile;
using recurrence::cuda::Tile;
using recurrence::cuda::WgmmaEngine;

constexpr int kStages = 2, kRounds = 7, kPart = 64;  // bytes that a block brings in a round

// Every block brings its part of a round to all; every block sums up the bytes of all parts.
void share_rounds(const unsigned char* from, std::int64_t* sums) {
  unsigned char* const shared = shared_memory();
  const int blocks = cluster_blocks(), rank = cluster_rank();
  auto* const full = reinterpret_cast<std::uint64_t*>(shared + kStages * kPart * 8);
  std::uint64_t* const empty = full + kStages;
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      mbarrier_init(full + i, 1);
      mbarrier_init(empty + i, blocks);
    }
    mbarrier_fence();
  }
  cluster_sync();
  const auto bytes = static_cast<std::uint32_t>(blocks * kPart);
  if (threadIdx.x == 32) {
    for (int round = 0; round < kRounds; ++round) {
      const int stage = round % kStages, turn = round / kStages;
      if (turn > 0) mbarrier_wait(empty + stage, static_cast<std::uint32_t>(turn - 1) % 2);
      mbarrier_arrive_expect(full + stage, bytes);
      copy_bulk_to(shared + stage * kPart * 8 + rank * kPart,
                   from + (round * blocks + rank) * kPart, kPart, full + stage,
                   (1U << blocks) - 1U);
    }
  } else if (threadIdx.x < 32) {
    std::int64_t sum = 0;
    for (int round = 0; round < kRounds; ++round) {
      const int stage = round % kStages;
      mbarrier_wait(full + stage, static_cast<std::uint32_t>(round / kStages % 2));
      for (std::uint32_t i = threadIdx.x; i < bytes; i += 32) {
        sum = sum * 7 % 1000003 + shared[stage * kPart * 8 + static_cast<int>(i)];
      }
      __syncwarp();
      if (static_cast<int>(threadIdx.x) < blocks) {
        mbarrier_arrive_at(empty + stage, static_cast<int>(threadIdx.x));
      }
    }
    sums[blockIdx.x * 32 + threadIdx.x] = sum;
  }
  cluster_sync();
}

TEST(Cluster, BlocksBringTilesToOneAnother) {
  for (const int cluster : {1, 2, 4, 8}) {
    alignas(16) static unsigned char from[kRounds * 8 * kPart];
    for (std::size_t i = 0; i < sizeof from; ++i)
      from[i] = static_cast<unsigned char>(i * 31 % 251);
    std::vector<std::int64_t> expected(32);
    for (int lane = 0; lane < 32; ++lane) {
      for (int round = 0; round < kRounds; ++round) {
        for (int i = lane; i < cluster * kPart; i += 32) {
          auto& sum = expected[static_cast<std::size_t>(lane)];
          sum = sum * 7 % 1000003 + from[round * cluster * kPart + i];
        }
      }
    }
    for (const std::uint64_t seed : {0, 1, 2, 3}) {
      emulation::set_order(seed);
      std::vector<std::int64_t> sums(static_cast<std::size_t>(2 * cluster * 32));
      launch_clusters(share_rounds, 2 * cluster, cluster, 64, kStages * (kPart * 8 + 16), nullptr,
                      &from[0], sums.data());
      for (std::size_t i = 0; i < sums.size(); ++i) EXPECT_EQ(sums[i], expected[i % 32]);
    }
    emulation::set_order(0);
  }
}

// d [64, N] = a b + 1 * (a b): a by rows or transposed, b by its contraction or transposed.
template <int N, bool TransposedA>
void multiply(const float* a, const float* b, float* d) {
  using A = RowTile<64, 64>;
  using B = Tile<64, N, false>;
  using Engine = WgmmaEngine<bf16>;
  unsigned char* const left = shared_memory();
  unsigned char* const right = left + A::kBytes;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const auto put = [](unsigned char* at, float value) {
    *reinterpret_cast<std::uint16_t*>(at) = narrow<bf16>(value).bits;
  };
  for (int i = thread; i < 64 * 64; i += 128) {
    const int row = TransposedA ? i % 64 : i / 64, column = TransposedA ? i / 64 : i % 64;
    put(left + A::place(row, column / 8) + column % 8 * 2, a[i]);
  }
  // b as a warp has it in accumulators, 16 rows each.
  for (int n = 0; n < N; n += 16) {
    std::uint32_t r[4];
    for (int j = 0; j < 4; ++j) {
      const float* at = b + (16 * warp + j % 2 * 8 + lane / 4) * N + n + j / 2 * 8 + lane % 4 * 2;
      r[j] = pack<bf16>(at[0], at[1]);
    }
    store_matrix_x4(right + B::place(16 * warp + lane % 16, n / 8 + lane / 16), r);
  }
  fence_async();
  __syncthreads();
  float sum[N / 2];
  for (int twice = 0; twice < 2; ++twice) {
    Engine::begin();
    for (int k = 0; k < 4; ++k) {
      Engine::multiply_tiles<A, TransposedA, B, true>(sum, left, right, k, twice == 0 && k == 0);
    }
    Engine::commit();
    Engine::wait<0>();
  }
  for (int i = 0; i < N / 2; ++i) {
    d[(16 * warp + i / 2 % 2 * 8 + lane / 4) * N + i / 4 * 8 + lane % 4 * 2 + i % 2] = sum[i];
  }
}

template <int N, bool TransposedA>
void check_product() {
  std::vector<float> a(64 * 64), b(64 * N), d(64 * N);
  for (std::size_t i = 0; i < a.size(); ++i) a[i] = static_cast<float>(i * 37 % 17) - 8.0F;
  for (std::size_t i = 0; i < b.size(); ++i) b[i] = static_cast<float>(i * 53 % 13) - 6.0F;
  launch(multiply<N, TransposedA>, 1, 128, 64 * 128 + 64 * N * 2, nullptr, a.data(), b.data(),
         d.data());
  for (int m = 0; m < 64; ++m) {
    for (int n = 0; n < N; ++n) {
      float sum = 0.0F;
      for (int k = 0; k < 64; ++k) {
        sum += a[static_cast<std::size_t>(m * 64 + k)] * b[static_cast<std::size_t>(k * N + n)];
      }
      ASSERT_EQ(d[static_cast<std::size_t>(m * N + n)], 2.0F * sum) << N << " " << m << " " << n;
    }
  }
}

TEST(Cluster, MultipliesTilesOfSharedMemory) {
  check_product<16, false>();
  check_product<32, false>();
  check_product<64, false>();
  check_product<16, true>();
  check_product<32, true>();
  check_product<64, true>();
}

template <int N>
void fetch_narrow(TensorMap map, std::uint16_t* out) {
  using T = NarrowTile<64, N>;
  unsigned char* const shared = shared_memory();
  auto* const barrier = reinterpret_cast<std::uint64_t*>(shared + T::kBytes);
  if (threadIdx.x == 0) {
    mbarrier_init(barrier, 1);
    mbarrier_arrive_expect(barrier, T::kBytes);
    copy_rows(shared, &map, N, 1, 3, barrier);
  }
  __syncthreads();
  mbarrier_wait(barrier, 0);
  for (int i = static_cast<int>(threadIdx.x); i < 64 * N; i += 32) {
    const int row = i / N, column = i % N;
    out[i] = *reinterpret_cast<std::uint16_t*>(shared + T::place(row, column / 8) + column % 8 * 2);
  }
}

template <int N>
void check_narrow() {
  constexpr int kRows = 70, kHeads = 2, kSize = 2 * N - 8;  // a piece is missing
  alignas(16) static std::uint16_t data[kRows * kHeads * kSize];
  std::iota(data, data + kRows * kHeads * kSize, std::uint16_t{1});
  std::vector<std::uint16_t> out(64 * N);
  launch(fetch_narrow<N>, 1, 32, NarrowTile<64, N>::kBytes + 8, nullptr,
         row_map(data, kRows, kHeads, kSize, N), out.data());
  for (int row = 0; row < 64; ++row) {
    for (int column = 0; column < N; ++column) {
      const bool inside = N + column < kSize;
      ASSERT_EQ(out[static_cast<std::size_t>(row * N + column)],
                inside ? data[((row + 3) * kHeads + 1) * kSize + N + column] : 0);
    }
  }
}

TEST(Cluster, BringsNarrowRows) {
  check_narrow<16>();
  check_narrow<32>();
}

}  // namespace
}  // namespace rankone::test

#endif
