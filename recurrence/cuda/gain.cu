// Gains. A key-norm gain takes a warp for a row of a key head with its value heads; the other gains
// and the gates of the vector gain are element-wise. The equations are those of axes/gain.hpp; what
// is made of them, and its derivative, is in prologue_gain.hpp.
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

// Elements of a row in a lane: Vector of them at lane * Vector, then 32 * Vector further.
template <int Vector, class Body>
__device__ __forceinline__ void each(int size, Body&& body) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int i = lane * Vector; i < size; i += 32 * Vector) body(i);
}

// A key of the warp's row in registers, Size elements in a lane; zero behind its end.
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

// What the warp works on, and 1 / n. Where even eps is 0 a zero key stays zero: it writes nothing.
template <class Format, int Vector, int Size>
struct NormRow {
  std::int64_t row, head, key;
  bool any;
  float factor, theta, N, m;
  Key<Format, Vector, Size> e, w;

  __device__ explicit NormRow(const GainCall& call) {
    const std::int64_t number = global_thread() / 32;
    any = number < call.count * call.heads;
    if (!any) return;
    row = number / call.heads;
    head = number - row * call.heads;
    key = number * call.d_k;
    e.read(call.e, key, call.d_k);
    if (call.w.data == call.e.data) {
      w = e;
    } else {
      w.read(call.w, key, call.d_k);
    }
    factor = factor_of(call, row);
    theta = load(call.theta, 0);
    N = warp_sum(e.dot(w));
    const float norm = N + call.eps;
    m = norm > 0.0F ? 1.0F / std::sqrt(norm) : 0.0F;
  }
  __device__ GainInputs<float> inputs(const GainCall& call, std::int64_t gain_at) const {
    return {load(call.x, gain_at), N, call.eps, theta};
  }
};

template <class Format, int Vector, int Size>
__global__ void __launch_bounds__(kThreads) norm_gain(GainCall call) {
  NormRow<Format, Vector, Size> row(call);
  if (!row.any) return;
  const int group = static_cast<int>(call.value_heads / call.heads);
  for (int member = 0; member < group; ++member) {
    const std::int64_t gain_at = row.row * call.value_heads + row.head * group + member;
    if (threadIdx.x % 32 == 0 && call.b.data != nullptr) {
      with_gain(call.kind, [&](auto policy) {
        store(call.b, gain_at, row.factor * policy.value(row.inputs(call, gain_at)).b);
      });
    }
    if (call.v_out.data == nullptr) continue;
    const auto* from = static_cast<const Format*>(call.v.data) + gain_at * call.d_v;
    auto* to = static_cast<Format*>(call.v_out.data) + gain_at * call.d_v;
    each<Vector>(call.d_v, [&](int i) {
      float some[Vector];
      load(some, from + i);
#pragma unroll
      for (int j = 0; j < Vector; ++j) some[j] *= row.m;
      store(to + i, some);
    });
  }
#pragma unroll
  for (int i = 0; i < Size; ++i) {
    row.e.at[i] *= row.m;
    row.w.at[i] *= row.m;
  }
  row.e.write(call.e_out, row.key, call.d_k);
  row.w.write(call.w_out, row.key, call.d_k);
}

// With m = 1 / n and primes for the cotangents of e m, w m, v m and b:
//     dm = e . e' + w . w' + sum v . v';     dN = -m^3 dm / 2 + sum b' db/dN
//     de = m e' + dN w;   dw = m w' + dN e;  dv = m v';   dx = b' db/dx
// The first part of dN times a key k is taken as (-m^2 dm / 2) (m k). Returns d theta.
template <class Format, int Vector, int Size>
__device__ float norm_gain_row_back(const GainCall& call, const GainBack& back) {
  const NormRow<Format, Vector, Size> row(call);
  if (!row.any) return 0.0F;
  Key<Format, Vector, Size> d_e, d_w;
  d_e.read(back.d_e, row.key, call.d_k);
  d_w.read(back.d_w, row.key, call.d_k);
  float d_m = row.e.dot(d_e) + row.w.dot(d_w), d_N = 0.0F, d_theta = 0.0F;
  const int group = static_cast<int>(call.value_heads / call.heads);
  for (int member = 0; member < group; ++member) {
    const std::int64_t gain_at = row.row * call.value_heads + row.head * group + member;
    with_gain(call.kind, [&](auto policy) {
      const GainValue<float> gain = policy.value(row.inputs(call, gain_at));
      const float d_b = load(back.d_b, gain_at) * row.factor;
      d_N += d_b * gain.d_N;
      d_theta += d_b * gain.d_theta;
      __syncwarp();  // the logit may be the memory of its gradient
      if (threadIdx.x % 32 == 0) store(back.to_x, gain_at, d_b * gain.d_x);
    });
    const auto* v = static_cast<const Format*>(call.v.data) + gain_at * call.d_v;
    const auto* d_v = static_cast<const Format*>(back.d_v.data) + gain_at * call.d_v;
    auto* to_v = static_cast<Format*>(back.to_v.data) + gain_at * call.d_v;
    each<Vector>(call.d_v, [&](int i) {
      float some[Vector], d_some[Vector] = {};
      load(some, v + i);
      if (back.d_v.data != nullptr) load(d_some, d_v + i);
#pragma unroll
      for (int j = 0; j < Vector; ++j) {
        d_m += some[j] * d_some[j];
        d_some[j] *= row.m;
      }
      if (back.to_v.data != nullptr) store(to_v + i, d_some);
    });
  }
  const float radial = -0.5F * row.m * row.m * warp_sum(d_m);
#pragma unroll
  for (int i = 0; i < Size; ++i) {
    d_e.at[i] = row.m * d_e.at[i] + (radial * (row.m * row.w.at[i]) + d_N * row.w.at[i]);
    d_w.at[i] = row.m * d_w.at[i] + (radial * (row.m * row.e.at[i]) + d_N * row.e.at[i]);
  }
  d_e.write(back.to_e, row.key, call.d_k);
  d_w.write(back.to_w, row.key, call.d_k);
  return d_theta;
}

template <class Format, int Vector, int Size>
__global__ void __launch_bounds__(kThreads) norm_gain_back(GainCall call, GainBack back) {
  const float d_theta = norm_gain_row_back<Format, Vector, Size>(call, back);
  if (back.partials == nullptr) return;
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

std::int64_t norm_blocks(const GainCall& call) {
  return (call.count * call.heads + kWarps - 1) / kWarps;
}

template <class Format>
void start_norm(const GainCall& call, void* stream) {
  const bool words = in_words(call.d_k, call.e, call.w, call.e_out, call.w_out) &&
                     in_words(call.d_v, call.v, call.v_out);
  const auto kernel = !words            ? norm_gain<Format, 1, 8>
                      : call.d_k <= 128 ? norm_gain<Format, 4, 4>
                                        : norm_gain<Format, 4, 8>;
  rankone::cuda::launch(kernel, norm_blocks(call), kThreads, 0, stream, call);
}
template <class Format>
void start_norm_back(const GainCall& call, const GainBack& back, void* stream) {
  const bool words = in_words(call.d_k, call.e, call.w, back.d_e, back.d_w, back.to_e, back.to_w) &&
                     in_words(call.d_v, call.v, back.d_v, back.to_v);
  const auto kernel = !words            ? norm_gain_back<Format, 1, 8>
                      : call.d_k <= 128 ? norm_gain_back<Format, 4, 4>
                                        : norm_gain_back<Format, 4, 8>;
  rankone::cuda::launch(kernel, norm_blocks(call), kThreads, kWarps * sizeof(float), stream, call,
                        back);
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

std::int64_t gain_partials(const GainCall& call) { return norm_blocks(call); }

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
      start_norm_back<bf16>(call, back, stream);
      break;
    case Dtype::f16:
      start_norm_back<f16>(call, back, stream);
      break;
    default:
      start_norm_back<float>(call, back, stream);
  }
  launch_sums(back.to_theta, back.partials, norm_blocks(call), 1, 1, 1, 1.0F, stream);
}

}  // namespace rankone::recurrence::cuda
