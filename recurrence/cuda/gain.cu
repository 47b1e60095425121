// Gains. A key-norm gain takes a warp for some rows of a key head with its value heads; the other
// gains and the gates of the vector gain are element-wise. The equations are those of
// axes/gain.hpp; what is made of them, and its derivative, is in prologue_gain.hpp.
//
// Limits of float32: N = e . w overflows where |k| is above 1.8e19, and such a key writes nothing.
// No power of 1 / n above the second is formed, so nothing else is lost before that.

#include "recurrence/cuda/gain.hpp"

#include "recurrence/axes/gain.hpp"
#include "recurrence/cuda/array.hpp"
#include "recurrence/cuda/sums.hpp"

namespace rankone::recurrence::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

__device__ __forceinline__ std::int64_t global_thread() {
  return static_cast<std::int64_t>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
}

// f(t) of a row.
__device__ float factor_of(const GainCall& call, std::int64_t row) {
  if (call.time_factor == TimeFactor::none) return 1.0F;
  std::int64_t sequence;
  if (call.rows.boundaries == nullptr) {
    sequence = row / call.rows.time;
  } else {  // the last that begins at `row` or before: those of the same beginning are empty
    std::int64_t low = 0, high = call.rows.sequences;
    while (high - low > 1) {
      const std::int64_t middle = (low + high) / 2;
      (call.rows.boundaries[middle] <= row ? low : high) = middle;
    }
    sequence = low;
  }
  const std::int64_t position = call.positions != nullptr ? call.positions[sequence] : 0;
  return time_factor<float>(call.time_factor, position + row - call.rows.begin(sequence) + 1);
}

// ---- Gains without a key -----------------------------------------------------------------------

__global__ void __launch_bounds__(kThreads)
    scalar_gain(GainCall call, GainBack back, bool backward) {
  const std::int64_t at = global_thread();
  if (at >= call.count * call.value_heads) return;
  const float factor = factor_of(call, at / call.value_heads);
  const bool logits = call.kind != GainKind::vector;
  with_gain(call.kind, [&](auto policy) {
    const float x = logits ? load(call.x, at) : 0.0F;
    const GainValue<float> gain = policy.value(GainInputs<float>{x, 0.0F, call.eps, 0.0F});
    if (backward) {
      store(back.to_x, at, load(back.d_b, at) * factor * gain.d_x);
    } else {
      store(call.b, at, factor * gain.b);
    }
  });
}

// ---- Key-norm gains ----------------------------------------------------------------------------

// A key in registers, Size elements in a lane, Vector of them from (part * 32 + lane) * Vector on
// for each part; zero behind its end.
template <class Format, int Vector, int Size>
struct Key {
  float at[Size];

  __device__ void read(const Source& from, std::int64_t start, int size) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int part = 0; part < Size / Vector; ++part) {
      const int i = (part * 32 + lane) * Vector;
      float some[Vector] = {};
      if (from.data != nullptr && i < size) {
        load(some, static_cast<const Format*>(from.data) + start + i);
      }
#pragma unroll
      for (int j = 0; j < Vector; ++j) at[part * Vector + j] = some[j];
    }
  }
  __device__ void write(const Sink& to, std::int64_t start, int size) const {
    if (to.data == nullptr) return;
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int part = 0; part < Size / Vector; ++part) {
      const int i = (part * 32 + lane) * Vector;
      float some[Vector];
#pragma unroll
      for (int j = 0; j < Vector; ++j) some[j] = at[part * Vector + j];
      if (i < size) store(static_cast<Format*>(to.data) + start + i, some);
    }
  }
  __device__ float dot(const Key& other) const {
    float sum = 0.0F;
#pragma unroll
    for (int i = 0; i < Size; ++i) sum += at[i] * other.at[i];
    return sum;
  }
};

// What a warp works on: Pairs rows of a key head each, one behind the other, with all that is read
// of them under way at once. N and 1 / n; where even eps is 0 a zero key stays zero: it writes
// nothing.
template <class Format, int Vector, int Size, int Pairs>
struct NormRows {
  const GainCall& call;
  std::int64_t first;  // pairs are counted row by row, head by head
  int count;           // at most Pairs; below 1 where the warp has none
  int lane, group;
  Key<Format, Vector, Size> e[Pairs], w[Pairs];
  float N[Pairs], m[Pairs];

  __device__ __forceinline__ explicit NormRows(const GainCall& of) : call(of) {
    first = global_thread() / 32 * Pairs;
    const std::int64_t left = call.count * call.heads - first;
    count = left < Pairs ? static_cast<int>(left) : Pairs;
    lane = static_cast<int>(threadIdx.x) % 32;
    group = static_cast<int>(call.value_heads / call.heads);
#pragma unroll
    for (int p = 0; p < Pairs; ++p) {
      e[p].read(call.e, key_at(p), p < count ? call.d_k : 0);
      if (call.w.data == call.e.data) {
        w[p] = e[p];
      } else {
        w[p].read(call.w, key_at(p), p < count ? call.d_k : 0);
      }
    }
  }
  __device__ __forceinline__ void norms() {
#pragma unroll
    for (int p = 0; p < Pairs; ++p) N[p] = warp_sum(e[p].dot(w[p]));
#pragma unroll
    for (int p = 0; p < Pairs; ++p) {
      const float norm = N[p] + call.eps;
      m[p] = norm > 0.0F ? 1.0F / std::sqrt(norm) : 0.0F;
    }
  }

  __device__ std::int64_t key_at(int p) const { return (first + p) * call.d_k; }
  // The values of a pair, of all value heads that read its key, lie one behind the other.
  __device__ int values() const { return group * call.d_v; }
  __device__ std::int64_t value_at(int p) const { return (first + p) * values(); }

  // Calls body(gain_at, pair, f(t), inputs) for the value heads of all pairs, a lane for each.
  template <class Body>
  __device__ __forceinline__ void each_gain(float theta, Body&& body) const {
    for (int i = lane; i < count * group; i += 32) {
      const int pair = group == 1 ? i : i / group;
      float of_pair = N[0];
#pragma unroll
      for (int p = 1; p < Pairs; ++p) of_pair = p == pair ? N[p] : of_pair;
      const std::int64_t at = first * group + i;
      body(at, pair, factor_of(call, (first + pair) / call.heads),
           GainInputs<float>{load(call.x, at), of_pair, call.eps, theta});
    }
  }
};

template <class Format, int Vector, int Size, int Pairs>
__global__ void __launch_bounds__(kThreads, 2) norm_gain(GainCall call) {
  NormRows<Format, Vector, Size, Pairs> rows(call);
  if (rows.count <= 0) return;
  const int values = rows.values(), start = rows.lane * Vector;
  const auto* v = static_cast<const Format*>(call.v.data);
  auto* to_v = static_cast<Format*>(call.v_out.data);
  Words<Format, Vector> ahead[Pairs];  // the first values of the lane
#pragma unroll
  for (int p = 0; p < Pairs; ++p) {
    ahead[p].clear();
    if (to_v != nullptr && p < rows.count && start < values) {
      ahead[p].read(v + rows.value_at(p) + start);
    }
  }
  rows.norms();
  if (call.b.data != nullptr) {
    with_gain(call.kind, [&](auto policy) {
      rows.each_gain(load(call.theta, 0), [&](std::int64_t at, int, float factor, const auto& in) {
        store(call.b, at, factor * policy.value(in).b);
      });
    });
  }
#pragma unroll
  for (int p = 0; p < Pairs; ++p) {
    if (p >= rows.count) break;
    for (int i = start; to_v != nullptr && i < values; i += 32 * Vector) {
      if (i != start) ahead[p].read(v + rows.value_at(p) + i);
      float some[Vector];
      ahead[p].get(some);
#pragma unroll
      for (int j = 0; j < Vector; ++j) some[j] *= rows.m[p];
      store(to_v + rows.value_at(p) + i, some);
    }
#pragma unroll
    for (int i = 0; i < Size; ++i) {
      rows.e[p].at[i] *= rows.m[p];
      rows.w[p].at[i] *= rows.m[p];
    }
    rows.e[p].write(call.e_out, rows.key_at(p), call.d_k);
    rows.w[p].write(call.w_out, rows.key_at(p), call.d_k);
  }
}

// With m = 1 / n and primes for the cotangents of e m, w m, v m and b:
//     dm = e . e' + w . w' + sum v . v';     dN = -m^3 dm / 2 + sum b' db/dN
//     de = m e' + dN w;   dw = m w' + dN e;  dv = m v';   dx = b' db/dx
// The first part of dN times a key k is taken as (-m^2 dm / 2) (m k). Returns d theta, of the lane.
template <class Format, int Vector, int Size, int Pairs>
__device__ __forceinline__ float norm_gain_rows_back(const GainCall& call, const GainBack& back) {
  NormRows<Format, Vector, Size, Pairs> rows(call);
  if (rows.count <= 0) return 0.0F;
  const int values = rows.values(), start = rows.lane * Vector;
  const auto* v = static_cast<const Format*>(call.v.data);
  const auto* d_v = static_cast<const Format*>(back.d_v.data);
  auto* to_v = static_cast<Format*>(back.to_v.data);
  Key<Format, Vector, Size> d_e[Pairs], d_w[Pairs];
  Words<Format, Vector> ahead[Pairs], d_ahead[Pairs];  // the first values of the lane
#pragma unroll
  for (int p = 0; p < Pairs; ++p) {
    d_e[p].read(back.d_e, rows.key_at(p), p < rows.count ? call.d_k : 0);
    d_w[p].read(back.d_w, rows.key_at(p), p < rows.count ? call.d_k : 0);
    ahead[p].clear();
    d_ahead[p].clear();
    if (d_v != nullptr && p < rows.count && start < values) {
      ahead[p].read(v + rows.value_at(p) + start);
      d_ahead[p].read(d_v + rows.value_at(p) + start);
    }
  }
  rows.norms();
  float d_m[Pairs], d_N[Pairs] = {}, d_theta = 0.0F;
  with_gain(call.kind, [&](auto policy) {
    rows.each_gain(load(call.theta, 0),
                   [&](std::int64_t at, int pair, float factor, const auto& in) {
                     const GainValue<float> gain = policy.value(in);
                     const float d_b = load(back.d_b, at) * factor;
#pragma unroll
                     for (int p = 0; p < Pairs; ++p) d_N[p] += p == pair ? d_b * gain.d_N : 0.0F;
                     d_theta += d_b * gain.d_theta;
                     store(back.to_x, at, d_b * gain.d_x);
                   });
  });
#pragma unroll
  for (int p = 0; p < Pairs; ++p) {
    d_m[p] = rows.e[p].dot(d_e[p]) + rows.w[p].dot(d_w[p]);
    for (int i = start; p < rows.count && i < values; i += 32 * Vector) {
      if (i != start && d_v != nullptr) {
        ahead[p].read(v + rows.value_at(p) + i);
        d_ahead[p].read(d_v + rows.value_at(p) + i);
      }
      float some[Vector], d_some[Vector];
      ahead[p].get(some);
      d_ahead[p].get(d_some);
#pragma unroll
      for (int j = 0; j < Vector; ++j) {
        d_m[p] += some[j] * d_some[j];
        d_some[j] *= rows.m[p];
      }
      if (to_v != nullptr) store(to_v + rows.value_at(p) + i, d_some);
    }
  }
#pragma unroll
  for (int p = 0; p < Pairs; ++p) {
    d_m[p] = warp_sum(d_m[p]);
    d_N[p] = warp_sum(d_N[p]);
  }
#pragma unroll
  for (int p = 0; p < Pairs; ++p) {
    if (p >= rows.count) break;
    const float m = rows.m[p], radial = -0.5F * m * m * d_m[p];
#pragma unroll
    for (int i = 0; i < Size; ++i) {
      const float e = rows.e[p].at[i], w = rows.w[p].at[i];
      d_e[p].at[i] = m * d_e[p].at[i] + (radial * (m * w) + d_N[p] * w);
      d_w[p].at[i] = m * d_w[p].at[i] + (radial * (m * e) + d_N[p] * e);
    }
    d_e[p].write(back.to_e, rows.key_at(p), call.d_k);
    d_w[p].write(back.to_w, rows.key_at(p), call.d_k);
  }
  return d_theta;
}

template <class Format, int Vector, int Size, int Pairs>
__global__ void __launch_bounds__(kThreads, 2) norm_gain_back(GainCall call, GainBack back) {
  const float of_lane = norm_gain_rows_back<Format, Vector, Size, Pairs>(call, back);
  if (back.partials == nullptr) return;
  const float d_theta = warp_sum(of_lane);
  auto* sums = reinterpret_cast<float*>(rankone::cuda::shared_memory());
  const int thread = static_cast<int>(threadIdx.x);
  if (thread % 32 == 0) sums[thread / 32] = d_theta;
  __syncthreads();
  if (thread != 0) return;
  float sum = 0.0F;
  for (int warp = 0; warp < kWarps; ++warp) sum += sums[warp];
  back.partials[blockIdx.x] = sum;
}

// ---- The vector gain: every element times the sigmoid of its own logit -------------------------

template <int Vector>
__global__ void __launch_bounds__(kThreads)
    gate(Sink to, Source from, Source x, std::int64_t count) {
  const std::int64_t at = global_thread() * Vector;
  if (at >= count) return;
  float value[Vector], logit[Vector];
  load(value, from, at);
  load(logit, x, at);
#pragma unroll
  for (int i = 0; i < Vector; ++i) value[i] *= sigmoid(logit[i]);
  store(to, at, value);
}

template <int Vector>
__global__ void __launch_bounds__(kThreads)
    gate_back(Sink d_from, Sink d_x, Source from, Source x, Source d, std::int64_t count) {
  const std::int64_t at = global_thread() * Vector;
  if (at >= count) return;
  float value[Vector], logit[Vector], cotangent[Vector];
  load(value, from, at);
  load(logit, x, at);
  load(cotangent, d, at);
#pragma unroll
  for (int i = 0; i < Vector; ++i) {
    cotangent[i] *= sigmoid(logit[i]);
    value[i] *= cotangent[i] * sigmoid(-logit[i]);
  }
  store(d_from, at, cotangent);
  store(d_x, at, value);
}

std::int64_t blocks_of(std::int64_t threads) { return (threads + kThreads - 1) / kThreads; }

void start_gate(const Sink& to, const Source& from, const Source& x, std::int64_t count,
                void* stream) {
  if (to.data == nullptr) return;
  if (in_words(count, to, from, x)) {
    rankone::cuda::launch(gate<8>, blocks_of(count / 8), kThreads, 0, stream, to, from, x, count);
  } else {
    rankone::cuda::launch(gate<1>, blocks_of(count), kThreads, 0, stream, to, from, x, count);
  }
}
void start_gate_back(const Sink& d_from, const Sink& d_x, const Source& from, const Source& x,
                     const Source& d, std::int64_t count, void* stream) {
  if (d_from.data == nullptr && d_x.data == nullptr) return;
  if (in_words(count, d_from, d_x, from, x, d)) {
    rankone::cuda::launch(gate_back<8>, blocks_of(count / 8), kThreads, 0, stream, d_from, d_x,
                          from, x, d, count);
  } else {
    rankone::cuda::launch(gate_back<1>, blocks_of(count), kThreads, 0, stream, d_from, d_x, from, x,
                          d, count);
  }
}

// Pairs of a warp, forward and back, where rows are whole words and d_k is at most 128; else one.
constexpr int kPairs = 4, kPairsBack = 2;

std::int64_t norm_blocks(const GainCall& call, int pairs) {
  return (call.count * call.heads + kWarps * pairs - 1) / (kWarps * pairs);
}

template <class Format>
void start_norm(const GainCall& call, void* stream) {
  const bool words = in_words(call.d_k, call.e, call.w, call.e_out, call.w_out) &&
                     in_words(call.d_v, call.v, call.v_out);
  const bool many = words && call.d_k <= 128;
  const auto kernel = many    ? norm_gain<Format, 4, 4, kPairs>
                      : words ? norm_gain<Format, 4, 8, 1>
                              : norm_gain<Format, 1, 8, 1>;
  rankone::cuda::launch(kernel, norm_blocks(call, many ? kPairs : 1), kThreads, 0, stream, call);
}
template <class Format>
void start_norm_back(const GainCall& call, const GainBack& back, void* stream) {
  const bool words = in_words(call.d_k, call.e, call.w, back.d_e, back.d_w, back.to_e, back.to_w) &&
                     in_words(call.d_v, call.v, back.d_v, back.to_v);
  const bool many = words && call.d_k <= 128;
  const auto kernel = many    ? norm_gain_back<Format, 4, 4, kPairsBack>
                      : words ? norm_gain_back<Format, 4, 8, 1>
                              : norm_gain_back<Format, 1, 8, 1>;
  const std::int64_t blocks = norm_blocks(call, many ? kPairsBack : 1);
  rankone::cuda::launch(kernel, blocks, kThreads, kWarps * sizeof(float), stream, call, back);
  launch_sums(back.to_theta, back.partials, blocks, 1, 1, 1, 1.0F, stream);
}

}  // namespace

void launch_gain(const GainCall& call, void* stream) {
  if (call.key_norm) {
    switch (call.v.dtype) {
      case Dtype::bf16:
        return start_norm<bf16>(call, stream);
      case Dtype::f16:
        return start_norm<f16>(call, stream);
      default:
        return start_norm<float>(call, stream);
    }
  }
  if (call.kind == GainKind::vector) {
    start_gate(call.e_out, call.e, call.x, call.count * call.heads * call.d_k, stream);
    start_gate(call.v_out, call.v, call.x_v, call.count * call.value_heads * call.d_v, stream);
  }
  if (call.b.data == nullptr) return;
  rankone::cuda::launch(scalar_gain, blocks_of(call.count * call.value_heads), kThreads, 0, stream,
                        call, GainBack{}, false);
}

std::int64_t gain_partials(const GainCall& call) { return norm_blocks(call, 1); }

void launch_gain_back(const GainCall& call, const GainBack& back, void* stream) {
  if (call.kind == GainKind::vector) {
    if (call.e.data != nullptr) {
      start_gate_back(back.to_e, back.to_x, call.e, call.x, back.d_e,
                      call.count * call.heads * call.d_k, stream);
    }
    start_gate_back(back.to_v, back.to_x_v, call.v, call.x_v, back.d_v,
                    call.count * call.value_heads * call.d_v, stream);
    return;
  }
  if (!call.key_norm) {
    if (back.to_x.data == nullptr) return;
    rankone::cuda::launch(scalar_gain, blocks_of(call.count * call.value_heads), kThreads, 0,
                          stream, call, back, true);
    return;
  }
  switch (call.v.dtype) {
    case Dtype::bf16:
      return start_norm_back<bf16>(call, back, stream);
    case Dtype::f16:
      return start_norm_back<f16>(call, back, stream);
    default:
      return start_norm_back<float>(call, back, stream);
  }
}

}  // namespace rankone::recurrence::cuda
