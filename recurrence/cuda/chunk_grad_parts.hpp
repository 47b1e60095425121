#pragma once

// The gradient kernel, up to where the kinds of decay part: the order of the work, the tiles in
// shared memory, and the sums over value columns.
//
// Blocks stay on the device and take one (chunk, key head) after another, so that the tiles of the
// next one arrive while the last is being finished. Of each they work off passes of `Columns` key
// columns, of these the value heads of the group, of these tiles of 64 value columns (a step).
//
// Three groups of four warps, each with 16 rows of the chunk per warp: the first makes the
// gradients of q from dO, the second those of e from dV, the third those of w from Z; it also
// brings the tiles. A left side is made of rows of the warp, in registers; a right side is a tile.

#include "recurrence/cuda/chunk_grad.hpp"
#include "recurrence/cuda/tile.hpp"

namespace rankone::recurrence::cuda {

inline constexpr int kGradThreads = 384;

// Through a shuffle, so that the compiler knows it to be the same in all lanes.
__device__ __forceinline__ int grad_group() {
  return __shfl_sync(0xffffffffU, static_cast<int>(threadIdx.x / 128), 0);
}

struct GradCall {
  ChunkCall chunk;
  TwoKeyBack back;
  int passes, group, stages;
  // Of every (chunk, key head), whether it is left to the kernel for all decays, which then takes
  // no others; null: it takes all.
  int* marks = nullptr;
};

struct GradItem {
  std::int64_t chunk, first;  // number, and its first row
  std::int64_t key_head;
  int count;  // of rows
};

// Where the work stands. The items of the steps on their way are in shared memory: registers are
// short. Items go to the blocks by turns, those that are wanted.
struct GradStep {
  GradItem* items;   // [4]
  std::uint32_t at;  // number of the item
  int pass = 0, member = 0, tile = 0;
  int number = 0;  // of the item among those of the block, modulo 4

  __device__ GradStep(const GradCall& call, GradItem* table)
      : items(table), at(wanted(call, blockIdx.x)) {}
  static __device__ __forceinline__ std::uint32_t count(const GradCall& call) {
    return static_cast<std::uint32_t>(call.chunk.call.rows.chunks * call.chunk.call.heads);
  }
  // The first of the block's items from `from` on that is wanted. By whole warps.
  static __device__ std::uint32_t wanted(const GradCall& call, std::uint32_t from) {
    if (call.marks == nullptr) return from;
    const std::uint32_t all = count(call);
    while (from < all) {
      const std::uint32_t mine = from + threadIdx.x % 32 * gridDim.x;
      std::uint32_t votes = __ballot_sync(0xffffffffU, mine < all && call.marks[mine] != 0 ? 1 : 0);
      if (votes != 0) {
        for (; (votes & 1U) == 0; votes >>= 1) from += gridDim.x;
        break;
      }
      from += 32 * gridDim.x;
    }
    return from;
  }
  __device__ GradItem& item() const { return items[number]; }
  __device__ bool valid(const GradCall& call) const { return at < count(call); }
  __device__ std::int64_t value_head(const GradCall& call) const {
    return item().key_head * call.group + member;
  }
  __device__ bool starts_item() const { return tile == 0 && member == 0 && pass == 0; }
  __device__ bool last_tile(const GradCall& call) const {
    return tile + 1 == value_tiles(call.chunk.call.d_v);
  }
  __device__ bool last_of_pass(const GradCall& call) const {
    return last_tile(call) && member + 1 == call.group;
  }
  __device__ void advance(const GradCall& call) {
    if (++tile < value_tiles(call.chunk.call.d_v)) return;
    tile = 0;
    if (++member < call.group) return;
    member = 0;
    if (++pass < call.passes) return;
    pass = 0;
    at = wanted(call, at + gridDim.x);
    number = (number + 1) % 4;
  }
};

// Numbers of every row of the chunk, and partial sums, in shared memory.
struct GradRows {
  float high[64], low[64];  // the sum of the log2 decays, as two floats
  float in[64], out[64], gain[64];
  float mantissa[64];  // of the gain, in [1, 2)
  float diagonal[64];  // of dP
  float part_gain[2][64], part_cross[3][64], part_write[64];
  float part_state[8];
  float keep;
  GradItem items[4];  // of the steps on their way
};

template <int Columns>
struct GradShared {
  using Values = RowTile<64, 64>;
  using Keys = RowTile<64, Columns>;
  using State = Tile<64, Columns, false>;
  // Of a stage
  static constexpr int kOutput = 0, kValue = kOutput + Values::kBytes,
                       kUpdate = kValue + Values::kBytes, kState = kUpdate + Values::kBytes,
                       kBack = kState + State::kBytes, kStage = kBack + State::kBytes;
  // Of the block, before the stages. Where e is w, the place of e and what follows it takes the
  // float32 gradients of e on their way to the third group.
  static constexpr int kQuery = 0, kWrite = kQuery + Keys::kBytes, kErase = kWrite + Keys::kBytes,
                       kExchange = kErase, kSeen = kErase + 2 * Keys::kBytes,
                       kRead = kSeen + Values::kBytes, kRows = kRead + Values::kBytes,
                       kStages = kRows + (static_cast<int>(sizeof(GradRows)) + 1023) / 1024 * 1024;

  static constexpr int bytes(int stages) { return kStages + stages * kStage; }
};

// Sums over value columns: accumulators of 16 rows per warp.
template <int Columns, bool Channels>
struct GradSums {
  float inner[32];             // dO Z^T, dV Z^T
  float through[Columns / 2];  // dO S^T, dV S^T, Z dS^T
  // First and second: <S, dS>, this thread's part, of all columns or of eight.
  float state[Channels ? 8 : 1];

  __device__ void clear() {
    for (float& x : inner) x = 0.0F;
    for (float& x : through) x = 0.0F;
    for (float& x : state) x = 0.0F;
  }
};

template <class Format>
__device__ __forceinline__ float dot_of_pairs(std::uint32_t a, std::uint32_t b, float sum) {
  const float2 x = unpack<Format>(a), y = unpack<Format>(b);
  return sum + x.x * y.x + x.y * y.y;
}

// The same, apart where there are sums for every channel.
template <class Format, int Count>
__device__ __forceinline__ void add_pairs(float (&sums)[Count], int first, std::uint32_t a,
                                          std::uint32_t b) {
  const float2 x = unpack<Format>(a), y = unpack<Format>(b);
  sums[Count == 1 ? 0 : first] += x.x * y.x;
  sums[Count == 1 ? 0 : first + 1] += x.y * y.y;
}

// Adds the products of one tile of value columns.
template <class Format, class Engine, int Columns, bool Channels>
__device__ __forceinline__ void add_values(GradSums<Columns, Channels>& sums,
                                           const unsigned char* stage, bool delta,
                                           bool with_state) {
  using Shared = GradShared<Columns>;
  using Values = typename Shared::Values;
  using State = typename Shared::State;
  const int group = grad_group(), warp = static_cast<int>(threadIdx.x / 32), row = 16 * (warp % 4);
  const unsigned char* left = stage + (group == 0   ? Shared::kOutput
                                       : group == 1 ? Shared::kValue
                                                    : Shared::kUpdate);
  const unsigned char* right = stage + (group == 2 ? Shared::kBack : Shared::kState);
  if (group != 1 || delta) {
    std::uint32_t a[4][4];
#pragma unroll
    for (int k = 0; k < 4; ++k) load_a<Values>(a[k], left, row, k);
    const auto add_through = [&] {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        Engine::template multiply<State, true>(sums.through, a[k], right, k, false);
      }
      Engine::commit();
      Engine::template wait<0>();
      Engine::hold(sums.through);
    };
    Engine::begin();
    if (group < 2) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        Engine::template multiply<Values, false>(sums.inner, a[k], stage + Shared::kUpdate, k,
                                                 false);
      }
      add_through();
      Engine::hold(sums.inner);
    } else {
      add_through();
    }
  }
  if (with_state && group < 2) {
    constexpr int kPieces = State::kBytes / 16 / 256;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const int at = (warp * kPieces + i) * 16 * 32 + static_cast<int>(threadIdx.x % 32) * 16;
      const uint4 a = *reinterpret_cast<const uint4*>(stage + Shared::kState + at);
      const uint4 b = *reinterpret_cast<const uint4*>(stage + Shared::kBack + at);
      add_pairs<Format>(sums.state, 0, a.x, b.x);
      add_pairs<Format>(sums.state, 2, a.y, b.y);
      add_pairs<Format>(sums.state, 4, a.z, b.z);
      add_pairs<Format>(sums.state, 6, a.w, b.w);
    }
  }
}

// A number of which the compiler knows nothing, so that it does not keep all multiples of a stride
// in registers.
__device__ __forceinline__ std::int64_t forget(std::int64_t number) {
#if !defined(RANKONE_CUDA_EMULATION)
  asm volatile("" : "+l"(number));
#endif
  return number;
}
__device__ __forceinline__ int forget(int number) {
#if !defined(RANKONE_CUDA_EMULATION)
  asm volatile("" : "+r"(number));
#endif
  return number;
}
// Keeps the compiler from bringing together what it finds before and after.
__device__ __forceinline__ void keep_apart() {
#if !defined(RANKONE_CUDA_EMULATION)
  asm volatile("" ::: "memory");
#endif
}

// 16 numbers of every lane, summed over lanes: each time half of the numbers for half of the lanes,
// down to `Least` of them. (Numbers chosen by address would be put into memory.)
template <int Least, int Half = 8>
__device__ __forceinline__ void fold_lanes(float (&x)[16], int lane) {
  const bool upper = (lane & (2 * Half)) != 0;
#pragma unroll
  for (int i = 0; i < Half; ++i) {
    const float low = x[i], high = x[i + Half];
    x[i] = (upper ? high : low) + __shfl_xor_sync(0xffffffffU, upper ? low : high, 2 * Half);
  }
  if constexpr (Half > Least) fold_lanes<Least, Half / 2>(x, lane);
}

__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffffU, x, 1);
  return x + __shfl_xor_sync(0xffffffffU, x, 2);
}
__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int bits = 16; bits > 0; bits /= 2) x += __shfl_xor_sync(0xffffffffU, x, bits);
  return x;
}

// A gate by its number, in its own dtype.
__device__ __forceinline__ float gate_at(const Gate& gate, std::int64_t i) {
  if (gate.dtype == Dtype::f32) return static_cast<const float*>(gate.data)[i];
  if (gate.dtype == Dtype::bf16) return widen(static_cast<const bf16*>(gate.data)[i]);
  return widen(static_cast<const f16*>(gate.data)[i]);
}
__device__ __forceinline__ void put_gate(void* to, Dtype dtype, std::int64_t i, float value) {
  if (dtype == Dtype::f32) {
    static_cast<float*>(to)[i] = value;
  } else if (dtype == Dtype::bf16) {
    static_cast<bf16*>(to)[i] = narrow<bf16>(value);
  } else {
    static_cast<f16*>(to)[i] = narrow<f16>(value);
  }
}

// A quad transposes its 4 x 4 pairs of a row: then each lane, number `t`, has the eight columns of
// one of four tiles.
__device__ __forceinline__ void exchange_pairs(std::uint32_t (&p)[4], int t) {
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const std::uint32_t other = __shfl_xor_sync(0xffffffffU, t % 2 == 0 ? p[i + 1] : p[i], 1);
    (t % 2 == 0 ? p[i + 1] : p[i]) = other;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const std::uint32_t other = __shfl_xor_sync(0xffffffffU, t < 2 ? p[i + 2] : p[i], 2);
    (t < 2 ? p[i + 2] : p[i]) = other;
  }
}

// Writes accumulators d [16 rows, Columns] per warp to a gradient of a key.
template <class Format, int Columns>
__device__ __forceinline__ void store_keys(const float (&d)[Columns / 2], const TwoKeyCall& sizes,
                                           const GradItem& item, int pass, void* to) {
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  const int t = lane % 4, row = 16 * (warp % 4) + lane / 4;
  const int column = pass * Columns + 8 * t;
  const std::int64_t stride = sizes.heads * sizes.d_k * 2;
  unsigned char* at = static_cast<unsigned char*>(to) + (item.first + row) * stride +
                      (item.key_head * sizes.d_k + column) * 2;
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    if (j == 1) at += 8 * stride;
    const int columns = row + 8 * j < item.count ? sizes.d_k : 0;
#pragma unroll
    for (int n = 0; n < Columns / 8; n += 4) {
      std::uint32_t p[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        p[i] = pack<Format>(d[4 * (n + i) + 2 * j], d[4 * (n + i) + 2 * j + 1]);
      }
      exchange_pairs(p, t);
      if (column + 8 * n < columns) {
        *reinterpret_cast<uint4*>(at + 16 * n) = make_uint4(p[0], p[1], p[2], p[3]);
      }
    }
  }
}

}  // namespace rankone::recurrence::cuda
