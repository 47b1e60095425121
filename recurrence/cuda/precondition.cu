// The diagonal preconditioner: a scan over time for every channel, cut into chunks of 64 rows. A
// block has a chunk of one head, its four warps 16 rows each, a lane 4 or 8 channels. Three
// kernels: what each chunk adds to the state; the states between the chunks; the rows. All sums
// have one order, whatever runs when. The way back is the same twice: for A, then for dL/dA from
// the end.

#include "recurrence/cuda/precondition.hpp"

#include "recurrence/axes/preconditioner.hpp"
#include "recurrence/cuda/array.hpp"
#include "recurrence/cuda/fast_float.hpp"
#include "recurrence/cuda/sums.hpp"

namespace rankone::recurrence::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * 32;
constexpr int kWarpRows = kPreconditionChunk / kWarps;
constexpr int kBatch = 4;  // rows whose loads are under way at once

// Shared memory of a block: gates of its rows, and what its warps tell each other.
struct Shared {
  float *decay, *gain, *inverse_norm;  // [64]
  float* decays;                       // [kWarps], of the rows of a warp together
  float* sums;                         // [kWarps, K]
  float* reverse;                      // [kWarps, K]: sums of dL/dA, then of the parameter
  float *history, *sources;            // [64, K]

  static std::size_t bytes(int d_k, bool backward) {
    const std::size_t rows = backward ? 2 * kWarps + 2 * kPreconditionChunk : kWarps;
    return (3 * kPreconditionChunk + kWarps + rows * static_cast<std::size_t>(d_k)) * sizeof(float);
  }
  __device__ explicit Shared(int d_k) {
    auto* memory = reinterpret_cast<float*>(rankone::cuda::shared_memory());
    decay = memory;
    gain = decay + kPreconditionChunk;
    inverse_norm = gain + kPreconditionChunk;
    decays = inverse_norm + kPreconditionChunk;
    sums = decays + kWarps;
    reverse = sums + kWarps * d_k;
    history = reverse + kWarps * d_k;
    sources = history + kPreconditionChunk * d_k;
  }
};

// The channels of a lane: Vector of them from (part * 32 + lane) * Vector on, for each part.
template <class Format, int Vector, int Size>
struct Lane {
  int d_k;

  __device__ int channel(int part) const {
    return (part * 32 + static_cast<int>(threadIdx.x) % 32) * Vector;
  }
  template <class Body>
  __device__ __forceinline__ void parts(Body&& body) const {
#pragma unroll
    for (int part = 0; part < Size / Vector; ++part) {
      const int at = channel(part);
      if (at < d_k) body(part * Vector, at);
    }
  }
  // `to` is zero where the lane has no channel.
  template <class From>
  __device__ __forceinline__ void load_row(float (&to)[Size], const From* row) const {
#pragma unroll
    for (int i = 0; i < Size; ++i) to[i] = 0.0F;
    parts([&](int i, int at) {
      float some[Vector];
      load(some, row + at);
#pragma unroll
      for (int j = 0; j < Vector; ++j) to[i + j] = some[j];
    });
  }
  template <class To>
  __device__ __forceinline__ void store_row(To* row, const float (&from)[Size]) const {
    parts([&](int i, int at) {
      float some[Vector];
#pragma unroll
      for (int j = 0; j < Vector; ++j) some[j] = from[i + j];
      store(row + at, some);
    });
  }
};

// What a block works on.
template <class Format, int Vector, int Size>
struct Chunk {
  const PreconditionCall& call;
  Shared shared;
  Lane<Format, Vector, Size> lane;
  rankone::cuda::Span span;
  std::int64_t number, head;
  int warp, begin, end;  // rows of the warp, within the chunk

  __device__ explicit Chunk(const PreconditionCall& of) : call(of), shared(of.d_k), lane{of.d_k} {
    number = blockIdx.x / call.heads;
    head = blockIdx.x - number * call.heads;
    span = call.rows.span(number);
    warp = static_cast<int>(threadIdx.x) / 32;
    begin = warp * kWarpRows;
    end = begin + kWarpRows < span.count ? begin + kWarpRows : span.count;
    if (begin > end) begin = end;
  }

  __device__ std::int64_t gate_at(int row) const { return (span.first + row) * call.heads + head; }
  __device__ std::int64_t key_at(int row) const { return gate_at(row) * call.d_k; }
  __device__ std::int64_t state_at() const {
    return static_cast<std::int64_t>(blockIdx.x) * call.d_k;
  }
  __device__ const Format* keys() const { return static_cast<const Format*>(call.k.data); }

  __device__ void load_gates() const {
    const int row = static_cast<int>(threadIdx.x);
    if (row < span.count) {
      shared.decay[row] = std::exp(load(call.g, gate_at(row)));
      shared.gain[row] = load(call.b, gate_at(row), 1.0F);
    }
    __syncthreads();
  }

  // Calls body(row, k^) for the rows of the warp in order; norms are kept.
  template <class Body>
  __device__ __forceinline__ void first_pass(Body&& body) const {
    for (int first = begin; first < end; first += kBatch) {
      float k[kBatch][Size];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        if (first + i < end) lane.load_row(k[i], keys() + key_at(first + i));
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        if (first + i >= end) break;
        float squares = 0.0F;
#pragma unroll
        for (int c = 0; c < Size; ++c) squares += k[i][c] * k[i][c];
        const float inverse = call.normalize ? 1.0F / std::sqrt(warp_sum(squares) + 1e-6F) : 1.0F;
        if (threadIdx.x % 32 == 0) shared.inverse_norm[first + i] = inverse;
#pragma unroll
        for (int c = 0; c < Size; ++c) k[i][c] *= inverse;
        body(first + i, k[i]);
      }
    }
    __syncwarp();
  }

  __device__ __forceinline__ void step(float (&state)[Size], int row,
                                       const float (&k)[Size]) const {
    const float decay = shared.decay[row], gain = shared.gain[row];
#pragma unroll
    for (int c = 0; c < Size; ++c) state[c] = precondition_step(state[c], decay, gain, k[c]);
  }

  // What the rows of each warp add to the state, and their decay, in shared memory.
  __device__ void sum_rows() const {
    float state[Size] = {}, decay = 1.0F;
    first_pass([&](int row, const float(&k)[Size]) {
      step(state, row, k);
      decay *= shared.decay[row];
    });
    lane.store_row(shared.sums + warp * call.d_k, state);
    if (threadIdx.x % 32 == 0) shared.decays[warp] = decay;
  }

  // The state before the rows of this warp (all warps have been at sum_rows()).
  __device__ void start(float (&state)[Size]) const {
    lane.load_row(state, call.scan.states + state_at());
    for (int before = 0; before < warp; ++before) {
      float sum[Size];
      lane.load_row(sum, shared.sums + before * call.d_k);
#pragma unroll
      for (int c = 0; c < Size; ++c) state[c] = shared.decays[before] * state[c] + sum[c];
    }
  }

  __device__ PreconditionFactor<FastFloat> factor(float state, float parameter) const {
    return precondition_factor<FastFloat>(call.kind, state, parameter, call.log_x, call.eps);
  }
  // center or ridge; 1 where the lane has no channel
  __device__ void load_parameter(float (&parameter)[Size]) const {
    const bool atk = call.kind == PreconditionerKind::atk;
#pragma unroll
    for (int c = 0; c < Size; ++c) parameter[c] = 1.0F;
    lane.parts([&](int i, int at) {
#pragma unroll
      for (int j = 0; j < Vector; ++j) {
        parameter[i + j] = load(call.parameter, atk ? head : head * call.d_k + at + j);
      }
    });
  }

  // Sums of the warps [kWarps, K] and their decays become the sum of the chunk; from the last warp
  // to the first where it is `reverse`.
  __device__ void put_sum(const ChunkScan& scan, const float* sums, bool reverse) const {
    for (int channel = static_cast<int>(threadIdx.x); channel < call.d_k; channel += kThreads) {
      float sum = 0.0F;
      for (int i = 0; i < kWarps; ++i) {
        const int from = reverse ? kWarps - 1 - i : i;
        sum = shared.decays[from] * sum + sums[from * call.d_k + channel];
      }
      scan.states[state_at() + channel] = sum;
    }
    if (threadIdx.x == 0) {
      float decay = 1.0F;
      for (int i = 0; i < kWarps; ++i) decay *= shared.decays[i];
      scan.decays[blockIdx.x] = decay;
    }
  }
};

template <class Format, int Vector, int Size>
__global__ void __launch_bounds__(kThreads) sum_chunks(PreconditionCall call) {
  const Chunk<Format, Vector, Size> chunk(call);
  chunk.load_gates();
  chunk.sum_rows();
  __syncthreads();
  chunk.put_sum(call.scan, chunk.shared.sums, false);
}

// The states between the chunks of a sequence: a block takes a head, a thread a channel. From the
// last to the first where it is `reverse`. `initial` null: zero; `final` null: not wanted.
__global__ void __launch_bounds__(256)
    scan_chunks(rankone::cuda::Rows rows, std::int64_t heads, int d_k, ChunkScan scan,
                const float* initial, float* final, bool reverse) {
  const std::int64_t sequence = blockIdx.x / heads, head = blockIdx.x - sequence * heads;
  const int channel = static_cast<int>(threadIdx.x);
  if (channel >= d_k) return;
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * d_k + channel;
  const std::int64_t first = rows.first_chunk(sequence),
                     count = rows.first_chunk(sequence + 1) - first;
  float state = initial != nullptr ? initial[at] : 0.0F;
  constexpr int kAhead = 16;  // chunks whose sums are loaded together
  for (std::int64_t done = 0; done < count; done += kAhead) {
    float sum[kAhead], decay[kAhead];
    const int some = count - done < kAhead ? static_cast<int>(count - done) : kAhead;
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (i >= some) break;
      const std::int64_t chunk = reverse ? first + count - 1 - done - i : first + done + i;
      sum[i] = scan.states[(chunk * heads + head) * d_k + channel];
      decay[i] = scan.decays[chunk * heads + head];
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (i >= some) break;
      const std::int64_t chunk = reverse ? first + count - 1 - done - i : first + done + i;
      scan.states[(chunk * heads + head) * d_k + channel] = state;
      state = decay[i] * state + sum[i];
    }
  }
  if (final != nullptr) final[at] = state;
}

template <class Format, int Vector, int Size>
__global__ void __launch_bounds__(kThreads) emit_rows(PreconditionCall call) {
  const Chunk<Format, Vector, Size> chunk(call);
  chunk.load_gates();
  chunk.sum_rows();
  __syncthreads();
  float state[Size], parameter[Size];
  chunk.start(state);
  chunk.load_parameter(parameter);
  const bool same = call.target.data == call.k.data;
  const auto* targets = static_cast<const Format*>(call.target.data);
  auto* out = static_cast<Format*>(call.out.data);
  for (int first = chunk.begin; first < chunk.end; first += kBatch) {
    float k[kBatch][Size], target[kBatch][Size];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (first + i >= chunk.end) break;
      chunk.lane.load_row(k[i], chunk.keys() + chunk.key_at(first + i));
      if (!same) chunk.lane.load_row(target[i], targets + chunk.key_at(first + i));
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int row = first + i;
      if (row >= chunk.end) break;
      const float inverse = chunk.shared.inverse_norm[row];
#pragma unroll
      for (int c = 0; c < Size; ++c) {
        if (same) target[i][c] = k[i][c];
        k[i][c] *= inverse;
      }
      chunk.step(state, row, k[i]);
#pragma unroll
      for (int c = 0; c < Size; ++c) {
        target[i][c] *= chunk.factor(state[c], parameter[c]).factor.value;
      }
      chunk.lane.store_row(out + chunk.key_at(row), target[i]);
    }
  }
}

// ---- The way back ------------------------------------------------------------------------------

// Forward over the rows of the warp from the state before them: calls body(row, k^, target, d_out,
// state before, state after).
template <class Format, int Vector, int Size, class Body>
__device__ __forceinline__ void replay(const Chunk<Format, Vector, Size>& chunk,
                                       const PreconditionBack& back, Body&& body) {
  constexpr int kPair = 2;
  const PreconditionCall& call = chunk.call;
  const auto* targets = static_cast<const Format*>(call.target.data);
  const auto* d_outs = static_cast<const Format*>(back.d_out.data);
  float state[Size];
  chunk.start(state);
  for (int first = chunk.begin; first < chunk.end; first += kPair) {
    float k[kPair][Size], target[kPair][Size], d_out[kPair][Size];
#pragma unroll
    for (int i = 0; i < kPair; ++i) {
      if (first + i >= chunk.end) break;
      const std::int64_t at = chunk.key_at(first + i);
      chunk.lane.load_row(k[i], chunk.keys() + at);
      chunk.lane.load_row(target[i], targets + at);
      chunk.lane.load_row(d_out[i], d_outs + at);
    }
#pragma unroll
    for (int i = 0; i < kPair; ++i) {
      const int row = first + i;
      if (row >= chunk.end) break;
      const float inverse = chunk.shared.inverse_norm[row];
#pragma unroll
      for (int c = 0; c < Size; ++c) k[i][c] *= inverse;
      float before[Size];
#pragma unroll
      for (int c = 0; c < Size; ++c) before[c] = state[c];
      chunk.step(state, row, k[i]);
      body(row, k[i], target[i], d_out[i], before, state);
    }
  }
}

// With lambda = dL/dA: what each chunk adds to the lambda before it.
template <class Format, int Vector, int Size>
__global__ void __launch_bounds__(kThreads)
    sum_chunks_back(PreconditionCall call, PreconditionBack back) {
  const Chunk<Format, Vector, Size> chunk(call);
  chunk.load_gates();
  chunk.sum_rows();
  __syncthreads();
  float parameter[Size], sum[Size] = {}, decay = 1.0F;
  chunk.load_parameter(parameter);
  replay(chunk, back,
         [&](int row, const float(&)[Size], const float(&target)[Size], const float(&d_out)[Size],
             const float(&)[Size], const float(&state)[Size]) {
           decay *= chunk.shared.decay[row];
#pragma unroll
           for (int c = 0; c < Size; ++c) {
             const float through = d_out[c] * target[c];
             sum[c] += decay * (through * chunk.factor(state[c], parameter[c]).d_state.value);
           }
         });
  chunk.lane.store_row(chunk.shared.reverse + chunk.warp * call.d_k, sum);
  __syncthreads();
  chunk.put_sum(back.scan, chunk.shared.reverse, true);
}

// lambda behind the rows of this warp, from lambda behind the chunk.
template <class Format, int Vector, int Size>
__device__ void start_back(const Chunk<Format, Vector, Size>& chunk, const ChunkScan& scan,
                           float (&lambda)[Size]) {
  chunk.lane.load_row(lambda, scan.states + chunk.state_at());
  for (int after = kWarps - 1; after > chunk.warp; --after) {
    float sum[Size];
    chunk.lane.load_row(sum, chunk.shared.reverse + after * chunk.call.d_k);
#pragma unroll
    for (int c = 0; c < Size; ++c) lambda[c] = chunk.shared.decays[after] * lambda[c] + sum[c];
  }
}

// Reverse step:
//     lambda += d_out target dfactor/dA;   dtarget = d_out factor;   dparameter += ...
//     dk^ = 2 b k^ lambda;   db = sum k^2 lambda;   dg = exp(g) sum lambda A_{t-1}
//     lambda <- exp(g) lambda
template <class Format, int Vector, int Size>
__global__ void __launch_bounds__(kThreads)
    emit_rows_back(PreconditionCall call, PreconditionBack back) {
  const Chunk<Format, Vector, Size> chunk(call);
  const Shared& shared = chunk.shared;
  chunk.load_gates();
  chunk.sum_rows();
  __syncthreads();

  // Forward: dtarget, and what the reverse steps need: A_{t-1} and what each row adds to lambda.
  float parameter[Size], d_parameter[Size] = {}, sum[Size] = {}, decay = 1.0F;
  chunk.load_parameter(parameter);
  replay(chunk, back,
         [&](int row, const float(&)[Size], const float(&target)[Size], const float(&d_out)[Size],
             const float(&before)[Size], const float(&state)[Size]) {
           decay *= shared.decay[row];
           float d_target[Size], source[Size];
#pragma unroll
           for (int c = 0; c < Size; ++c) {
             const auto at = chunk.factor(state[c], parameter[c]);
             const float through = d_out[c] * target[c];
             d_target[c] = d_out[c] * at.factor.value;
             d_parameter[c] += through * at.d_parameter.value;
             source[c] = through * at.d_state.value;
             sum[c] += decay * source[c];
           }
           chunk.lane.store_row(shared.history + row * call.d_k, before);
           chunk.lane.store_row(shared.sources + row * call.d_k, source);
           if (back.d_target.data != nullptr) {
             chunk.lane.store_row(static_cast<Format*>(back.d_target.data) + chunk.key_at(row),
                                  d_target);
           }
         });
  chunk.lane.store_row(shared.reverse + chunk.warp * call.d_k, sum);
  __syncthreads();

  float lambda[Size];
  start_back(chunk, back.scan, lambda);
  for (int row = chunk.end - 1; row >= chunk.begin; --row) {
    const float inverse = shared.inverse_norm[row], gain = shared.gain[row];
    float k[Size], before[Size], source[Size];
    chunk.lane.load_row(k, chunk.keys() + chunk.key_at(row));
    chunk.lane.load_row(before, shared.history + row * call.d_k);
    chunk.lane.load_row(source, shared.sources + row * call.d_k);
    float d_gain = 0.0F, d_decay = 0.0F, along = 0.0F, d_key[Size];
#pragma unroll
    for (int c = 0; c < Size; ++c) {
      k[c] *= inverse;
      lambda[c] += source[c];
      d_key[c] = 2.0F * gain * k[c] * lambda[c];
      d_gain += k[c] * k[c] * lambda[c];
      along += k[c] * d_key[c];
      lambda[c] *= shared.decay[row];
      d_decay += lambda[c] * before[c];
    }
    if (call.normalize) {
      along = warp_sum(along);
#pragma unroll
      for (int c = 0; c < Size; ++c) d_key[c] = inverse * (d_key[c] - k[c] * along);
    }
    if (back.d_k.data != nullptr) {
      chunk.lane.store_row(static_cast<Format*>(back.d_k.data) + chunk.key_at(row), d_key);
    }
    d_gain = warp_sum(d_gain);
    d_decay = warp_sum(d_decay);
    if (threadIdx.x % 32 == 0) {
      store(back.d_b, chunk.gate_at(row), d_gain);
      store(back.d_g, chunk.gate_at(row), d_decay);
    }
  }

  if (back.partials == nullptr) return;
  __syncthreads();
  chunk.lane.store_row(shared.sums + chunk.warp * call.d_k, d_parameter);
  __syncthreads();
  for (int channel = static_cast<int>(threadIdx.x); channel < call.d_k; channel += kThreads) {
    float total = 0.0F;
    for (int warp = 0; warp < kWarps; ++warp) total += shared.sums[warp * call.d_k + channel];
    back.partials[chunk.state_at() + channel] = total;
  }
}

void scan(const PreconditionCall& call, const ChunkScan& of, const float* initial, float* final,
          bool reverse, void* stream) {
  rankone::cuda::launch(scan_chunks, call.rows.sequences * call.heads, (call.d_k + 31) / 32 * 32, 0,
                        stream, call.rows, call.heads, call.d_k, of, initial, final, reverse);
}

template <class Format, int Vector, int Size>
void start(const PreconditionCall& call, void* stream) {
  const std::int64_t blocks = call.rows.chunks * call.heads;
  const std::size_t shared = Shared::bytes(call.d_k, false);
  rankone::cuda::launch(sum_chunks<Format, Vector, Size>, blocks, kThreads, shared, stream, call);
  scan(call, call.scan, call.initial, call.final, false, stream);
  if (call.out.data == nullptr) return;
  rankone::cuda::launch(emit_rows<Format, Vector, Size>, blocks, kThreads, shared, stream, call);
}

template <class Format, int Vector, int Size>
void start_vjp(const PreconditionCall& call, const PreconditionBack& back, void* stream) {
  const std::int64_t blocks = call.rows.chunks * call.heads;
  const std::size_t shared = Shared::bytes(call.d_k, true);
  rankone::cuda::launch(sum_chunks<Format, Vector, Size>, blocks, kThreads, shared, stream, call);
  scan(call, call.scan, call.initial, nullptr, false, stream);
  rankone::cuda::launch(sum_chunks_back<Format, Vector, Size>, blocks, kThreads, shared, stream,
                        call, back);
  scan(call, back.scan, back.d_final, back.d_initial, true, stream);
  rankone::cuda::launch(emit_rows_back<Format, Vector, Size>, blocks, kThreads, shared, stream,
                        call, back);
  const bool atk = call.kind == PreconditionerKind::atk;
  launch_sums(back.d_parameter, back.partials, call.rows.chunks, call.heads * call.d_k,
              atk ? call.heads : call.heads * call.d_k, atk ? call.d_k : 1, 1.0F, stream);
}

// Calls run.template operator()<Format, Vector, Size>() with what fits the call.
template <class Run>
void choose(const PreconditionCall& call, bool words, Run&& run) {
  const auto sized = [&](auto format) {
    using Format = decltype(format);
    if (!words) return run.template operator()<Format, 1, 8>();
    if (call.d_k <= 128) return run.template operator()<Format, 4, 4>();
    return run.template operator()<Format, 4, 8>();
  };
  switch (call.k.dtype) {
    case Dtype::bf16:
      return sized(bf16{});
    case Dtype::f16:
      return sized(f16{});
    default:
      return sized(0.0F);
  }
}

}  // namespace

void launch_precondition(const PreconditionCall& call, void* stream) {
  choose(call, in_words(call.d_k, call.k, call.target, call.out),
         [&]<class Format, int Vector, int Size>() { start<Format, Vector, Size>(call, stream); });
}

void launch_precondition_back(const PreconditionCall& call, const PreconditionBack& back,
                              void* stream) {
  choose(call, in_words(call.d_k, call.k, call.target, back.d_out, back.d_k, back.d_target),
         [&]<class Format, int Vector, int Size>() {
           start_vjp<Format, Vector, Size>(call, back, stream);
         });
}

}  // namespace rankone::recurrence::cuda
