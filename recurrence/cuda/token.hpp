#pragma once

// What the kernels that go token by token share. A block of threads holds all rows of 32 columns of
// one state in registers: lane % 8 owns four columns, and warp w with group g = lane / 8 the rows
// 32 w + 8 g .. + 7. So there are ceil(d_k / 32) warps, rounded up to a power of two, a row of the
// block is read by 8 lanes side by side, and a sum over d_k is 8 rows in a thread, four groups by
// shuffles and the warps through shared memory, in this order always.

#include "core/cuda/instructions.hpp"
#include "recurrence/cuda/call.hpp"

namespace rankone::recurrence::cuda {

using namespace rankone::cuda;

inline constexpr int kRows = 8;      // of a state, per thread
inline constexpr int kGroups = 4;    // of rows, per warp
inline constexpr int kWidth = 4;     // columns of a thread
inline constexpr int kColumns = 32;  // columns of a block

// How the blocks of a grid are numbered: column tile, then value head, then sequence.
struct Split {
  unsigned tiles = 1, heads = 1, group = 1;
};

inline Split split_of(const TwoKeyCall& call) {
  return {static_cast<unsigned>((call.d_v + kColumns - 1) / kColumns),
          static_cast<unsigned>(call.value_heads),
          static_cast<unsigned>(call.value_heads / call.heads)};
}
inline std::int64_t blocks_of(const TwoKeyCall& call) {
  return call.rows.sequences * call.value_heads * split_of(call).tiles;
}
inline int warps_of(const TwoKeyCall& call) {
  return call.d_k <= 32 ? 1 : call.d_k <= 64 ? 2 : call.d_k <= 128 ? 4 : 8;
}

// The part of a block, and of a thread in it.
struct Place {
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
    inside = lane % 8 * kWidth;
    column = first + inside;
  }
};

// ---- States in memory, row-major [K, V] --------------------------------------------------------

// Vector: d_v is a multiple of four and the state is aligned to 16 bytes.
template <bool Vector, class Store>
__device__ __forceinline__ void load_state(float (&s)[kRows][kWidth], const Store* state,
                                           const Place& at, int d_k, int d_v) {
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int c = 0; c < kWidth; ++c) s[r][c] = 0.0F;
  }
  if (state == nullptr) return;
  const Store* from = state + static_cast<std::int64_t>(at.row) * d_v + at.column;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if constexpr (!Vector) {
#pragma unroll
      for (int c = 0; c < kWidth; ++c) {
        if (at.row + r < d_k && at.column + c < d_v) s[r][c] = widen(from[r * d_v + c]);
      }
    } else if (at.row + r < d_k && at.column < d_v) {
      if constexpr (std::is_same_v<Store, float>) {
        const float4 four = *reinterpret_cast<const float4*>(from + r * d_v);
        s[r][0] = four.x, s[r][1] = four.y, s[r][2] = four.z, s[r][3] = four.w;
      } else {
        const uint2 four = *reinterpret_cast<const uint2*>(from + r * d_v);
        const float2 low = unpack<Store>(four.x), high = unpack<Store>(four.y);
        s[r][0] = low.x, s[r][1] = low.y, s[r][2] = high.x, s[r][3] = high.y;
      }
    }
  }
}

template <bool Vector, class Store>
__device__ __forceinline__ void store_state(Store* state, const float (&s)[kRows][kWidth],
                                            const Place& at, int d_k, int d_v) {
  Store* to = state + static_cast<std::int64_t>(at.row) * d_v + at.column;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if constexpr (!Vector) {
#pragma unroll
      for (int c = 0; c < kWidth; ++c) {
        if (at.row + r < d_k && at.column + c < d_v) to[r * d_v + c] = narrow<Store>(s[r][c]);
      }
    } else if (at.row + r < d_k && at.column < d_v) {
      if constexpr (std::is_same_v<Store, float>) {
        *reinterpret_cast<float4*>(to + r * d_v) = make_float4(s[r][0], s[r][1], s[r][2], s[r][3]);
      } else {
        *reinterpret_cast<uint2*>(to + r * d_v) =
            make_uint2(pack<Store>(s[r][0], s[r][1]), pack<Store>(s[r][2], s[r][3]));
      }
    }
  }
}

// ---- Gates -------------------------------------------------------------------------------------

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

// ---- Inputs of some tokens on their way to shared memory ---------------------------------------

// One token in shared memory, as floats. What lies beyond d_k and d_v is zero.
template <int Warps>
struct TokenView {
  static constexpr int kKeys = 32 * Warps;
  static constexpr int kSize = 4 * kKeys + kColumns + 4;

  float *q, *e, *w, *decay;  // [kKeys]
  float* v;                  // [kColumns]
  float* b;

  __device__ __forceinline__ explicit TokenView(float* start)
      : q(start), e(q + kKeys), w(e + kKeys), decay(w + kKeys), v(decay + kKeys), b(v + kColumns) {}
};

// Loads the inputs of up to Tokens tokens, as they are, long before they are needed: thread k the
// channel k of the keys, the first warp the values. Without branches between the loads, so that all
// are under way at once: threads without a channel and tokens beyond the last read what others do.
template <class Format, int Warps, int Tokens>
class Feed {
 public:
  // Tokens row, row + direction, ...; `values`: [R, HV, V], the v of the tokens.
  __device__ __forceinline__ Feed(const TwoKeyCall& call, const void* values, const Place& at,
                                  std::int64_t row, int direction)
      : call_(call), thread_(at.thread) {
    has_key_ = at.thread < call.d_k;
    const int channel = has_key_ ? at.thread : 0;
    const int inside = at.first + at.lane < call.d_v ? at.lane : 0;
    has_value_ = inside == at.lane;
    key_ = (row * call.heads + at.key_head) * call.d_k + channel;
    key_step_ = direction * call.heads * call.d_k;
    gain_ = row * call.value_heads + at.head;
    gain_step_ = direction * call.value_heads;
    value_ = gain_ * call.d_v + at.first + inside;
    value_step_ = gain_step_ * call.d_v;
    const bool channels = call.gate == GateKind::channel;
    gate_ = channels ? gain_ * call.d_k + channel : gain_;
    gate_step_ = channels ? gain_step_ * call.d_k : gain_step_;
    q_from_ = static_cast<const Format*>(call.q);
    w_from_ = static_cast<const Format*>(call.w);
    e_from_ = call.delta ? static_cast<const Format*>(call.e) : w_from_;
    if (call.same_key) e_from_ = w_from_;
    v_from_ = static_cast<const Format*>(values);
  }

  // The next `count` tokens, at least one.
  __device__ __forceinline__ void load(int count) {
    std::int64_t gate[Tokens], gain[Tokens];
#pragma unroll
    for (int t = 0; t < Tokens; ++t) {
      q_[t] = q_from_[key_];
      w_[t] = w_from_[key_];
      e_[t] = e_from_[key_];
      v_[t] = v_from_[value_];
      gate[t] = gate_;
      gain[t] = gain_;
      if (t + 1 < count || t + 1 == Tokens) {
        key_ += key_step_;
        value_ += value_step_;
        gate_ += gate_step_;
        gain_ += gain_step_;
      }
    }
    if (call_.gate != GateKind::none) load_gates(g_, call_.g, gate);
    if (call_.b.data != nullptr) load_gates(b_, call_.b, gain);
  }

  __device__ __forceinline__ void store(float* stage, int count) const {
#pragma unroll
    for (int t = 0; t < Tokens; ++t) {
      if (t >= count) break;
      const TokenView<Warps> token(stage + t * TokenView<Warps>::kSize);
      const float w = widen(w_[t]), e = widen(e_[t]);
      float decay = 1.0F;
      if (call_.gate != GateKind::none) decay = decay_factor(gate_value(call_.g.dtype, g_[t]));
      token.q[thread_] = has_key_ ? widen(q_[t]) : 0.0F;
      token.w[thread_] = has_key_ ? w : 0.0F;
      token.e[thread_] = has_key_ && call_.delta ? e : 0.0F;
      token.decay[thread_] = decay;
      if (thread_ < kColumns) token.v[thread_] = has_value_ ? widen(v_[t]) : 0.0F;
      if (thread_ == 0) {
        *token.b = call_.b.data != nullptr ? gate_value(call_.b.dtype, b_[t]) : 1.0F;
      }
    }
  }

 private:
  __device__ __forceinline__ static void load_gates(std::uint32_t (&bits)[Tokens], const Gate& from,
                                                    const std::int64_t (&at)[Tokens]) {
    if (from.dtype == Dtype::f32) {
#pragma unroll
      for (int t = 0; t < Tokens; ++t) {
        bits[t] = static_cast<const std::uint32_t*>(from.data)[at[t]];
      }
    } else {
#pragma unroll
      for (int t = 0; t < Tokens; ++t) {
        bits[t] = static_cast<const std::uint16_t*>(from.data)[at[t]];
      }
    }
  }

  const TwoKeyCall& call_;
  const Format *q_from_, *e_from_, *w_from_, *v_from_;
  std::int64_t key_, value_, gate_, gain_, key_step_, value_step_, gate_step_, gain_step_;
  int thread_;
  bool has_key_, has_value_;
  Format q_[Tokens], e_[Tokens], w_[Tokens], v_[Tokens];
  std::uint32_t g_[Tokens], b_[Tokens];
};

// ---- Sums over d_k -----------------------------------------------------------------------------

// The parts that the warps leave for each other: sums for each column of the block, Count / kWidth
// of them, and one number more.
template <int Warps, int Count>
struct Partial {
  static constexpr int kSums = Count / kWidth;
  static constexpr int kFloats = Warps * kSums * kColumns + (Warps + 3) / 4 * 4;

  float* columns;  // [Warps, kSums, kColumns]
  float* number;   // [Warps]

  __device__ __forceinline__ explicit Partial(float* start)
      : columns(start), number(start + Warps * kSums * kColumns) {}

  // x: kSums sums for each of the thread's columns, one behind the other, over its rows.
  __device__ __forceinline__ void put(float (&x)[Count], float one, const Place& at) const {
    constexpr int kHalf = Count / 2, kQuarter = Count / 4;
    const bool upper = (at.group & 2) != 0, odd = (at.group & 1) != 0;
    // Each group ends with a quarter of the sums: from number group * kQuarter on.
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      const float keep = upper ? x[kHalf + i] : x[i], give = upper ? x[i] : x[kHalf + i];
      x[i] = keep + __shfl_xor_sync(0xffffffffU, give, 16);
    }
#pragma unroll
    for (int i = 0; i < kQuarter; ++i) {
      const float keep = odd ? x[kQuarter + i] : x[i], give = odd ? x[i] : x[kQuarter + i];
      x[i] = keep + __shfl_xor_sync(0xffffffffU, give, 8);
    }
    one += __shfl_xor_sync(0xffffffffU, one, 16);
    one += __shfl_xor_sync(0xffffffffU, one, 8);
    const int first = at.group * kQuarter;
    float* to =
        columns + (at.warp * kSums + first / kWidth) * kColumns + at.inside + first % kWidth;
    if constexpr (kQuarter == 2) {
      *reinterpret_cast<float2*>(to) = make_float2(x[0], x[1]);
    } else {
      to[0] = x[0];
    }
    if (at.lane == 0) number[at.warp] = one;
  }

  // After a barrier. Sum `which` of the thread's four columns.
  __device__ __forceinline__ void get(float (&sum)[kWidth], int which, const Place& at) const {
    float4 total = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
#pragma unroll
    for (int warp = 0; warp < Warps; ++warp) {
      const float4 part =
          *reinterpret_cast<const float4*>(columns + (warp * kSums + which) * kColumns + at.inside);
      total.x += part.x, total.y += part.y, total.z += part.z, total.w += part.w;
    }
    sum[0] = total.x, sum[1] = total.y, sum[2] = total.z, sum[3] = total.w;
  }
  // Of one column, counted from the first of the block.
  __device__ __forceinline__ float get_one(int which, int inside) const {
    float sum = 0.0F;
#pragma unroll
    for (int warp = 0; warp < Warps; ++warp) {
      sum += columns[(warp * kSums + which) * kColumns + inside];
    }
    return sum;
  }
  __device__ __forceinline__ float get_number() const {
    float sum = 0.0F;
#pragma unroll
    for (int warp = 0; warp < Warps; ++warp) sum += number[warp];
    return sum;
  }
};

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

// What a warp writes for all columns of the block, a lane one: the group picks among the thread's.
__device__ __forceinline__ float own_column(const float (&x)[kWidth], const Place& at) {
  const float low = (at.group & 1) != 0 ? x[1] : x[0], high = (at.group & 1) != 0 ? x[3] : x[2];
  return (at.group & 2) != 0 ? high : low;
}

// ---- Choice of the kernel ----------------------------------------------------------------------

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

// Calls body with the number of warps as a constant.
template <class Body>
void with_warps(int warps, const Body& body) {
  if (warps == 1) {
    body(std::integral_constant<int, 1>{});
  } else if (warps == 2) {
    body(std::integral_constant<int, 2>{});
  } else if (warps == 4) {
    body(std::integral_constant<int, 4>{});
  } else {
    body(std::integral_constant<int, 8>{});
  }
}

}  // namespace rankone::recurrence::cuda
