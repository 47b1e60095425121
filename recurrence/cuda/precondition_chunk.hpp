#pragma once

// A chunk of rows of the preconditioner's scan, as a block of threads holds it: part of
// precondition.cu.

#include "recurrence/axes/preconditioner.hpp"
#include "recurrence/cuda/array.hpp"
#include "recurrence/cuda/fast_float.hpp"
#include "recurrence/cuda/precondition.hpp"

namespace rankone::recurrence::cuda::precondition_chunk {

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

}  // namespace rankone::recurrence::cuda::precondition_chunk
