#pragma once

// What the kernels that go token by token share. They take up to four tokens at once: with
// D_i = a_1 .. a_i the decays since the block began, f_ij = a_(j+1) .. a_i, and
//
//     q~_i = D_i q_i    e~_i = D_i e_i    w-_i = f_ni w_i
//     P_ij = q_i . f_ij w_j (j <= i)      A_ij = e_i . f_ij w_j (j < i)
//
// the state S before the block gives all of it after one sum over d_k and one barrier,
//
//     u_i = b_i (v_i - S^T e~_i - sum_(j<i) A_ij u_j)    o_i = scale (S^T q~_i + sum_(j<=i) P_ij
//     u_j) S <- D_n S + sum_i w-_i u_i^T
//
// and likewise the gradient Gr of the state after the block, backwards:
//
//     du_i = Gr^T w-_i + sum_(l>=i) P_li scale do_l - sum_(l>i) A_li dv_l    dv_i = b_i du_i
//     Gr <- D_n Gr + sum_i q~_i scale do_i^T - e~_i dv_i^T
//
// A block of threads holds all rows of 32 columns of one state in registers: lane % 8 owns four
// columns, and warp w with group g = lane / 8 the Rows rows from (4 w + g) Rows on. So a row of the
// block is read by 8 lanes side by side, and a sum over d_k is the rows of a thread, four groups by
// shuffles and the warps through shared memory, in this order always.

#include "core/cuda/instructions.hpp"
#include "recurrence/cuda/call.hpp"

namespace rankone::recurrence::cuda {

using namespace rankone::cuda;

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
// With 8 rows a thread.
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

  __device__ __forceinline__ Place(const Split& split, int rows) {
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
    row = (warp * kGroups + group) * rows;
    inside = lane % 8 * kWidth;
    column = first + inside;
  }
};

// ---- States in memory, row-major [K, V] --------------------------------------------------------

template <class Store, int Rows>
__device__ __forceinline__ void load_state(float (&s)[Rows][kWidth], const Store* state,
                                           const Place& at, int d_k, int d_v) {
#pragma unroll
  for (int r = 0; r < Rows; ++r) {
#pragma unroll
    for (int c = 0; c < kWidth; ++c) {
      const bool valid = state != nullptr && at.row + r < d_k && at.column + c < d_v;
      s[r][c] = valid ? widen(state[(at.row + r) * d_v + at.column + c]) : 0.0F;
    }
  }
}

template <class Store, int Rows>
__device__ __forceinline__ void store_state(Store* state, const float (&s)[Rows][kWidth],
                                            const Place& at, int d_k, int d_v) {
#pragma unroll
  for (int r = 0; r < Rows; ++r) {
#pragma unroll
    for (int c = 0; c < kWidth; ++c) {
      if (at.row + r < d_k && at.column + c < d_v) {
        state[(at.row + r) * d_v + at.column + c] = narrow<Store>(s[r][c]);
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
// The factor of a log decay, exp(g): within a unit in the last place, and as good as correctly
// rounded for a weak decay. All elements of a state share the product of its factors, over many
// tokens where decay is weak, so there an error with a preferred side (that of ex2.approx) adds up.
// A factor beyond float32 stays finite: on a state that is zero it must leave zero. Factors below
// 2^-126 are zero; a NaN stays one.
__device__ __forceinline__ float token_decay(float g) {
  constexpr float kLeast = -87.33654F, kMost = 88.0F;
  constexpr float kMagic = 12582912.0F;  // 1.5 * 2^23: adding it rounds to whole numbers
  const float exponent = g > kMost ? kMost : g;
  // = n ln 2 + r with |r| <= ln 2 / 2
  const float whole = fmaf(exponent, 1.44269504F, kMagic), n = whole - kMagic;
  const float r = fmaf(n, 1.90465421e-9F, fmaf(n, -0.693147182F, exponent));
  // (exp(r) - 1 - r) / r^2, interpolated in the Chebyshev points of degree 6.
  float p = fmaf(1.98909809e-4F, r, 1.39336410e-3F);
  p = fmaf(p, r, 8.33331093e-3F);
  p = fmaf(p, r, 4.16664650e-2F);
  p = fmaf(p, r, 1.66666667e-1F);
  p = fmaf(p, r, 5.00000001e-1F);
  const float power = bits_to_float((float_to_bits(whole) << 23) + 0x3f800000U);  // 2^n
  const float factor = (1.0F + fmaf(r * r, p, r)) * power;
  return exponent < kLeast ? 0.0F : factor;
}

// ---- Tokens on their way to shared memory ------------------------------------------------------

// Sums over the lanes of a warp; lane 32 / Count * i gets number i. Count is a power of two.
template <int Count>
__device__ __forceinline__ float sum_lanes(float (&x)[Count], int lane) {
#pragma unroll
  for (int step = 16, left = Count; step > 0; step /= 2) {
    if (left > 1) {
      left /= 2;
      const bool upper = (lane & step) != 0;
#pragma unroll
      for (int i = 0; i < left; ++i) {
        const float keep = upper ? x[left + i] : x[i], give = upper ? x[i] : x[left + i];
        x[i] = keep + __shfl_xor_sync(0xffffffffU, give, step);
      }
    } else {
      x[0] += __shfl_xor_sync(0xffffffffU, x[0], step);
    }
  }
  return x[0];
}

// A block of tokens in shared memory, as floats. What lies beyond d_k, d_v and the last token is
// zero, and its decay one.
template <int Warps, int Rows, int Tokens>
struct Block {
  static constexpr int kKeys = kGroups * Warps * Rows;
  static constexpr int kSeen = Tokens * (Tokens + 1) / 2;
  static constexpr int kPairs = Tokens * Tokens;
  static constexpr int kFloats = (3 * Tokens + 1) * kKeys + Tokens * kColumns +
                                 (Tokens + 3) / 4 * 4 + (Warps * kPairs + 3) / 4 * 4;

  float *query, *erase, *write;  // [Tokens, kKeys]: q~, e~, w-
  float* decay;                  // [kKeys]: D_n
  float* values;                 // [Tokens, kColumns]
  float* gains;                  // [Tokens]
  float* pairs;                  // [Warps, kPairs]: parts of P, then A, by rows

  __device__ __forceinline__ explicit Block(float* start)
      : query(start),
        erase(query + Tokens * kKeys),
        write(erase + Tokens * kKeys),
        decay(write + Tokens * kKeys),
        values(decay + kKeys),
        gains(values + Tokens * kColumns),
        pairs(gains + (Tokens + 3) / 4 * 4) {}

  __device__ __forceinline__ float pair(int number) const {
    float sum = 0.0F;
#pragma unroll
    for (int warp = 0; warp < Warps; ++warp) sum += pairs[warp * kPairs + number];
    return sum;
  }
  __device__ __forceinline__ float seen(int i, int j) const { return pair(i * (i + 1) / 2 + j); }
  __device__ __forceinline__ float read(int i, int j) const {
    return pair(kSeen + i * (i - 1) / 2 + j);
  }
};

// Loads the inputs of up to Tokens tokens, as they are, long before they are needed: a thread some
// channels of the keys, the first warp the values. Without branches between the loads, so that all
// are under way at once: threads without a channel and tokens beyond the last read what others do.
// Tokens row, row + direction, ...; in a block they are always in the order of time.
template <class Format, int Warps, int Rows, int Tokens>
class Feed {
 public:
  // `values`: [R, HV, V], the v of the tokens.
  __device__ __forceinline__ Feed(const TwoKeyCall& call, const void* values, const Place& at,
                                  std::int64_t row, int direction)
      : call_(call), thread_(at.thread), lane_(at.lane), backwards_(direction < 0) {
    const int inside = at.first + at.lane < call.d_v ? at.lane : 0;
    has_value_ = inside == at.lane;
    gain_ = row * call.value_heads + at.head;
    gain_step_ = direction * call.value_heads;
    value_ = gain_ * call.d_v + at.first + inside;
    value_step_ = gain_step_ * call.d_v;
    key_ = (row * call.heads + at.key_head) * call.d_k;
    key_step_ = direction * call.heads * call.d_k;
    const int gates = call.gate == GateKind::channel ? call.d_k : 1;
    gate_ = gain_ * gates;
    gate_step_ = gain_step_ * gates;
#pragma unroll
    for (int m = 0; m < kChannels; ++m) {
      const int channel = at.thread + m * kThreads;
      has_key_[m] = channel < call.d_k;
      channel_[m] = has_key_[m] ? channel : 0;
      gate_channel_[m] = gates > 1 ? channel_[m] : 0;
    }
    q_from_ = static_cast<const Format*>(call.q);
    w_from_ = static_cast<const Format*>(call.w);
    e_from_ = call.delta && !call.same_key ? static_cast<const Format*>(call.e) : w_from_;
    v_from_ = static_cast<const Format*>(values);
  }

  // The next `count` tokens, at least one.
  __device__ __forceinline__ void load(int count) {
    std::int64_t gate[Tokens], gain[Tokens];
#pragma unroll
    for (int t = 0; t < Tokens; ++t) {
#pragma unroll
      for (int m = 0; m < kChannels; ++m) {
        const std::int64_t key = key_ + channel_[m];
        q_[t][m] = q_from_[key];
        w_[t][m] = w_from_[key];
        e_[t][m] = e_from_[key];
      }
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
    if (call_.gate != GateKind::none) {
      const bool wide = call_.g.dtype == Dtype::f32;
#pragma unroll
      for (int t = 0; t < Tokens; ++t) {
#pragma unroll
        for (int m = 0; m < kChannels; ++m) {
          const std::int64_t at = gate[t] + gate_channel_[m];
          g_[t][m] = wide ? static_cast<const std::uint32_t*>(call_.g.data)[at]
                          : static_cast<const std::uint16_t*>(call_.g.data)[at];
        }
      }
    }
    if (call_.b.data != nullptr) {
#pragma unroll
      for (int t = 0; t < Tokens; ++t) b_[t] = gate_bits(call_.b, gain[t]);
    }
  }

  __device__ __forceinline__ void store(float* stage, int count) const {
    using B = Block<Warps, Rows, Tokens>;
    const B block(stage);
    float pairs[B::kPairs];
#pragma unroll
    for (int i = 0; i < B::kPairs; ++i) pairs[i] = 0.0F;
#pragma unroll
    for (int m = 0; m < kChannels; ++m) {
      const int at = thread_ + m * kThreads;
      float q[Tokens], e[Tokens], w[Tokens], decay[Tokens];
#pragma unroll
      for (int t = 0; t < Tokens; ++t) {
        const bool valid = has_key_[m] && t < count;
        q[t] = valid ? widen(q_[t][m]) : 0.0F;
        w[t] = valid ? widen(w_[t][m]) : 0.0F;
        e[t] = valid && call_.delta ? widen(e_[t][m]) : 0.0F;
        decay[t] = 1.0F;
        if (call_.gate != GateKind::none) {
          const float factor = token_decay(gate_value(call_.g.dtype, g_[t][m]));
          decay[t] = t < count ? factor : 1.0F;
        }
      }
      if (Tokens > 1 && backwards_) {
#pragma unroll
        for (int t = 0; t < Tokens / 2; ++t) {
          swap(q[t], q[Tokens - 1 - t]);
          swap(e[t], e[Tokens - 1 - t]);
          swap(w[t], w[Tokens - 1 - t]);
          swap(decay[t], decay[Tokens - 1 - t]);
        }
      }
      float factor = 1.0F;
#pragma unroll
      for (int i = 0; i < Tokens; ++i) {
        factor *= decay[i];
        block.query[i * B::kKeys + at] = factor * q[i];
        block.erase[i * B::kKeys + at] = factor * e[i];
        float between = 1.0F;
#pragma unroll
        for (int j = i; j >= 0; --j) {
          const float key = between * w[j];
          pairs[i * (i + 1) / 2 + j] += q[i] * key;
          if (j < i) pairs[B::kSeen + i * (i - 1) / 2 + j] += e[i] * key;
          between *= decay[j];
        }
      }
      block.decay[at] = factor;
      factor = 1.0F;
#pragma unroll
      for (int i = Tokens - 1; i >= 0; --i) {
        block.write[i * B::kKeys + at] = factor * w[i];
        factor *= decay[i];
      }
    }
    const float sum = sum_lanes(pairs, lane_);
    constexpr int kSpread = 32 / B::kPairs;
    if (lane_ % kSpread == 0) {
      block.pairs[thread_ / 32 * B::kPairs + lane_ / kSpread] = sum;
    }
    if (thread_ < kColumns) {
#pragma unroll
      for (int t = 0; t < Tokens; ++t) {
        const int at = backwards_ ? Tokens - 1 - t : t;
        block.values[at * kColumns + thread_] = has_value_ && t < count ? widen(v_[t]) : 0.0F;
      }
    }
    if (thread_ == 0) {
#pragma unroll
      for (int t = 0; t < Tokens; ++t) {
        const float gain = call_.b.data != nullptr ? gate_value(call_.b.dtype, b_[t]) : 1.0F;
        block.gains[backwards_ ? Tokens - 1 - t : t] = t < count ? gain : 0.0F;
      }
    }
  }

 private:
  static constexpr int kThreads = 32 * Warps, kChannels = Rows / 8;

  __device__ __forceinline__ static void swap(float& a, float& b) {
    const float c = a;
    a = b;
    b = c;
  }

  const TwoKeyCall& call_;
  const Format *q_from_, *e_from_, *w_from_, *v_from_;
  std::int64_t key_, value_, gate_, gain_, key_step_, value_step_, gate_step_, gain_step_;
  int thread_, lane_, channel_[kChannels], gate_channel_[kChannels];
  bool backwards_, has_value_, has_key_[kChannels];
  Format q_[Tokens][kChannels], e_[Tokens][kChannels], w_[Tokens][kChannels], v_[Tokens];
  std::uint32_t g_[Tokens][kChannels], b_[Tokens];
};

// ---- Sums over d_k -----------------------------------------------------------------------------

// Adds the thread's part of S^T x for the vectors x [Tokens, keys] in shared memory to
// sums[kWidth * First ..].
template <int Tokens, int First, int Rows, int Count>
__device__ __forceinline__ void add_reads(float (&sums)[Count], const float (&s)[Rows][kWidth],
                                          const float* x, int keys, const Place& at) {
#pragma unroll
  for (int r = 0; r < Rows; r += 4) {
#pragma unroll
    for (int t = 0; t < Tokens; ++t) {
      const float4 four = *reinterpret_cast<const float4*>(x + t * keys + at.row + r);
#pragma unroll
      for (int c = 0; c < kWidth; ++c) {
        float& sum = sums[(First + t) * kWidth + c];
        sum += s[r][c] * four.x;
        sum += s[r + 1][c] * four.y;
        sum += s[r + 2][c] * four.z;
        sum += s[r + 3][c] * four.w;
      }
    }
  }
}

// Adds the thread's part of sum_t x_t y_t^T to `to`, x [Tokens, keys] in shared memory.
template <int Tokens, int Rows>
__device__ __forceinline__ void add_writes(float (&to)[4][kWidth], const float* x, int keys, int r,
                                           const float (&y)[Tokens][kWidth], float sign,
                                           const Place& at) {
#pragma unroll
  for (int t = 0; t < Tokens; ++t) {
    const float4 four = *reinterpret_cast<const float4*>(x + t * keys + at.row + r);
#pragma unroll
    for (int c = 0; c < kWidth; ++c) {
      const float value = sign * y[t][c];
      to[0][c] += four.x * value;
      to[1][c] += four.y * value;
      to[2][c] += four.z * value;
      to[3][c] += four.w * value;
    }
  }
}

// s <- decay s + added, where `rest` is what rounding left of s: so small steps do not get lost in
// a state that nothing decays.
__device__ __forceinline__ void advance(float& s, float& rest, float decay, float added) {
  const float kept = decay * s, error = fmaf(decay, s, -kept);
  const float step = fmaf(decay, rest, added);
  s = kept + step;
  rest = (step - (s - kept)) + error;
}

// What the warps leave for each other: Count / kWidth sums for each column of the block.
template <int Warps, int Count>
struct Partial {
  static constexpr int kSums = Count / kWidth;
  static constexpr int kFloats = Warps * kSums * kColumns;

  float* columns;  // [Warps, kSums, kColumns]

  // x: kSums sums for each of the thread's columns, one behind the other, over its rows.
  __device__ __forceinline__ void put(float (&x)[Count], const Place& at) const {
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
    const int first = at.group * kQuarter;
    float* to =
        columns + (at.warp * kSums + first / kWidth) * kColumns + at.inside + first % kWidth;
    if constexpr (kQuarter >= 4) {
#pragma unroll
      for (int i = 0; i < kQuarter; i += 4) {
        *reinterpret_cast<float4*>(to + i / 4 * kColumns) =
            make_float4(x[i], x[i + 1], x[i + 2], x[i + 3]);
      }
    } else if constexpr (kQuarter == 2) {
      *reinterpret_cast<float2*>(to) = make_float2(x[0], x[1]);
    } else {
      to[0] = x[0];
    }
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
