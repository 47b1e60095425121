// The diagonal preconditioner: a scan over time for every channel, cut into chunks of 64 rows. A
// block has a chunk of one head, its warps 8 or 16 rows each, a lane 4 or 8 channels. Three
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

// Warps of a block for Size channels in a lane: so many that the rows of a warp fit its registers.
template <int Size>
struct Cut {
  static constexpr int kWarps = Size == 4 ? 4 : 8;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kRows = kPreconditionChunk / kWarps;  // of a warp
};

// Shared memory of a block: gates of its rows, and what its warps tell each other.
struct Shared {
  float *decay, *gain, *inverse_norm;  // [64]
  float* decays;                       // [warps], of the rows of a warp together
  float* sums;                         // [warps, K]
  float* reverse;                      // [warps, K]: sums of dL/dA
  float *history, *sources;            // [64, K]

  static std::size_t bytes(int d_k, int warps, int kept) {
    const auto rows = static_cast<std::size_t>(2 * warps + kept * kPreconditionChunk);
    return (3 * kPreconditionChunk + 8 + rows * static_cast<std::size_t>(d_k)) * sizeof(float);
  }
  __device__ Shared(int d_k, int warps) {
    auto* memory = reinterpret_cast<float*>(rankone::cuda::shared_memory());
    decay = memory;
    gain = decay + kPreconditionChunk;
    inverse_norm = gain + kPreconditionChunk;
    decays = inverse_norm + kPreconditionChunk;
    sums = decays + 8;
    reverse = sums + warps * d_k;
    history = reverse + warps * d_k;
    sources = history + kPreconditionChunk * d_k;
  }
};

// The channels of a lane: Vector of them from (part * 32 + lane) * Vector on, for each part.
template <class Format, int Vector, int Size>
struct Lane {
  int d_k;

  struct Row {  // as it lies in memory
    Words<Format, Vector> words[Size / Vector];
  };

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
  // Zero where the lane has no channel, and everywhere where there is no row.
  __device__ __forceinline__ void read(Row& to, const Format* row, bool any) const {
#pragma unroll
    for (int part = 0; part < Size / Vector; ++part) {
      const int at = channel(part);
      if (any && at < d_k) {
        to.words[part].read(row + at);
      } else {
        to.words[part].clear();
      }
    }
  }
  __device__ __forceinline__ static void get(float (&to)[Size], const Row& row) {
#pragma unroll
    for (int part = 0; part < Size / Vector; ++part) {
      float some[Vector];
      row.words[part].get(some);
#pragma unroll
      for (int j = 0; j < Vector; ++j) to[part * Vector + j] = some[j];
    }
  }
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

// What a block works on. `rows` of a warp are its keys, all in registers from the beginning.
template <class Format, int Vector, int Size>
struct Chunk {
  static constexpr int kWarps = Cut<Size>::kWarps, kRows = Cut<Size>::kRows;
  using Row = typename Lane<Format, Vector, Size>::Row;

  const PreconditionCall& call;
  Shared shared;
  Lane<Format, Vector, Size> lane;
  rankone::cuda::Span span;
  std::int64_t number, head;
  int warp, begin, count;  // rows of the warp, within the chunk
  Row keys[kRows];

  __device__ __forceinline__ explicit Chunk(const PreconditionCall& of)
      : call(of), shared(of.d_k, kWarps), lane{of.d_k} {
    number = blockIdx.x / call.heads;
    head = blockIdx.x - number * call.heads;
    span = call.rows.span(number);
    warp = static_cast<int>(threadIdx.x) / 32;
    begin = warp * kRows;
    count = span.count - begin < kRows ? span.count - begin : kRows;
    read_rows(keys, call.k);
    load_gates();
    load_norms();
  }

  __device__ std::int64_t gate_at(int r) const {
    return (span.first + begin + r) * call.heads + head;
  }
  __device__ std::int64_t key_at(int r) const { return gate_at(r) * call.d_k; }
  __device__ std::int64_t state_at() const {
    return static_cast<std::int64_t>(blockIdx.x) * call.d_k;
  }

  __device__ __forceinline__ void read_rows(Row (&to)[kRows], const Source& from) const {
    const auto* rows = static_cast<const Format*>(from.data);
#pragma unroll
    for (int r = 0; r < kRows; ++r) lane.read(to[r], rows + key_at(r), r < count);
  }
  // A row of the warp in registers already, or the one in memory.
  __device__ __forceinline__ void target(float (&to)[Size], int r) const {
    if (call.target.data == call.k.data) {
      lane.get(to, keys[r]);
    } else {
      lane.load_row(to, static_cast<const Format*>(call.target.data) + key_at(r));
    }
  }

  __device__ void load_gates() const {
    const int r = static_cast<int>(threadIdx.x) % 32;
    if (r < count) {
      shared.decay[begin + r] = std::exp(load(call.g, gate_at(r)));
      shared.gain[begin + r] = load(call.b, gate_at(r), 1.0F);
    }
  }
  __device__ __forceinline__ void load_norms() const {
    float inverse = 1.0F;
    if (call.normalize) {
      float squares[kRows];
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        float k[Size];
        lane.get(k, keys[r]);
        squares[r] = 0.0F;
#pragma unroll
        for (int c = 0; c < Size; ++c) squares[r] += k[c] * k[c];
      }
      inverse = 1.0F / std::sqrt(warp_sums(squares) + 1e-6F);
    }
    shared.inverse_norm[begin + static_cast<int>(threadIdx.x) % 32 * kRows / 32] = inverse;
    __syncwarp();
  }

  // k^ of a row of the warp.
  __device__ __forceinline__ void key(float (&k)[Size], int r) const {
    lane.get(k, keys[r]);
    const float inverse = shared.inverse_norm[begin + r];
#pragma unroll
    for (int c = 0; c < Size; ++c) k[c] *= inverse;
  }
  __device__ __forceinline__ void step(float (&state)[Size], int r, const float (&k)[Size]) const {
    const float decay = shared.decay[begin + r], gain = shared.gain[begin + r];
#pragma unroll
    for (int c = 0; c < Size; ++c) state[c] = precondition_step(state[c], decay, gain, k[c]);
  }

  // What the rows of each warp add to the state, and their decay, in shared memory.
  __device__ __forceinline__ void sum_rows() const {
    float state[Size] = {}, decay = 1.0F;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (r >= count) break;
      float k[Size];
      key(k, r);
      step(state, r, k);
      decay *= shared.decay[begin + r];
    }
    lane.store_row(shared.sums + warp * call.d_k, state);
    if (threadIdx.x % 32 == 0) shared.decays[warp] = decay;
    __syncthreads();
  }

  // The state before the rows of this warp (all warps have been at sum_rows()), from the one before
  // the chunk.
  __device__ __forceinline__ void start(float (&state)[Size]) const {
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
    for (int channel = static_cast<int>(threadIdx.x); channel < call.d_k;
         channel += Cut<Size>::kThreads) {
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
__global__ void __launch_bounds__(Cut<Size>::kThreads) sum_chunks(PreconditionCall call) {
  const Chunk<Format, Vector, Size> chunk(call);
  chunk.sum_rows();
  chunk.put_sum(call.scan, chunk.shared.sums, false);
}

constexpr int kAhead = 16;    // chunks that a thread of scan_chunks() has at a time
constexpr int kSegments = 8;  // at most: of as many chunks each

// The states between the chunks of a sequence: a block takes a head, a column of threads a channel,
// its rows of threads consecutive segments of chunks. From the last chunk to the first where it is
// `reverse`. `initial` null: zero; `final` null: not wanted.
__global__ void __launch_bounds__(1024)
    scan_chunks(rankone::cuda::Rows rows, std::int64_t heads, int d_k, int width, ChunkScan scan,
                const float* initial, float* final, bool reverse) {
  const std::int64_t sequence = blockIdx.x / heads, head = blockIdx.x - sequence * heads;
  const int segment = static_cast<int>(threadIdx.x) / width;
  const int segments = static_cast<int>(blockDim.x) / width;
  const int channel = static_cast<int>(threadIdx.x) - segment * width;
  const bool any = channel < d_k;
  auto* sums = reinterpret_cast<float*>(rankone::cuda::shared_memory());  // [segments, width]
  float* decays = sums + segments * width;
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * d_k + channel;
  const std::int64_t first = rows.first_chunk(sequence);
  const std::int64_t count = rows.first_chunk(sequence + 1) - first;
  float state = any && initial != nullptr ? initial[at] : 0.0F;
  for (std::int64_t done = 0; done < count; done += segments * kAhead) {
    const std::int64_t mine = done + segment * kAhead;
    float sum[kAhead], decay[kAhead], total = 0.0F, through = 1.0F;
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const bool here = any && mine + i < count;
      const std::int64_t chunk = reverse ? first + count - 1 - mine - i : first + mine + i;
      sum[i] = here ? scan.states[(chunk * heads + head) * d_k + channel] : 0.0F;
      decay[i] = here ? scan.decays[chunk * heads + head] : 1.0F;
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      total = decay[i] * total + sum[i];
      through *= decay[i];
    }
    sums[segment * width + channel] = total;
    decays[segment * width + channel] = through;
    __syncthreads();
    float before = state;  // the state before the chunks of this thread
    for (int i = 0; i < segments; ++i) {
      if (i == segment) before = state;
      state = decays[i * width + channel] * state + sums[i * width + channel];
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (!any || mine + i >= count) break;
      const std::int64_t chunk = reverse ? first + count - 1 - mine - i : first + mine + i;
      scan.states[(chunk * heads + head) * d_k + channel] = before;
      before = decay[i] * before + sum[i];
    }
    __syncthreads();
  }
  if (any && segment == 0 && final != nullptr) final[at] = state;
}

template <class Format, int Vector, int Size>
__global__ void __launch_bounds__(Cut<Size>::kThreads) emit_rows(PreconditionCall call) {
  const Chunk<Format, Vector, Size> chunk(call);
  float state[Size], parameter[Size];
  chunk.lane.load_row(state, call.scan.states + chunk.state_at());
  chunk.load_parameter(parameter);
  chunk.sum_rows();
  chunk.start(state);
  auto* out = static_cast<Format*>(call.out.data);
#pragma unroll
  for (int r = 0; r < Cut<Size>::kRows; ++r) {
    if (r >= chunk.count) break;
    float k[Size], target[Size];
    chunk.target(target, r);
    chunk.key(k, r);
    chunk.step(state, r, k);
#pragma unroll
    for (int c = 0; c < Size; ++c) {
      target[c] *= chunk.factor(state[c], parameter[c]).factor.value;
    }
    chunk.lane.store_row(out + chunk.key_at(r), target);
  }
}

// ---- The way back ------------------------------------------------------------------------------

// With lambda = dL/dA: what each chunk adds to the lambda before it.
template <class Format, int Vector, int Size>
__global__ void __launch_bounds__(Cut<Size>::kThreads)
    sum_chunks_back(PreconditionCall call, PreconditionBack back) {
  constexpr int kRows = Cut<Size>::kRows;
  const Chunk<Format, Vector, Size> chunk(call);
  typename Lane<Format, Vector, Size>::Row d_outs[kRows];
  chunk.read_rows(d_outs, back.d_out);
  float state[Size], parameter[Size], sum[Size] = {}, decay = 1.0F;
  chunk.lane.load_row(state, call.scan.states + chunk.state_at());
  chunk.load_parameter(parameter);
  chunk.sum_rows();
  chunk.start(state);
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (r >= chunk.count) break;
    float k[Size], target[Size], d_out[Size];
    chunk.target(target, r);
    chunk.key(k, r);
    chunk.lane.get(d_out, d_outs[r]);
    chunk.step(state, r, k);
    decay *= chunk.shared.decay[chunk.begin + r];
#pragma unroll
    for (int c = 0; c < Size; ++c) {
      const float through = d_out[c] * target[c];
      sum[c] += decay * (through * chunk.factor(state[c], parameter[c]).d_state.value);
    }
  }
  chunk.lane.store_row(chunk.shared.reverse + chunk.warp * call.d_k, sum);
  __syncthreads();
  chunk.put_sum(back.scan, chunk.shared.reverse, true);
}

// lambda behind the rows of this warp, from lambda behind the chunk.
template <class Format, int Vector, int Size>
__device__ void start_back(const Chunk<Format, Vector, Size>& chunk, float (&lambda)[Size]) {
  for (int after = Cut<Size>::kWarps - 1; after > chunk.warp; --after) {
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
__global__ void __launch_bounds__(Cut<Size>::kThreads)
    emit_rows_back(PreconditionCall call, PreconditionBack back) {
  constexpr int kWarps = Cut<Size>::kWarps, kRows = Cut<Size>::kRows;
  const Chunk<Format, Vector, Size> chunk(call);
  const Shared& shared = chunk.shared;
  typename Lane<Format, Vector, Size>::Row d_outs[kRows];
  chunk.read_rows(d_outs, back.d_out);
  float state[Size], parameter[Size], lambda[Size], d_parameter[Size] = {}, sum[Size] = {};
  float decay = 1.0F;
  chunk.lane.load_row(state, call.scan.states + chunk.state_at());
  chunk.lane.load_row(lambda, back.scan.states + chunk.state_at());
  chunk.load_parameter(parameter);
  chunk.sum_rows();
  chunk.start(state);

  // Forward: dtarget, and what the reverse steps need: A_{t-1} and what each row adds to lambda.
  float* history = shared.history + chunk.begin * call.d_k;
  float* sources = shared.sources + chunk.begin * call.d_k;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (r >= chunk.count) break;
    float k[Size], target[Size], d_out[Size], source[Size];
    chunk.target(target, r);
    chunk.key(k, r);
    chunk.lane.get(d_out, d_outs[r]);
    chunk.lane.store_row(history + r * call.d_k, state);
    chunk.step(state, r, k);
    decay *= shared.decay[chunk.begin + r];
#pragma unroll
    for (int c = 0; c < Size; ++c) {
      const auto at = chunk.factor(state[c], parameter[c]);
      const float through = d_out[c] * target[c];
      d_out[c] *= at.factor.value;
      d_parameter[c] += through * at.d_parameter.value;
      source[c] = through * at.d_state.value;
      sum[c] += decay * source[c];
    }
    chunk.lane.store_row(sources + r * call.d_k, source);
    if (back.d_target.data != nullptr) {
      chunk.lane.store_row(static_cast<Format*>(back.d_target.data) + chunk.key_at(r), d_out);
    }
  }
  chunk.lane.store_row(shared.reverse + chunk.warp * call.d_k, sum);
  __syncthreads();
  start_back(chunk, lambda);

  float d_gain[kRows], d_decay[kRows], along[kRows];
#pragma unroll
  for (int r = kRows - 1; r >= 0; --r) {
    d_gain[r] = d_decay[r] = along[r] = 0.0F;
    if (r >= chunk.count) continue;
    const float gain = shared.gain[chunk.begin + r];
    float k[Size], before[Size], source[Size], d_key[Size];
    chunk.key(k, r);
    chunk.lane.load_row(before, history + r * call.d_k);
    chunk.lane.load_row(source, sources + r * call.d_k);
#pragma unroll
    for (int c = 0; c < Size; ++c) {
      lambda[c] += source[c];
      d_key[c] = 2.0F * gain * k[c] * lambda[c];
      d_gain[r] += k[c] * k[c] * lambda[c];
      along[r] += k[c] * d_key[c];
      lambda[c] *= shared.decay[chunk.begin + r];
      d_decay[r] += lambda[c] * before[c];
    }
    chunk.lane.store_row(history + r * call.d_k, d_key);  // in the place of A_{t-1}
  }
  const int own = static_cast<int>(threadIdx.x) % 32 * kRows / 32;
  const bool first = static_cast<int>(threadIdx.x) % (32 / kRows) == 0 && own < chunk.count;
  const float of_gain = warp_sums(d_gain), of_decay = warp_sums(d_decay);
  const float of_along = warp_sums(along);
  if (first) {
    store(back.d_b, chunk.gate_at(own), of_gain);
    store(back.d_g, chunk.gate_at(own), of_decay);
  }
  if (back.d_k.data != nullptr) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float share = __shfl_sync(0xffffffffU, of_along, r * (32 / kRows));
      if (r >= chunk.count) continue;
      float d_key[Size];
      chunk.lane.load_row(d_key, history + r * call.d_k);
      if (call.normalize) {
        const float inverse = shared.inverse_norm[chunk.begin + r];
        float k[Size];
        chunk.key(k, r);
#pragma unroll
        for (int c = 0; c < Size; ++c) d_key[c] = inverse * (d_key[c] - k[c] * share);
      }
      chunk.lane.store_row(static_cast<Format*>(back.d_k.data) + chunk.key_at(r), d_key);
    }
  }

  if (back.partials == nullptr) return;
  __syncthreads();
  chunk.lane.store_row(shared.sums + chunk.warp * call.d_k, d_parameter);
  __syncthreads();
  for (int channel = static_cast<int>(threadIdx.x); channel < call.d_k;
       channel += Cut<Size>::kThreads) {
    float total = 0.0F;
    for (int warp = 0; warp < kWarps; ++warp) total += shared.sums[warp * call.d_k + channel];
    back.partials[chunk.state_at() + channel] = total;
  }
}

void scan(const PreconditionCall& call, const ChunkScan& of, const float* initial, float* final,
          bool reverse, void* stream) {
  const int width = (call.d_k + 31) / 32 * 32;
  const int segments = 1024 / width < kSegments ? 1024 / width : kSegments;
  rankone::cuda::launch(scan_chunks, call.rows.sequences * call.heads, segments * width,
                        static_cast<std::size_t>(2 * segments * width) * sizeof(float), stream,
                        call.rows, call.heads, call.d_k, width, of, initial, final, reverse);
}

template <class Format, int Vector, int Size>
void start(const PreconditionCall& call, void* stream) {
  using Of = Cut<Size>;
  const std::int64_t blocks = call.rows.chunks * call.heads;
  const std::size_t shared = Shared::bytes(call.d_k, Of::kWarps, 0);
  rankone::cuda::launch(sum_chunks<Format, Vector, Size>, blocks, Of::kThreads, shared, stream,
                        call);
  scan(call, call.scan, call.initial, call.final, false, stream);
  if (call.out.data == nullptr) return;
  rankone::cuda::launch(emit_rows<Format, Vector, Size>, blocks, Of::kThreads, shared, stream,
                        call);
}

template <class Format, int Vector, int Size>
void start_vjp(const PreconditionCall& call, const PreconditionBack& back, void* stream) {
  using Of = Cut<Size>;
  const std::int64_t blocks = call.rows.chunks * call.heads;
  const std::size_t shared = Shared::bytes(call.d_k, Of::kWarps, 0);
  rankone::cuda::launch(sum_chunks<Format, Vector, Size>, blocks, Of::kThreads, shared, stream,
                        call);
  scan(call, call.scan, call.initial, nullptr, false, stream);
  rankone::cuda::launch(sum_chunks_back<Format, Vector, Size>, blocks, Of::kThreads, shared, stream,
                        call, back);
  scan(call, back.scan, back.d_final, back.d_initial, true, stream);
  rankone::cuda::launch(emit_rows_back<Format, Vector, Size>, blocks, Of::kThreads,
                        Shared::bytes(call.d_k, Of::kWarps, 2), stream, call, back);
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
