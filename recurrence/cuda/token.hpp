#pragma once

// What the kernels that go token by token share. A block of threads holds all rows of 8 * Width
// columns of one state in registers: lane % 8 owns Width columns, and warp w with group g = lane /
// 8 the rows 32 w + 8 g .. + 7. So there are ceil(d_k / 32) warps, a row of the block is read by 8
// lanes side by side, and a sum over d_k is 8 rows in a thread, four groups by shuffles and the
// warps through shared memory, in this order always.

#include "core/cuda/instructions.hpp"
#include "recurrence/cuda/call.hpp"

namespace rankone::recurrence::cuda {

using namespace rankone::cuda;

inline constexpr int kRows = 8;      // of a state, per thread
inline constexpr int kGroups = 4;    // of rows, per warp
inline constexpr int kMaxWarps = 8;  // 256 / 32

// How the blocks of a grid are numbered: column tile, then value head, then sequence.
struct Split {
  unsigned tiles = 1, heads = 1, group = 1;
  int warps = 1;
};

inline Split split_of(const TwoKeyCall& call, int columns) {
  return {static_cast<unsigned>((call.d_v + columns - 1) / columns),
          static_cast<unsigned>(call.value_heads),
          static_cast<unsigned>(call.value_heads / call.heads), (call.d_k + 31) / 32};
}
inline std::int64_t blocks_of(const TwoKeyCall& call, const Split& split) {
  return call.rows.sequences * call.value_heads * split.tiles;
}

// The part of a block, and of a thread in it.
template <int Width>
struct Place {
  static constexpr int kColumns = 8 * Width;
  std::int64_t sequence, head, key_head;
  int first;  // column of the block
  int thread, warp, lane, group;
  int row;     // first one of the thread
  int inside;  // first column of the thread, from that of the block
  int column;  // the same, from that of the state

  __device__ __forceinline__ explicit Place(const Split& split) {
    const unsigned pair = blockIdx.x / split.tiles, tile = blockIdx.x % split.tiles;
    const unsigned number = pair / split.heads, value_head = pair % split.heads;
    sequence = number;
    head = value_head;
    key_head = value_head / split.group;
    first = static_cast<int>(tile) * kColumns;
    thread = static_cast<int>(threadIdx.x);
    warp = thread / 32;
    lane = thread % 32;
    group = lane / 8;
    row = (warp * kGroups + group) * kRows;
    inside = lane % 8 * Width;
    column = first + inside;
  }
};

// ---- States in memory, row-major [K, V] --------------------------------------------------------

// `vector`: d_v is a multiple of Width and the state is aligned to 16 bytes.
template <class Store, int Width>
__device__ __forceinline__ void load_state(float (&s)[kRows][Width], const Store* state,
                                           const Place<Width>& at, int d_k, int d_v, bool vector) {
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int c = 0; c < Width; ++c) s[r][c] = 0.0F;
  }
  if (state == nullptr) return;
  const Store* from = state + static_cast<std::int64_t>(at.row) * d_v + at.column;
  if (vector) {
    if (at.column >= d_v) return;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (at.row + r >= d_k) continue;
      if constexpr (std::is_same_v<Store, float>) {
#pragma unroll
        for (int c = 0; c < Width; c += 4) {
          const float4 four = *reinterpret_cast<const float4*>(from + r * d_v + c);
          s[r][c] = four.x;
          s[r][c + 1] = four.y;
          s[r][c + 2] = four.z;
          s[r][c + 3] = four.w;
        }
      } else {
        static_assert(Width == 8 || std::is_same_v<Store, float>);
        const uint4 eight = *reinterpret_cast<const uint4*>(from + r * d_v);
        const std::uint32_t pairs[4] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          const float2 two = unpack<Store>(pairs[c]);
          s[r][2 * c] = two.x;
          s[r][2 * c + 1] = two.y;
        }
      }
    }
    return;
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int c = 0; c < Width; ++c) {
      if (at.row + r < d_k && at.column + c < d_v) s[r][c] = widen(from[r * d_v + c]);
    }
  }
}

template <class Store, int Width>
__device__ __forceinline__ void store_state(Store* state, const float (&s)[kRows][Width],
                                            const Place<Width>& at, int d_k, int d_v, bool vector) {
  Store* to = state + static_cast<std::int64_t>(at.row) * d_v + at.column;
  if (vector) {
    if (at.column >= d_v) return;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (at.row + r >= d_k) continue;
      if constexpr (std::is_same_v<Store, float>) {
#pragma unroll
        for (int c = 0; c < Width; c += 4) {
          *reinterpret_cast<float4*>(to + r * d_v + c) =
              make_float4(s[r][c], s[r][c + 1], s[r][c + 2], s[r][c + 3]);
        }
      } else {
        *reinterpret_cast<uint4*>(to + r * d_v) =
            make_uint4(pack<Store>(s[r][0], s[r][1]), pack<Store>(s[r][2], s[r][3]),
                       pack<Store>(s[r][4], s[r][5]), pack<Store>(s[r][6], s[r][7]));
      }
    }
    return;
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int c = 0; c < Width; ++c) {
      if (at.row + r < d_k && at.column + c < d_v) to[r * d_v + c] = narrow<Store>(s[r][c]);
    }
  }
}

// ---- Inputs of some tokens on their way to shared memory ---------------------------------------

__device__ __forceinline__ std::uint32_t gate_bits(const Gate& gate, std::int64_t at) {
  if (gate.dtype == Dtype::f32) return static_cast<const std::uint32_t*>(gate.data)[at];
  return static_cast<const std::uint16_t*>(gate.data)[at];
}
__device__ __forceinline__ float gate_value(Dtype dtype, std::uint32_t bits) {
  if (dtype == Dtype::f32) return bits_to_float(bits);
  const auto half = static_cast<std::uint16_t>(bits);
  return dtype == Dtype::bf16 ? widen(bf16{half}) : widen(f16{half});
}
__device__ __forceinline__ void put_gate(void* data, Dtype dtype, std::int64_t at, float value) {
  if (dtype == Dtype::f32) {
    static_cast<float*>(data)[at] = value;
  } else if (dtype == Dtype::bf16) {
    static_cast<bf16*>(data)[at] = narrow<bf16>(value);
  } else {
    static_cast<f16*>(data)[at] = narrow<f16>(value);
  }
}
// The factor of a log decay. A factor beyond float32 stays finite: on a state that is zero it must
// leave zero.
__device__ __forceinline__ float decay_factor(float g) { return expf(fminf(g, 88.0F)); }

// One token in shared memory, as floats. keys = 32 * warps: what lies beyond d_k is zero.
struct TokenView {
  float *q, *e, *w, *decay;  // [keys]
  float* v;                  // [columns of the block]
  float* qw;                 // [kMaxWarps]: parts of q . w
  float* b;

  __host__ __device__ static constexpr int size(int keys, int columns) {
    return 4 * keys + columns + kMaxWarps + 4;
  }
  __device__ __forceinline__ TokenView(float* start, int keys, int columns)
      : q(start),
        e(q + keys),
        w(e + keys),
        decay(w + keys),
        v(decay + keys),
        qw(v + columns),
        b(qw + kMaxWarps) {}
};

// Loads the inputs of up to Tokens tokens, as they are, long before they are needed; thread k the
// channel k of the keys, the first warp the values.
template <class Format, int Tokens, int Width>
class Feed {
 public:
  // `values`: [R, HV, V], the v of the tokens.
  __device__ __forceinline__ Feed(const TwoKeyCall& call, const void* values,
                                  const Place<Width>& at)
      : call_(call), values_(static_cast<const Format*>(values)), at_(at) {
    has_key_ = at.thread < call.d_k;
    has_value_ = at.thread < 32;
  }

  // Tokens row, row + direction, ...
  __device__ __forceinline__ void load(std::int64_t row, int direction, int count) {
#pragma unroll
    for (int t = 0; t < Tokens; ++t) {
      if (t >= count) break;
      const std::int64_t here = row + t * direction;
      const std::int64_t gate = here * call_.value_heads + at_.head;
      if (has_key_) {
        const std::int64_t key = (here * call_.heads + at_.key_head) * call_.d_k + at_.thread;
        q_[t] = static_cast<const Format*>(call_.q)[key];
        w_[t] = static_cast<const Format*>(call_.w)[key];
        if (call_.delta && !call_.same_key) e_[t] = static_cast<const Format*>(call_.e)[key];
        if (call_.gate == GateKind::channel) {
          g_[t] = gate_bits(call_.g, gate * call_.d_k + at_.thread);
        } else if (call_.gate == GateKind::scalar) {
          g_[t] = gate_bits(call_.g, gate);
        }
      }
      if (has_value_) {
#pragma unroll
        for (int i = 0; i < kParts; ++i) {
          const int column = at_.first + at_.thread + 32 * i;
          if (column < call_.d_v) v_[t][i] = values_[gate * call_.d_v + column];
        }
      }
      if (at_.thread == 0 && call_.b.data != nullptr) b_[t] = gate_bits(call_.b, gate);
    }
  }

  __device__ __forceinline__ void store(float* stage, int keys, int count) const {
    constexpr int kColumns = Place<Width>::kColumns;
#pragma unroll
    for (int t = 0; t < Tokens; ++t) {
      if (t >= count) break;
      const TokenView token(stage + t * TokenView::size(keys, kColumns), keys, kColumns);
      const float q = has_key_ ? widen(q_[t]) : 0.0F, w = has_key_ ? widen(w_[t]) : 0.0F;
      const bool gated = has_key_ && call_.gate != GateKind::none;
      token.q[at_.thread] = q;
      token.w[at_.thread] = w;
      token.e[at_.thread] = call_.same_key ? w : (call_.delta && has_key_ ? widen(e_[t]) : 0.0F);
      token.decay[at_.thread] = gated ? decay_factor(gate_value(call_.g.dtype, g_[t])) : 1.0F;
      float product = q * w;
#pragma unroll
      for (int step = 16; step > 0; step /= 2) {
        product += __shfl_xor_sync(0xffffffffU, product, step);
      }
      if (at_.lane == 0) token.qw[at_.warp] = product;
      if (has_value_) {
#pragma unroll
        for (int i = 0; i < kParts; ++i) {
          const int inside = at_.thread + 32 * i;
          token.v[inside] = at_.first + inside < call_.d_v ? widen(v_[t][i]) : 0.0F;
        }
      }
      if (at_.thread == 0) {
        *token.b = call_.b.data != nullptr ? gate_value(call_.b.dtype, b_[t]) : 1.0F;
      }
    }
  }

 private:
  static constexpr int kParts = Place<Width>::kColumns / 32;

  const TwoKeyCall& call_;
  const Format* values_;
  const Place<Width>& at_;
  bool has_key_, has_value_;
  Format q_[Tokens], e_[Tokens], w_[Tokens], v_[Tokens][kParts];
  std::uint32_t g_[Tokens], b_[Tokens];
};

// ---- Sums over d_k -----------------------------------------------------------------------------

// Adds x over the groups of the warp and leaves a quarter of the sums in each: number
// group * Count / 4 + i in x[i].
template <int Count>
__device__ __forceinline__ void sum_groups(float (&x)[Count], int group) {
  const bool upper = (group & 2) != 0, odd = (group & 1) != 0;
#pragma unroll
  for (int i = 0; i < Count / 2; ++i) {
    const float keep = upper ? x[Count / 2 + i] : x[i], give = upper ? x[i] : x[Count / 2 + i];
    x[i] = keep + __shfl_xor_sync(0xffffffffU, give, 16);
  }
#pragma unroll
  for (int i = 0; i < Count / 4; ++i) {
    const float keep = odd ? x[Count / 4 + i] : x[i], give = odd ? x[i] : x[Count / 4 + i];
    x[i] = keep + __shfl_xor_sync(0xffffffffU, give, 8);
  }
}

// The same over all rows: x holds Count / Width sums for each of the thread's columns, one behind
// the other; they land in partial[warp], [Count / Width][columns].
template <int Width, int Count>
__device__ __forceinline__ void put_sums(float* partial, float (&x)[Count],
                                         const Place<Width>& at) {
  constexpr int kQuarter = Count / 4;
  sum_groups(x, at.group);
  const int number = at.group * kQuarter;
  float* to = partial + at.warp * (Count * 8) + number / Width * Place<Width>::kColumns +
              at.inside + number % Width;
  if constexpr (kQuarter % 4 == 0) {
#pragma unroll
    for (int i = 0; i < kQuarter; i += 4) {
      *reinterpret_cast<float4*>(to + i) = make_float4(x[i], x[i + 1], x[i + 2], x[i + 3]);
    }
  } else if constexpr (kQuarter == 2) {
    *reinterpret_cast<float2*>(to) = make_float2(x[0], x[1]);
  } else {
    to[0] = x[0];
  }
}

// Sum `which` of the thread's columns, over the warps in order. After a barrier.
template <int Width, int Count>
__device__ __forceinline__ void get_sums(float (&sum)[Width], const float* partial, int which,
                                         int warps, const Place<Width>& at) {
  const float* from = partial + which * Place<Width>::kColumns + at.inside;
#pragma unroll
  for (int c = 0; c < Width; ++c) sum[c] = 0.0F;
  for (int warp = 0; warp < warps; ++warp, from += Count * 8) {
#pragma unroll
    for (int c = 0; c < Width; c += 4) {
      const float4 four = *reinterpret_cast<const float4*>(from + c);
      sum[c] += four.x;
      sum[c + 1] += four.y;
      sum[c + 2] += four.z;
      sum[c + 3] += four.w;
    }
  }
}

// 8 numbers of a vector in shared memory, those of the thread's rows.
struct Eight {
  float x[kRows];
  __device__ __forceinline__ explicit Eight(const float* from) {
    const float4 low = *reinterpret_cast<const float4*>(from);
    const float4 high = *reinterpret_cast<const float4*>(from + 4);
    x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w;
    x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
  }
};

template <class Format, int Width>
__device__ __forceinline__ void put_columns(Format* to, const float (&x)[Width],
                                            const Place<Width>& at, int d_v) {
#pragma unroll
  for (int c = 0; c < Width; ++c) {
    if (at.column + c < d_v) to[c] = narrow<Format>(x[c]);
  }
}

// Calls body(Format{}) with the type that a dtype names.
template <class Body>
void with_format(Dtype format, const Body& body) {
  if (format == Dtype::bf16) {
    body(bf16{});
  } else if (format == Dtype::f16) {
    body(f16{});
  } else {
    body(float{});
  }
}

}  // namespace rankone::recurrence::cuda
