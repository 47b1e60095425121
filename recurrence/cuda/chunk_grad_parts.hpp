#pragma once

// The gradient kernel, up to where the kinds of decay part: the order of the work, the tiles in
// shared memory, and the sums over value columns.
//
// Blocks stay on the device and take one (chunk, key head) after another, so that the tiles of the
// next one arrive while the last is being finished. Of each they work off passes of `Columns` key
// columns, of these the value heads of the group, of these tiles of 64 value columns (a Step).
//
// Eight warps: rows 16 (warp % 4) .. of the chunk, and of every product the left (warps 0 - 3) or
// right half of the columns. A left side is made of rows of the warp, in registers; a right side is
// a tile.

#include "recurrence/cuda/chunk_grad.hpp"
#include "recurrence/cuda/tile.hpp"

namespace rankone::recurrence::cuda {

inline constexpr int kGradThreads = 256;

struct GradCall {
  ChunkCall chunk;
  TwoKeyBack back;
  int passes, group, stages;
};

struct GradStep {
  std::int64_t item;  // chunk * H + key head
  int pass, member, tile;
  Span span;

  __device__ explicit GradStep(const GradCall& call)
      : item(blockIdx.x), pass(0), member(0), tile(0), span{} {
    if (valid(call)) span = call.chunk.call.rows.span(chunk(call));
  }
  __device__ bool valid(const GradCall& call) const {
    return item < call.chunk.call.rows.chunks * call.chunk.call.heads;
  }
  __device__ std::int64_t chunk(const GradCall& call) const { return item / call.chunk.call.heads; }
  __device__ std::int64_t key_head(const GradCall& call) const {
    return item % call.chunk.call.heads;
  }
  __device__ std::int64_t value_head(const GradCall& call) const {
    return key_head(call) * call.group + member;
  }
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
    item += gridDim.x;
    if (valid(call)) span = call.chunk.call.rows.span(chunk(call));
  }
};

// Numbers of every row of the chunk, and partial sums, in shared memory.
struct GradRows {
  float high[64], low[64];  // the sum of the log2 decays, as two floats
  float in[64], out[64], gain[64];
  float diagonal[64];  // of dP
  float part_gain[2][64], part_cross[2][64], part_write[2][64];
  float part_state[8];
  float keep;
};

template <int Columns>
struct GradShared {
  using Values = Tile<64, 64, true>;
  using Keys = Tile<64, Columns, true>;
  using State = Tile<64, Columns, false>;
  // Of a stage
  static constexpr int kOutput = 0, kValue = kOutput + Values::kBytes,
                       kUpdate = kValue + Values::kBytes, kState = kUpdate + Values::kBytes,
                       kBack = kState + State::kBytes, kStage = kBack + State::kBytes;
  // Of the block, before the stages
  static constexpr int kQuery = 0, kErase = kQuery + Keys::kBytes, kWrite = kErase + Keys::kBytes,
                       kSeen = kWrite + Keys::kBytes, kRead = kSeen + Values::kBytes,
                       kRows = kRead + Values::kBytes,
                       kStages = kRows + (static_cast<int>(sizeof(GradRows)) + 127) / 128 * 128;

  static constexpr int bytes(int stages) { return kStages + stages * kStage; }
};

// Sums over value columns: accumulators of 16 rows and half of the columns per warp.
template <int Columns, bool Channels>
struct GradSums {
  float seen[16], read[16];                                          // dO U^T and dV U^T
  float query[Columns / 4], erase[Columns / 4], write[Columns / 4];  // dO S^T, dV S^T, U dS^T
  float gain[2];  // dV . U of rows g and g + 8, every second step
  // <S, dS>, this thread's part: of all columns, or of columns 8 warp .. 8 warp + 7.
  float state[Channels ? 8 : 1];

  __device__ void clear() {
#pragma unroll
    for (int i = 0; i < 16; ++i) seen[i] = read[i] = 0.0F;
#pragma unroll
    for (int i = 0; i < Columns / 4; ++i) query[i] = erase[i] = write[i] = 0.0F;
    gain[0] = gain[1] = 0.0F;
    for (float& x : state) x = 0.0F;
  }
};

// Two products with the same right side.
template <class Engine, class Format, class T, bool Transposed, int Half>
__device__ __forceinline__ void multiply_both(float (&d0)[Half], float (&d1)[Half],
                                              const std::uint32_t (&a0)[4],
                                              const std::uint32_t (&a1)[4],
                                              const unsigned char* tile, int k) {
  if constexpr (std::is_same_v<Engine, MmaEngine<Format>>) {
#pragma unroll
    for (int n = 0; n < Half * 2; n += 16) {
      std::uint32_t b[4];
      if constexpr (Transposed) {
        load_b_transposed<T>(b, tile, n, k);
      } else {
        load_b<T>(b, tile, n, k);
      }
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int at = n / 2 + 4 * j;
        mma_m16n8k16<Format>(reinterpret_cast<float(&)[4]>(d0[at]), a0, b[2 * j], b[2 * j + 1]);
        mma_m16n8k16<Format>(reinterpret_cast<float(&)[4]>(d1[at]), a1, b[2 * j], b[2 * j + 1]);
      }
    }
  } else {
    Engine::template multiply<T, Transposed>(d0, a0, tile, k, false);
    Engine::template multiply<T, Transposed>(d1, a1, tile, k, false);
  }
}

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

template <int Columns>
__device__ __forceinline__ void load_values(const GradCall& call, const GradStep& step,
                                            unsigned char* stage, bool with_value) {
  using Shared = GradShared<Columns>;
  using Values = typename Shared::Values;
  const ChunkCall& chunk = call.chunk;
  const TwoKeyCall& sizes = chunk.call;
  const int thread = static_cast<int>(threadIdx.x);
  const std::int64_t head = step.value_head(call), stride = sizes.value_heads * sizes.d_v * 2;
  const std::int64_t offset =
      step.span.first * stride + (head * sizes.d_v + step.tile * kValueTile) * 2;
  const int left = sizes.d_v - step.tile * kValueTile;
  const auto rows = [&](int to, const void* from) {
    load_tile<Values>(stage + to, static_cast<const unsigned char*>(from) + offset, stride,
                      step.span.count, left < kValueTile ? left : kValueTile, thread, kGradThreads);
  };
  rows(Shared::kOutput, call.back.d_o);
  if (with_value) rows(Shared::kValue, chunk.d_value);
  rows(Shared::kUpdate, chunk.u);
  constexpr int kBytes = Shared::State::kBytes;
  const std::int64_t tile =
      2 * chunk.state_tile(step.chunk(call), head, step.tile) + step.pass * kBytes;
  const auto* state = static_cast<const unsigned char*>(chunk.states) + tile;
  const auto* back = static_cast<const unsigned char*>(chunk.d_states) + tile;
#pragma unroll 4
  for (int i = thread * 16; i < kBytes; i += kGradThreads * 16) {
    copy_16(stage + Shared::kState + i, state + i);
    copy_16(stage + Shared::kBack + i, back + i);
  }
}

template <int Columns>
__device__ __forceinline__ void load_keys(const GradCall& call, const GradStep& step,
                                          unsigned char* shared) {
  using Shared = GradShared<Columns>;
  const TwoKeyCall& sizes = call.chunk.call;
  const std::int64_t stride = sizes.heads * sizes.d_k * 2;
  const std::int64_t offset =
      step.span.first * stride + (step.key_head(call) * sizes.d_k + step.pass * Columns) * 2;
  const int left = sizes.d_k - step.pass * Columns;
  const auto rows = [&](int to, const void* from) {
    load_tile<typename Shared::Keys>(shared + to, static_cast<const unsigned char*>(from) + offset,
                                     stride, step.span.count, left < Columns ? left : Columns,
                                     static_cast<int>(threadIdx.x), kGradThreads);
  };
  rows(Shared::kQuery, sizes.q);
  rows(Shared::kWrite, sizes.w);
  if (sizes.delta && !sizes.same_key) rows(Shared::kErase, sizes.e);
}

// Adds the products of one tile of value columns.
template <class Format, class Engine, int Columns, bool Channels>
__device__ __forceinline__ void add_values(GradSums<Columns, Channels>& sums,
                                           const unsigned char* stage, bool delta, bool with_value,
                                           bool with_state) {
  using Shared = GradShared<Columns>;
  using Values = typename Shared::Values;
  using State = typename Shared::State;
  const int warp = static_cast<int>(threadIdx.x / 32), half = warp / 4, row = 16 * (warp % 4);
  // The halves of the right sides: rows of U, columns of the states.
  const unsigned char* update = stage + Shared::kUpdate + half * 32 * 16;
  const unsigned char* state = stage + Shared::kState + half * Columns / 16 * State::kColumn;
  const unsigned char* back = stage + Shared::kBack + half * Columns / 16 * State::kColumn;
  std::uint32_t output[4][4], value[4][4], own[4][4];
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    load_a<Values>(output[k], stage + Shared::kOutput, row, k);
    load_a<Values>(own[k], stage + Shared::kUpdate, row, k);
    load_a<Values>(value[k], stage + Shared::kValue, row, k);
  }
  if (with_value) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float dot = dot_of_pairs<Format>(value[k][j], own[k][j], 0.0F);
        sums.gain[j % 2] += k / 2 == half ? dot : 0.0F;
      }
    }
  }
  if (!delta) {  // nothing was read, so nothing is erased
#pragma unroll
    for (int k = 0; k < 4; ++k) value[k][0] = value[k][1] = value[k][2] = value[k][3] = 0;
  }
  Engine::begin();
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    multiply_both<Engine, Format, Values, false>(sums.seen, sums.read, output[k], value[k], update,
                                                 k);
    multiply_both<Engine, Format, State, true>(sums.query, sums.erase, output[k], value[k], state,
                                               k);
    Engine::template multiply<State, true>(sums.write, own[k], back, k, false);
  }
  Engine::commit();
  if (with_state) {
    constexpr int kPieces = State::kBytes / 16 / kGradThreads;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const int at =
          warp * 16 * 32 * kPieces + i * 16 * 32 + static_cast<int>(threadIdx.x % 32) * 16;
      const uint4 a = *reinterpret_cast<const uint4*>(stage + Shared::kState + at);
      const uint4 b = *reinterpret_cast<const uint4*>(stage + Shared::kBack + at);
      add_pairs<Format>(sums.state, 0, a.x, b.x);
      add_pairs<Format>(sums.state, 2, a.y, b.y);
      add_pairs<Format>(sums.state, 4, a.z, b.z);
      add_pairs<Format>(sums.state, 6, a.w, b.w);
    }
  }
  Engine::template wait<0>();
  Engine::hold(sums.seen);
  Engine::hold(sums.read);
  Engine::hold(sums.query);
  Engine::hold(sums.erase);
  Engine::hold(sums.write);
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

// Writes accumulators d [16 rows, Columns / 2] per warp to a gradient of a key.
template <class Format, int Columns>
__device__ __forceinline__ void store_keys(const float (&d)[Columns / 4], const GradCall& call,
                                           const GradStep& step, void* to) {
  const TwoKeyCall& sizes = call.chunk.call;
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  const int t = lane % 4;
  const std::int64_t stride = sizes.heads * sizes.d_k * 2;
  unsigned char* first = static_cast<unsigned char*>(to) + step.span.first * stride +
                         step.key_head(call) * sizes.d_k * 2;
#pragma unroll
  for (int n = 0; n < Columns / 16; n += 4) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      // The quad transposes its 4 x 4 pairs: then each lane has the eight columns of tile n + t.
      std::uint32_t p[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        p[i] = pack<Format>(d[4 * (n + i) + 2 * j], d[4 * (n + i) + 2 * j + 1]);
      }
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
      const int row = 16 * (warp % 4) + 8 * j + lane / 4;
      const int column = step.pass * Columns + warp / 4 * (Columns / 2) + 8 * (n + t);
      if (row < step.span.count && column < sizes.d_k) {
        *reinterpret_cast<uint4*>(first + row * stride + column * 2) =
            make_uint4(p[0], p[1], p[2], p[3]);
      }
    }
  }
}

}  // namespace rankone::recurrence::cuda
