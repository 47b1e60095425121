#pragma once

// A chunk of rows of the preconditioner's scan, as a block of threads holds it: part of
// precondition.cu and precondition_back.cu.

#include "recurrence/axes/preconditioner.hpp"
#include "recurrence/cuda/array.hpp"
#include "recurrence/cuda/precondition_factor.hpp"
#include "recurrence/cuda/precondition_scan.hpp"

namespace rankone::recurrence::cuda::precondition_chunk {

// How channels lie in the lanes of a warp: Vector of them from (part * 32 + lane) * Vector on, for
// each part, Size in all. Full: every lane has all of them. A block has a chunk, its warps an equal
// share of its rows each, fewer where the unrolled code of a row is long.
template <class F, int V, int S, bool Whole>
struct Layout {
  using Format = F;
  static constexpr int kVector = V, kSize = S;
  static constexpr bool kFull = Whole;
  static constexpr int kChunk = kPreconditionChunk, kWarps = S == 8 ? 8 : 4;
  static constexpr int kRows = kChunk / kWarps, kThreads = kWarps * 32;  // rows of a warp
  // Blocks on a multiprocessor at least: of the way there, and back with what it keeps.
  static constexpr int kBlocks = (sizeof(F) * S <= 8 ? 32 : 16) / kWarps;
  static constexpr int kBlocksBack = S == 4 ? 4 : 1;
  // d_k, known at compile time where it can be.
  __device__ static int width(int d_k) { return Whole ? 32 * S : d_k; }
};

// Shared memory of a block: its keys as they lie in memory, gates of its rows, and what its warps
// tell each other.
template <class L>
struct Shared {
  using Format = typename L::Format;
  Format* keys;           // [kChunk, K]
  float* decay;           // [kChunk] exp(g)
  float* gain;            // [kChunk] b / |k|^2: of the raw key
  float* square_inverse;  // [kChunk] 1 / |k|^2, 1 where keys are not normalised
  float* decays;          // [warps], of the rows of a warp together
  float* window;          // [2, kScanWindow]: of chunks, on the way there and back
  float* sums;            // [warps, K]: what a warp adds, then the state before it
  float* reverse;         // [warps, K]: the same of dL/dA
  float* history;         // [kChunk, K]: A before each row

  static std::size_t bytes(int d_k, bool back) {
    const std::size_t rows = back ? 2 * L::kWarps + L::kChunk : L::kWarps;
    const auto width = static_cast<std::size_t>(d_k);
    return L::kChunk * width * sizeof(Format) +
           (3 * L::kChunk + 8 + 2 * kScanWindow + rows * width) * sizeof(float);
  }
  __device__ explicit Shared(int d_k) {
    keys = reinterpret_cast<Format*>(rankone::cuda::shared_memory());
    decay = reinterpret_cast<float*>(keys + L::kChunk * d_k);
    gain = decay + L::kChunk;
    square_inverse = gain + L::kChunk;
    decays = square_inverse + L::kChunk;
    window = decays + 8;
    sums = window + 2 * kScanWindow;
    reverse = sums + L::kWarps * d_k;
    history = reverse + L::kWarps * d_k;
  }
};

// The channels of a lane.
template <class L>
struct Lane {
  using Format = typename L::Format;
  static constexpr int Vector = L::kVector, Size = L::kSize;
  int d_k;

  struct Row {  // as it lies in memory
    Words<Format, Vector> words[Size / Vector];
  };

  __device__ int channel(int part) const {
    return (part * 32 + static_cast<int>(threadIdx.x) % 32) * Vector;
  }
  __device__ bool has(int channel) const { return L::kFull || channel < d_k; }
  template <class Body>
  __device__ __forceinline__ void parts(Body&& body) const {
#pragma unroll
    for (int part = 0; part < Size / Vector; ++part) {
      const int at = channel(part);
      if (has(at)) body(part * Vector, at);
    }
  }
  // Of an input: zero where the lane has no channel. (It reads channel 0 instead: no branches.)
  __device__ __forceinline__ void read(Row& to, const Format* row) const {
#pragma unroll
    for (int part = 0; part < Size / Vector; ++part) {
      const int at = channel(part);
      to.words[part].read(row + (has(at) ? at : 0));
      if (!has(at)) to.words[part].clear();
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
  // Zero where the lane has no channel.
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

// What a block works on. A row that the chunk lacks is one of zeros that adds and decays nothing.
template <class L>
struct Chunk {
  using Format = typename L::Format;
  static constexpr int Vector = L::kVector, Size = L::kSize;
  static constexpr int kWarps = L::kWarps, kRows = L::kRows;
  static constexpr int kGroup = 4;  // rows whose gates are read together
  using Row = typename Lane<L>::Row;

  const PreconditionCall& call;
  int d_k;
  Shared<L> shared;
  Lane<L> lane;
  int number, heads, head;
  ChunkPlace place;
  int warp, begin, count;  // rows of the warp, within the chunk

  // Of the block with this number, heads innermost. The keys are on their way when it returns.
  __device__ __forceinline__ Chunk(const PreconditionCall& of, unsigned block)
      : call(of),
        d_k(L::width(of.d_k)),
        shared(d_k),
        lane{d_k},
        number(static_cast<int>(block / static_cast<unsigned>(of.heads))),
        heads(static_cast<int>(of.heads)),
        head(
            static_cast<int>(block - static_cast<unsigned>(number) * static_cast<unsigned>(heads))),
        place(of.rows, L::kChunk, number) {
    warp = static_cast<int>(threadIdx.x) / 32;
    begin = warp * kRows;
    count = place.count - begin < kRows ? place.count - begin : kRows;
    copy_keys();
  }

  __device__ std::int64_t gate_at(int r) const { return (place.first + begin + r) * heads + head; }
  // The place of the first row of the warp in a tensor like k, and elements from row to row.
  __device__ std::int64_t first_at() const { return gate_at(0) * d_k; }
  __device__ std::int64_t stride() const { return static_cast<std::int64_t>(heads) * d_k; }
  __device__ const Format* key_row(int r) const { return shared.keys + (begin + r) * d_k; }

  __device__ __forceinline__ void copy_keys() const {
    const auto* from = static_cast<const Format*>(call.k.data) + first_at();
    Format* const to = shared.keys + begin * d_k;
    const int own = static_cast<int>(threadIdx.x) % 32;
    if constexpr (Vector == 1) {
      for (int i = own; i < kRows * d_k; i += 32) {
        const int r = i / d_k;
        to[i] = r < count ? from[r * stride() + (i - r * d_k)] : Format{};
      }
    } else {
      constexpr int kWord = 16 / static_cast<int>(sizeof(Format));  // elements
      const int words = L::kFull ? 32 * Size / kWord : d_k / kWord;
#pragma unroll 4
      for (int i = own; i < kRows * words; i += 32) {
        const int r = i / words, at = (i - r * words) * kWord;
        rankone::cuda::copy_16(to + r * d_k + at, from + r * stride() + at, r < count);
      }
      rankone::cuda::copy_commit();
    }
  }
  __device__ __forceinline__ static void await_keys() {
    if constexpr (Vector != 1) rankone::cuda::copy_wait<0>();
    __syncwarp();
  }

  // Rows of a tensor like k; zero where there are no more.
  __device__ __forceinline__ void read_group(Row (&to)[kGroup], const Source& from,
                                             int first) const {
    const auto* rows = static_cast<const Format*>(from.data) + first_at();
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      to[i] = Row{};
      if (first + i < count) lane.read(to[i], rows + (first + i) * stride());
    }
  }

  // Gates and norms of the rows, in shared memory. The warp may look at its keys afterwards.
  __device__ __forceinline__ void load_gates() const {
    const int r = static_cast<int>(threadIdx.x) % 32;
    float decay = 1.0F, gain = 0.0F, inverse = 1.0F;
    if (r < count && r < kRows) {
      decay = std::exp(load(call.g, gate_at(r)));
      gain = load(call.b, gate_at(r), 1.0F);
    }
    await_keys();
    if (call.normalize) {
      float squares[kRows];
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        float k[Size];
        lane.load_row(k, key_row(i));
        squares[i] = 0.0F;
#pragma unroll
        for (int c = 0; c < Size; ++c) squares[i] += k[c] * k[c];
      }
      inverse = 1.0F / (warp_sums(squares) + 1e-6F);
      if constexpr (kRows < 32) {
        inverse = __shfl_sync(0xffffffffU, inverse, r * (32 / kRows) % 32);
      }
    }
    if (r < kRows) {
      shared.decay[begin + r] = decay;
      shared.gain[begin + r] = gain * inverse;
      shared.square_inverse[begin + r] = inverse;
    }
    __syncwarp();
  }

  // Four gates of rows of the warp.
  __device__ __forceinline__ void load_group(float (&to)[kGroup], const float* from, int r) const {
    load(to, from + begin + r);
  }

  __device__ __forceinline__ void load_gate(float (&to)[kRows], const float* from) const {
#pragma unroll
    for (int first = 0; first < kRows; first += kGroup) {
      float group[kGroup];
      load_group(group, from, first);
#pragma unroll
      for (int i = 0; i < kGroup; ++i) to[first + i] = group[i];
    }
  }

  // What the rows of each warp add to the state, and their decay, in shared memory.
  __device__ __forceinline__ void sum_rows() const {
    float state[Size] = {}, through = 1.0F;
#pragma unroll 2
    for (int first = 0; first < kRows; first += kGroup) {
      float decays[kGroup], gains[kGroup];
      load_group(decays, shared.decay, first);
      load_group(gains, shared.gain, first);
#pragma unroll
      for (int i = 0; i < kGroup; ++i) {
        float k[Size];
        lane.load_row(k, key_row(first + i));
#pragma unroll
        for (int c = 0; c < Size; ++c) {
          state[c] = precondition_step(state[c], decays[i], gains[i], k[c]);
        }
        through *= decays[i];
      }
    }
    lane.store_row(shared.sums + warp * d_k, state);
    if (threadIdx.x % 32 == 0) shared.decays[warp] = through;
    __syncthreads();
  }

  // What the block adds to a channel, from `sums` of its warps in the direction of the scan: with
  // what is left of `state`.
  __device__ __forceinline__ float fold(const float* sums, int channel, bool reverse,
                                        float state) const {
#pragma unroll
    for (int i = 0; i < kWarps; ++i) {
      const int from = reverse ? kWarps - 1 - i : i;
      state = shared.decays[from] * state + sums[from * d_k + channel];
    }
    return state;
  }
  // Puts the state before each warp in the place of what it adds.
  __device__ __forceinline__ void spread(float* sums, int channel, bool reverse,
                                         float state) const {
#pragma unroll
    for (int i = 0; i < kWarps; ++i) {
      const int from = reverse ? kWarps - 1 - i : i;
      float& slot = sums[from * d_k + channel];
      const float sum = slot;
      slot = state;
      state = shared.decays[from] * state + sum;
    }
  }
  __device__ std::int64_t sequence_state(int channel) const {
    return (static_cast<std::int64_t>(place.sequence) * heads + head) * d_k + channel;
  }
  __device__ std::int64_t chunk_state(int channel) const {
    return (static_cast<std::int64_t>(number) * heads + head) * d_k + channel;
  }

  __device__ LookBack look_back(const ChunkScan& scan, bool reverse) const {
    return {scan, place, reverse, d_k, heads, head};
  }
  __device__ float* window(bool reverse) const {
    return shared.window + (reverse ? kScanWindow : 0);
  }

  // Publishes what the block adds, waits for what comes before it and leaves the state before each
  // warp in `sums`. `initial` null: zero; `final` and `states` (before each chunk) null: not
  // wanted. Where rows are not `wanted`, no more is done than others and those two need.
  __device__ __forceinline__ void join(const ChunkScan& scan, float* sums, bool reverse,
                                       const float* initial, float* final, float* states,
                                       bool wanted) const {
    const LookBack back = look_back(scan, reverse);
    const float* decays = window(reverse);
    const bool ends = back.index == place.chunks - 1;
#pragma unroll 1
    for (int channel = static_cast<int>(threadIdx.x); channel < d_k; channel += L::kThreads) {
      const std::int64_t at = sequence_state(channel);
      float state = back.starts() && initial != nullptr ? initial[at] : 0.0F;
      float sum = fold(sums, channel, reverse, state);
      back.publish_sum(channel, sum);
      if (!wanted && states == nullptr && !back.ends_window() && !(ends && final != nullptr)) {
        continue;
      }
      if (!back.starts()) {
        state = back.before(channel, decays);
        sum += decays[back.index % kScanWindow] * state;
      }
      back.publish_state(channel, sum);
      if (ends && final != nullptr) final[at] = sum;
      if (states != nullptr) states[chunk_state(channel)] = state;
      if (wanted) spread(sums, channel, reverse, state);
    }
    __syncthreads();
  }

  // The factor of the kind, for the channels of the lane.
  template <PreconditionerKind Kind>
  __device__ __forceinline__ auto factor() const {
    if constexpr (Kind == PreconditionerKind::atk) {
      return AtkFactor(load(call.parameter, head), call);
    } else {
      AtqFactor<Size> result;
#pragma unroll
      for (float& ridge : result.ridge) ridge = 1.0F;
      lane.parts([&](int i, int at) {
        float some[Vector];
        load(some, call.parameter, static_cast<std::int64_t>(head) * d_k + at);
#pragma unroll
        for (int j = 0; j < Vector; ++j) result.ridge[i + j] = some[j];
      });
      return result;
    }
  }
};

// ---- Host side ---------------------------------------------------------------------------------

// Calls run.template operator()<Layout>() with the one that fits the call.
template <class Run>
void choose(const PreconditionCall& call, bool words, Run&& run) {
  if (call.kind == PreconditionerKind::atq) words = words && in_words(call.d_k, call.parameter);
  const auto sized = [&](auto format) {
    using Format = decltype(format);
    if constexpr (sizeof(Format) == 2) {  // float32 is not made to be fast
      if (words && call.d_k == 128) return run.template operator()<Layout<Format, 4, 4, true>>();
    }
    if (words && call.d_k <= 128) return run.template operator()<Layout<Format, 4, 4, false>>();
    if (words) return run.template operator()<Layout<Format, 4, 8, false>>();
    return run.template operator()<Layout<Format, 1, 8, false>>();
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

}  // namespace rankone::recurrence::cuda::precondition_chunk
