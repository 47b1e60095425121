#pragma once

// The functions of core/cuda/instructions.hpp on a CPU. Products are summed in float32 in the order
// of the contraction.

#include <type_traits>

#include "core/cuda/tensor_map.hpp"
#include "core/cuda_emulation/asynchronous.hpp"
#include "core/cuda_emulation/language.hpp"
#include "core/cuda_emulation/races.hpp"
#include "core/dtype.hpp"

namespace rankone::cuda {

inline float widen(float value) { return value; }
inline float widen(bf16 value) { return to_float(value); }
inline float widen(f16 value) { return to_float(value); }

template <class Format>
Format narrow(float value) {
  if constexpr (std::is_same_v<Format, float>) {
    return value;
  } else if constexpr (std::is_same_v<Format, bf16>) {
    return to_bf16(value);
  } else {
    return to_f16(value);
  }
}
template <class Format>
std::uint32_t pack(float low, float high) {
  return narrow<Format>(low).bits | static_cast<std::uint32_t>(narrow<Format>(high).bits) << 16;
}
template <class Format>
float2 unpack(std::uint32_t pair) {
  return {to_float(Format{static_cast<std::uint16_t>(pair)}),
          to_float(Format{static_cast<std::uint16_t>(pair >> 16)})};
}
inline std::uint32_t to_tf32(float value) {
  // To nearest, ties away from zero, 13 bits dropped.
  return (std::bit_cast<std::uint32_t>(value) + 0x1000U) & 0xffffe000U;
}
inline float log2_fast(float x) { return std::log2(x); }
inline float reciprocal_fast(float x) { return 1.0F / x; }
inline float exp2_fast(float x) { return x < -126.0F ? 0.0F : std::exp2(x); }

// ---- Words that blocks pass to one another: blocks run one after another here
// ----------------------

RANKONE_UNCHECKED inline void put_word(float* to, float value) { *to = value; }
RANKONE_UNCHECKED inline float peek_word(const float* from) { return *from; }
inline void wait_a_moment() { emulation::yield(); }

// ---- Global memory -----------------------------------------------------------------------------

template <class Word>
void store_word(void* to, const Word& word) {
  if (reinterpret_cast<std::uintptr_t>(to) % sizeof word != 0) {
    emulation::broken("a word is not aligned to its size");
  }
  std::memcpy(to, &word, sizeof word);
}
inline void store_word_if(bool wanted, void* to, const uint4& word) {
  if (wanted) store_word(to, word);
}

// ---- Shared memory -----------------------------------------------------------------------------

inline std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(static_cast<const unsigned char*>(pointer) -
                                    emulation::shared_base());
}

RANKONE_UNCHECKED inline void clear_again(uint4* to) { *to = make_uint4(0, 0, 0, 0); }

namespace emulation {

inline int lane() { return static_cast<int>(thread_index.x % 32); }

template <int Count>
void load_matrices(std::uint32_t (&r)[Count], const void* row, bool transposed) {
  if (shared_address(row) % 16 != 0) broken("a matrix row is not aligned to 16 bytes");
  const unsigned char* slots = exchange(0xffffffffU, &row, sizeof row);
  const int g = lane() / 4, t = lane() % 4;
  for (int matrix = 0; matrix < Count; ++matrix) {
    const auto element = [&](int line, int column) {
      const auto* start = lane_value<const unsigned char*>(slots, matrix * 8 + line);
      std::uint16_t value;
      std::memcpy(&value, start + 2 * column, 2);
      return static_cast<std::uint32_t>(value);
    };
    r[matrix] = transposed ? element(2 * t, g) | element(2 * t + 1, g) << 16
                           : element(g, 2 * t) | element(g, 2 * t + 1) << 16;
  }
}

struct Fragments {
  std::uint32_t a[4], b[2];
};

}  // namespace emulation

inline void load_matrix_x4(std::uint32_t (&r)[4], const void* row) {
  emulation::load_matrices(r, row, false);
}
inline void load_matrix_x4_transposed(std::uint32_t (&r)[4], const void* row) {
  emulation::load_matrices(r, row, true);
}
inline void load_matrix_x2(std::uint32_t (&r)[2], const void* row) {
  emulation::load_matrices(r, row, false);
}
inline void load_matrix_x2_transposed(std::uint32_t (&r)[2], const void* row) {
  emulation::load_matrices(r, row, true);
}

inline std::uint32_t transpose_matrix(std::uint32_t mine) {
  using namespace emulation;
  const unsigned char* slots = exchange(0xffffffffU, &mine, sizeof mine);
  const int g = lane() / 4, t = lane() % 4;
  const auto element = [&](int row, int column) {
    return lane_value<std::uint32_t>(slots, row * 4 + column / 2) >> (column % 2 * 16) & 0xffffU;
  };
  return element(2 * t, g) | element(2 * t + 1, g) << 16;
}

inline void store_matrix_x4_transposed(void* row, const std::uint32_t (&r)[4]) {
  using namespace emulation;
  if (shared_address(row) % 16 != 0) broken("a matrix row is not aligned to 16 bytes");
  const unsigned char* slots = exchange(0xffffffffU, &row, sizeof row);
  const int g = lane() / 4, t = lane() % 4;
  for (int matrix = 0; matrix < 4; ++matrix) {
    for (int j = 0; j < 2; ++j) {
      const auto value = static_cast<std::uint16_t>(r[matrix] >> (16 * j));
      std::memcpy(lane_value<unsigned char*>(slots, matrix * 8 + 2 * t + j) + 2 * g, &value, 2);
    }
  }
  exchange(0xffffffffU, nullptr, 0);
}

inline void store_matrix_x4(void* row, const std::uint32_t (&r)[4]) {
  using namespace emulation;
  if (shared_address(row) % 16 != 0) broken("a matrix row is not aligned to 16 bytes");
  const unsigned char* slots = exchange(0xffffffffU, &row, sizeof row);
  for (int matrix = 0; matrix < 4; ++matrix) {
    std::memcpy(lane_value<unsigned char*>(slots, matrix * 8 + lane() / 4) + 4 * (lane() % 4),
                &r[matrix], 4);
  }
  exchange(0xffffffffU, nullptr, 0);
}

// ---- Products of one warp ----------------------------------------------------------------------

template <class Format>
void mma_m16n8k16(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  using namespace emulation;
  const Fragments mine{{a[0], a[1], a[2], a[3]}, {b0, b1}};
  const unsigned char* slots = exchange(0xffffffffU, &mine, sizeof mine);
  const int g = lane() / 4, t = lane() % 4;
  for (int half = 0; half < 2; ++half) {  // of the contraction
    for (int pair = 0; pair < 4; ++pair) {
      const auto left = lane_value<Fragments>(slots, g * 4 + pair);
      const float2 upper = unpack<Format>(left.a[2 * half]);
      const float2 lower = unpack<Format>(left.a[2 * half + 1]);
      for (int j = 0; j < 2; ++j) {
        const float2 right =
            unpack<Format>(lane_value<Fragments>(slots, (2 * t + j) * 4 + pair).b[half]);
        d[j] += upper.x * right.x;
        d[j] += upper.y * right.y;
        d[2 + j] += lower.x * right.x;
        d[2 + j] += lower.y * right.y;
      }
    }
  }
}
inline void mma_m16n8k8_tf32(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                             std::uint32_t b1) {
  using namespace emulation;
  const Fragments mine{{a[0], a[1], a[2], a[3]}, {b0, b1}};
  const unsigned char* slots = exchange(0xffffffffU, &mine, sizeof mine);
  const int g = lane() / 4, t = lane() % 4;
  const auto value = [](std::uint32_t bits) { return bits_to_float(bits & 0xffffe000U); };
  for (int k = 0; k < 8; ++k) {
    const auto left = lane_value<Fragments>(slots, g * 4 + k % 4);
    for (int j = 0; j < 2; ++j) {
      const float right = value(lane_value<Fragments>(slots, (2 * t + j) * 4 + k % 4).b[k / 4]);
      d[j] += value(left.a[k / 4 * 2]) * right;
      d[2 + j] += value(left.a[k / 4 * 2 + 1]) * right;
    }
  }
}

// ---- Asynchronous copies -----------------------------------------------------------------------

inline void copy_16(void* shared, const void* global, bool valid = true) {
  if (shared_address(shared) % 16 != 0) emulation::broken("a copy is not aligned to 16 bytes");
  if (valid && reinterpret_cast<std::uintptr_t>(global) % 16 != 0) {
    emulation::broken("the source of a copy is not aligned to 16 bytes");
  }
  emulation::copy_later(shared, global, 16, valid ? 16 : 0);
}
inline void copy_4(void* shared, const void* global, bool valid = true) {
  emulation::copy_later(shared, global, 4, valid ? 4 : 0);
}
inline void copy_commit() { emulation::commit_copies(); }
template <int Left>
void copy_wait() {
  emulation::await_copies(Left);
}

// ---- Hopper ------------------------------------------------------------------------------------

namespace emulation {

// What a 64-bit barrier holds here.
struct Mbarrier {
  std::uint16_t arrivals, left;
  std::int32_t bytes_and_phase;  // bytes still to come * 2 + parity of the running phase
};
static_assert(sizeof(Mbarrier) == sizeof(std::uint64_t));

inline Mbarrier& mbarrier_at(std::uint64_t* barrier) {
  return *reinterpret_cast<Mbarrier*>(barrier);
}
RANKONE_UNCHECKED inline void end_phase_if_complete(Mbarrier& barrier) {
  progress();
  if (barrier.left != 0 || barrier.bytes_and_phase / 2 != 0) return;
  races::mbarrier_complete(&barrier);
  barrier.left = barrier.arrivals;
  barrier.bytes_and_phase ^= 1;
}
// An arrival that has the phase wait for `bytes` more; `reads_only` where it passes on no writes.
RANKONE_UNCHECKED inline void arrive(std::uint64_t* barrier, std::uint32_t bytes, bool reads_only) {
  races::mbarrier_arrive(barrier, reads_only);
  Mbarrier& state = mbarrier_at(barrier);
  state.bytes_and_phase += static_cast<std::int32_t>(2 * bytes);
  --state.left;
  end_phase_if_complete(state);
}

}  // namespace emulation

RANKONE_UNCHECKED inline void mbarrier_init(std::uint64_t* barrier, int arrivals) {
  RANKONE_SITE;
  emulation::races::mbarrier_start(barrier);
  const auto count = static_cast<std::uint16_t>(arrivals);
  emulation::mbarrier_at(barrier) = {count, count, 0};
}
inline void mbarrier_fence() {}
RANKONE_UNCHECKED inline void mbarrier_arrive(std::uint64_t* barrier) {
  RANKONE_SITE;
  emulation::arrive(barrier, 0, false);
}
RANKONE_UNCHECKED inline void mbarrier_arrive_expect(std::uint64_t* barrier, std::uint32_t bytes) {
  RANKONE_SITE;
  emulation::arrive(barrier, bytes, false);
}
RANKONE_UNCHECKED inline void mbarrier_wait(std::uint64_t* barrier, std::uint32_t parity,
                                            bool wanted = true) {
  if (!wanted) return;
  while ((static_cast<std::uint32_t>(emulation::mbarrier_at(barrier).bytes_and_phase) & 1U) ==
         (parity & 1U)) {
    emulation::yield();
  }
  RANKONE_SITE;  // not over a turn of other threads
  emulation::races::mbarrier_pass(barrier, parity & 1U);
}

// ---- Clusters

inline int cluster_rank() { return static_cast<int>(blockIdx.x) % emulation::cluster_blocks(); }
inline int cluster_blocks() { return emulation::cluster_blocks(); }
inline void cluster_sync() { emulation::cluster_meet(); }
namespace emulation {
// What stands in block `rank` of the cluster where this one has `mine`.
template <class T>
T* at_rank(T* mine, int rank) {
  auto* bytes = reinterpret_cast<unsigned char*>(mine);
  return reinterpret_cast<T*>(shared_base_of(rank) + (bytes - shared_base()));
}
RANKONE_UNCHECKED inline void count_bytes(std::uint64_t* barrier, std::uint32_t bytes) {
  Mbarrier& state = mbarrier_at(barrier);
  state.bytes_and_phase -= static_cast<std::int32_t>(2 * bytes);
  end_phase_if_complete(state);
}
}  // namespace emulation
RANKONE_UNCHECKED inline void mbarrier_arrive_at(std::uint64_t* barrier, int rank) {
  RANKONE_SITE;
  emulation::arrive(emulation::at_rank(barrier, rank), 0, true);
}
RANKONE_UNCHECKED inline void copy_bulk_to(void* shared, const void* global, std::uint32_t bytes,
                                           std::uint64_t* barrier, std::uint32_t blocks) {
  RANKONE_SITE;
  if (bytes % 16 != 0 || shared_address(shared) % 16 != 0 ||
      reinterpret_cast<std::uintptr_t>(global) % 16 != 0) {
    emulation::broken("a bulk copy is not aligned to 16 bytes");
  }
  for (int rank = 0; rank < cluster_blocks(); ++rank) {
    if ((blocks >> rank & 1U) == 0) continue;
    unsigned char* const to = emulation::at_rank(static_cast<unsigned char*>(shared), rank);
    emulation::races::bulk_write(to, global, bytes, emulation::at_rank(barrier, rank));
    std::memcpy(to, global, bytes);
    emulation::count_bytes(emulation::at_rank(barrier, rank), bytes);
  }
}
inline void copy_bulk(void* shared, const void* global, std::uint32_t bytes,
                      std::uint64_t* barrier) {
  copy_bulk_to(shared, global, bytes, barrier, 1U << cluster_rank());
}
RANKONE_UNCHECKED inline void copy_rows_to(void* shared, const TensorMap* map, int column, int head,
                                           int row, std::uint64_t* barrier, std::uint32_t blocks) {
  RANKONE_SITE;
  if (shared_address(shared) % 1024 != 0)
    emulation::broken("a block of rows is not aligned to 1,024 bytes");
  const auto* data = static_cast<const unsigned char*>(map->data);
  const int line = map->columns * 2;
  for (int rank = 0; rank < cluster_blocks(); ++rank) {
    if ((blocks >> rank & 1U) == 0) continue;
    auto* tile = emulation::at_rank(static_cast<unsigned char*>(shared), rank);
    emulation::races::bulk_write(tile, nullptr, static_cast<std::size_t>(64 * line),
                                 emulation::at_rank(barrier, rank));
    for (int r = 0; r < 64; ++r) {
      for (int c = 0; c < map->columns; ++c) {
        std::uint16_t value = 0;
        if (row + r < map->rows && column + c < map->size) {
          std::memcpy(&value, data + (((row + r) * map->heads + head) * map->size + column + c) * 2,
                      2);
        }
        // Within lines of 128 bytes of the tile, which hold one row or several.
        const int pieces = line / 16, swizzle = line > 128 ? 0 : r * line / 128 % pieces;
        std::memcpy(tile + r * line + ((c / 8) ^ swizzle) * 16 + c % 8 * 2, &value, 2);
      }
    }
    emulation::count_bytes(emulation::at_rank(barrier, rank),
                           static_cast<std::uint32_t>(64 * line));
  }
}
inline void copy_rows(void* shared, const TensorMap* map, int column, int head, int row,
                      std::uint64_t* barrier) {
  copy_rows_to(shared, map, column, head, row, barrier, 1U << cluster_rank());
}
inline void fetch_map(const TensorMap*) {}
inline void fence_async() { emulation::races::fence(); }
inline void store_bulk(void* global, const void* shared, std::uint32_t bytes) {
  if (bytes % 16 != 0 || shared_address(shared) % 16 != 0 ||
      reinterpret_cast<std::uintptr_t>(global) % 16 != 0) {
    emulation::broken("a bulk store is not aligned to 16 bytes");
  }
  emulation::store_later(global, shared, bytes);
}
template <int Left = 0>
void store_bulk_read() {
  emulation::await_stores(Left);
}

inline std::uint64_t matrix_descriptor(const void* start, std::uint32_t leading,
                                       std::uint32_t stride, int swizzle) {
  return (static_cast<std::uint64_t>(shared_address(start) & 0x3ffffU) >> 4) |
         (static_cast<std::uint64_t>(leading >> 4) << 16) |
         (static_cast<std::uint64_t>(stride >> 4) << 32) |
         (static_cast<std::uint64_t>(swizzle) << 62);
}

template <int Count>
void give_registers() {}
template <int Count>
void take_registers() {}
inline void wgmma_fence() {}
inline void wgmma_commit() { emulation::races::product_commit(); }
template <int Left>
void wgmma_wait() {
  emulation::races::product_wait(Left);
}
template <int Count>
void wgmma_hold(float (&)[Count]) {}

namespace emulation {

// Element k of the contraction and n across it of a matrix that a descriptor names.
template <class Format, bool Transposed>
RANKONE_UNCHECKED float described(std::uint64_t matrix, int k, int n) {
  const auto start = static_cast<std::size_t>(matrix & 0x3fffU) << 4;
  const auto leading = static_cast<std::size_t>(matrix >> 16 & 0x3fffU) << 4;
  const auto stride = static_cast<std::size_t>(matrix >> 32 & 0x3fffU) << 4;
  std::size_t place;
  if (matrix >> 62 != 0) {
    const std::size_t line = matrix >> 62 == 1 ? 128 : 64;  // bytes of a row
    const auto row = static_cast<std::size_t>(Transposed ? k : n);
    const auto column = static_cast<std::size_t>(Transposed ? n : k);
    place = start + row / 8 * stride + row % 8 * line + column / (line / 2) * leading +
            column % (line / 2) * 2;
    place ^= (place >> 7 & (line / 16 - 1)) << 4;
  } else {
    const int row = Transposed ? k % 8 : n % 8, column = Transposed ? n % 8 : k % 8;
    place = start + static_cast<std::size_t>(k / 8) * leading +
            static_cast<std::size_t>(n / 8) * stride +
            static_cast<std::size_t>(16 * row + 2 * column);
  }
  races::product_read(shared_base() + place, 2);
  Format value;
  std::memcpy(&value, shared_base() + place, 2);
  return widen(value);
}

}  // namespace emulation

template <class Format, bool Transposed, int Half>
RANKONE_UNCHECKED void wgmma_k16(float (&d)[Half], const std::uint32_t (&a)[4], std::uint64_t b,
                                 bool clear) {
  using namespace emulation;
  const Fragments mine{{a[0], a[1], a[2], a[3]}, {0, 0}};
  const unsigned char* slots = exchange(0xffffffffU, &mine, sizeof mine);
  const int g = lane() / 4, t = lane() % 4;
  if (clear) std::memset(d, 0, sizeof d);
  for (int tile = 0; tile < Half / 4; ++tile) {
    RANKONE_SITE;
    for (int k = 0; k < 16; ++k) {
      const auto left = lane_value<Fragments>(slots, g * 4 + k % 8 / 2);
      const float2 upper = unpack<Format>(left.a[k / 8 * 2]);
      const float2 lower = unpack<Format>(left.a[k / 8 * 2 + 1]);
      for (int j = 0; j < 2; ++j) {
        const float right = described<Format, Transposed>(b, k, tile * 8 + 2 * t + j);
        d[tile * 4 + j] += (k % 2 == 0 ? upper.x : upper.y) * right;
        d[tile * 4 + 2 + j] += (k % 2 == 0 ? lower.x : lower.y) * right;
      }
    }
  }
  exchange(0xffffffffU, nullptr, 0);
}

template <class Format, bool TransposedA, bool TransposedB, int Half>
RANKONE_UNCHECKED void wgmma_k16_shared(float (&d)[Half], std::uint64_t a, std::uint64_t b,
                                        bool clear = false) {
  using namespace emulation;
  if (clear) std::memset(d, 0, sizeof d);
  const int row = static_cast<int>(thread_index.x / 32 % 4) * 16 + lane() / 4, t = lane() % 4;
  for (int k = 0; k < 16; ++k) {
    RANKONE_SITE;
    const float upper = described<Format, TransposedA>(a, k, row);
    const float lower = described<Format, TransposedA>(a, k, row + 8);
    for (int tile = 0; tile < Half / 4; ++tile) {
      for (int j = 0; j < 2; ++j) {
        const float right = described<Format, TransposedB>(b, k, tile * 8 + 2 * t + j);
        d[tile * 4 + j] += upper * right;
        d[tile * 4 + 2 + j] += lower * right;
      }
    }
  }
  exchange(0xffffffffU, nullptr, 0);
}

}  // namespace rankone::cuda
