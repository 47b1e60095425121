// Diagonal Longhorn. With N = |k|^2 and D_j = beta_j / (1 + beta_j N), for each channel d and
// column j on its own
//
//     S_dj <- S_dj + D_j k_d (v_j - k_d S_dj);     o_j = sum_d S_dj q_d
//
// A lane has a column, a warp some channels of 32 columns. Forward a block walks through a
// sequence, or through a segment of it, whose start comes from what the segments before it do to
// the state: a scale and a sum for each element. The way back walks twice, for S and for dL/dS,
// keeps both between chunks of 64 rows, and then takes all chunks at once, where a block has all
// value heads of a key head and so sums dq and dk in one order.

#include "recurrence/cuda/longhorn.hpp"

#include "recurrence/cuda/array.hpp"

namespace rankone::recurrence::cuda {
namespace {

constexpr int kWarps = 8;  // of a walk
constexpr int kThreads = kWarps * 32;
constexpr int kTile = 16;  // rows of a walk that are in shared memory at once

struct Places {
  const LonghornCall& call;

  __device__ std::int64_t key_head(std::int64_t head) const {
    return head / (call.value_heads / call.heads);
  }
  // of a key head or a value head
  __device__ std::int64_t key_at(std::int64_t row, std::int64_t key_head) const {
    return (row * call.heads + key_head) * call.d_k;
  }
  __device__ std::int64_t value_at(std::int64_t row, std::int64_t head) const {
    return (row * call.value_heads + head) * call.d_v;
  }
  // of a sequence or a chunk
  __device__ std::int64_t state_at(std::int64_t number, std::int64_t head) const {
    return (number * call.value_heads + head) * call.d_k * call.d_v;
  }
};

// Rows of one block of 32 columns in shared memory; q and k of Width channels.
template <int Width>
struct Tile {
  float *q, *k;            // [rows, width]
  float *D, *value, *d_o;  // [rows, 32]
  float* norm;             // [rows]

  __host__ __device__ static constexpr int floats(int rows) {
    return rows * (2 * Width + 3 * 32 + 1);
  }
  __device__ Tile(float* memory, int rows) {
    q = memory;
    k = q + rows * Width;
    D = k + rows * Width;
    value = D + rows * 32;
    d_o = value + rows * 32;
    norm = d_o + rows * 32;
  }

  // Channels from `channel` on; zero behind the last.
  __device__ void load_keys(const LonghornCall& call, std::int64_t row, int count,
                            std::int64_t key_head, int channel) const {
    const Places places{call};
    for (int i = static_cast<int>(threadIdx.x); i < count * Width;
         i += static_cast<int>(blockDim.x)) {
      const int t = i / Width, d = channel + i % Width;
      const bool any = d < call.d_k;
      const std::int64_t at = places.key_at(row + t, key_head) + d;
      q[i] = any ? load(call.q, at) : 0.0F;
      k[i] = any ? load(call.k, at) : 0.0F;
    }
  }
  // |k|^2 of whole rows, a warp for each.
  __device__ void load_norms(const LonghornCall& call, std::int64_t row, int count,
                             std::int64_t key_head) const {
    const Places places{call};
    const int lane = static_cast<int>(threadIdx.x) % 32;
    for (int t = static_cast<int>(threadIdx.x) / 32; t < count;
         t += static_cast<int>(blockDim.x) / 32) {
      float sum = 0.0F;
      for (int d = lane; d < call.d_k; d += 32) {
        const float x = load(call.k, places.key_at(row + t, key_head) + d);
        sum += x * x;
      }
      sum = warp_sum(sum);
      if (lane == 0) norm[t] = sum;
    }
  }
  // The same from keys of all channels in shared memory.
  __device__ void take_norms(int count) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    for (int t = static_cast<int>(threadIdx.x) / 32; t < count;
         t += static_cast<int>(blockDim.x) / 32) {
      float sum = 0.0F;
#pragma unroll
      for (int d = 0; d < Width; d += 32) {
        const float x = k[t * Width + d + lane];
        sum += x * x;
      }
      sum = warp_sum(sum);
      if (lane == 0) norm[t] = sum;
    }
  }
  // Channels of a warp, a multiple of four from a multiple of four on.
  template <int Size>
  __device__ __forceinline__ void get(float (&to)[Size], const float* from) const {
#pragma unroll
    for (int i = 0; i < Size; i += 4) {
      float some[4];
      load(some, from + i);
#pragma unroll
      for (int j = 0; j < 4; ++j) to[i + j] = some[j];
    }
  }
  // `norms` are those of the rows.
  __device__ void load_values(const LonghornCall& call, const Source& cotangent, std::int64_t row,
                              int count, std::int64_t head, int column, const float* norms) const {
    const Places places{call};
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const bool any = column + lane < call.d_v;
    for (int t = static_cast<int>(threadIdx.x) / 32; t < count;
         t += static_cast<int>(blockDim.x) / 32) {
      const std::int64_t at = places.value_at(row + t, head) + column + lane;
      const float beta = any ? load(call.beta, at) : 0.0F;
      D[t * 32 + lane] = beta / (1.0F + beta * norms[t]);
      value[t * 32 + lane] = any ? load(call.v, at) : 0.0F;
      d_o[t * 32 + lane] = any ? load(cotangent, at) : 0.0F;
    }
  }
};

// The state of a thread: Size channels from `channel` on, of column `column`.
template <int Size>
struct Column {
  int channel, column;
  bool any;

  __device__ void read(const LonghornCall& call, float (&to)[Size], const float* from) const {
#pragma unroll
    for (int i = 0; i < Size; ++i) {
      const bool here = from != nullptr && any && channel + i < call.d_k;
      to[i] = here ? from[static_cast<std::int64_t>(channel + i) * call.d_v + column] : 0.0F;
    }
  }
  __device__ void write(const LonghornCall& call, float* to, const float (&from)[Size]) const {
    if (to == nullptr || !any) return;
#pragma unroll
    for (int i = 0; i < Size; ++i) {
      if (channel + i < call.d_k) {
        to[static_cast<std::int64_t>(channel + i) * call.d_v + column] = from[i];
      }
    }
  }
};

__device__ __forceinline__ float step(float state, float D, float k, float value) {
  return state + D * k * (value - k * state);
}

// A sequence cut into segments of whole chunks, by its own length alone.
struct Segment {
  std::int64_t sequence, head, slot;
  std::int64_t begin, count;  // rows
  std::int64_t first_chunk;
  int number, of;
  bool first, last;  // in the direction of the walk

  __device__ Segment(const LonghornCall& call, std::int64_t task, bool reverse) {
    const std::int64_t most = call.segments.most;
    const std::int64_t at = task / most;
    number = static_cast<int>(task - at * most);
    sequence = at / call.value_heads;
    head = at - sequence * call.value_heads;
    begin = call.rows.begin(sequence);
    const std::int64_t length = call.rows.end(sequence) - begin;
    constexpr std::int64_t kRows = std::int64_t{kLonghornSegment} * kLonghornChunk;
    of = length > 0 ? static_cast<int>((length + kRows - 1) / kRows) : 1;
    first_chunk = call.rows.first_chunk(sequence);
    slot = first_chunk / kLonghornSegment + sequence + number;
    begin += number * kRows;
    count = length - number * kRows < kRows ? length - number * kRows : kRows;
    first_chunk += std::int64_t{number} * kLonghornSegment;
    first = number == (reverse ? of - 1 : 0);
    last = number == (reverse ? 0 : of - 1);
  }
};

// A block walks through a segment of one head with 32 columns: forward over S, or, where Reverse,
// from the end over dL/dS, which knows no output. Map: only what the segment does to the state.
template <int Size, bool Reverse, bool Map>
__global__ void __launch_bounds__(kThreads) walk(LonghornCall call, LonghornBack back) {
  constexpr int kWidth = kWarps * Size;
  const Places places{call};
  const int columns = (call.d_v + 31) / 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t task = blockIdx.x / columns;
  const Segment segment(call, task, Reverse);
  if (segment.number >= segment.of || (Map && (segment.of == 1 || segment.last))) return;
  const std::int64_t head = segment.head, key_head = places.key_head(head);
  const int first_column = static_cast<int>(blockIdx.x - task * columns) * 32;
  const Column<Size> own{warp * Size, first_column + lane, first_column + lane < call.d_v};
  auto* memory = reinterpret_cast<float*>(rankone::cuda::shared_memory());
  const Tile<kWidth> tile(memory, kTile);
  float* partial = memory + Tile<kWidth>::floats(kTile);  // [kTile, kWarps, 32]

  const std::int64_t begin = segment.begin, count = segment.count;
  const std::int64_t end_state = places.state_at(segment.sequence, head);
  const std::int64_t slot_state = places.state_at(segment.slot, head);
  const float* start = Reverse ? back.d_final : call.initial;
  if (start != nullptr) start += end_state;
  if (segment.of > 1) start = Map ? nullptr : call.segments.adds + slot_state;
  float* kept = Map ? nullptr : Reverse ? back.cotangents : call.states;
  float state[Size], scale[Map ? Size : 1];
  own.read(call, state, start);
#pragma unroll
  for (float& one : scale) one = 1.0F;

  const std::int64_t tiles = (count + kTile - 1) / kTile;
  constexpr int kTilesOfChunk = kLonghornChunk / kTile;
  for (std::int64_t done = 0; done < tiles; ++done) {
    const std::int64_t number = Reverse ? tiles - 1 - done : done;
    const std::int64_t row = begin + number * kTile;
    const int rows =
        count - number * kTile < kTile ? static_cast<int>(count - number * kTile) : kTile;
    const bool border = Reverse ? number % kTilesOfChunk == kTilesOfChunk - 1 || done == 0
                                : number % kTilesOfChunk == 0;
    if (border && kept != nullptr) {
      const std::int64_t chunk = segment.first_chunk + number / kTilesOfChunk;
      own.write(call, kept + places.state_at(chunk, head), state);
    }
    __syncthreads();
    tile.load_keys(call, row, rows, key_head, 0);
    __syncthreads();
    tile.take_norms(rows);
    __syncthreads();
    tile.load_values(call, Reverse ? back.d_o : Source{}, row, rows, head, first_column, tile.norm);
    __syncthreads();
    for (int i = 0; i < rows; ++i) {
      const int t = Reverse ? rows - 1 - i : i;
      const float D = tile.D[t * 32 + lane];
      const float value = Reverse ? tile.d_o[t * 32 + lane] : tile.value[t * 32 + lane];
      float k[Size], q[Size], read = 0.0F;
      tile.get(k, tile.k + t * kWidth + own.channel);
      if (Reverse || !Map) tile.get(q, tile.q + t * kWidth + own.channel);
#pragma unroll
      for (int c = 0; c < Size; ++c) {
        const float part = D * k[c];
        if (Reverse) {
          const float cotangent = state[c] + q[c] * value;
          state[c] = cotangent - part * (k[c] * cotangent);
        } else {
          state[c] += part * (value - k[c] * state[c]);
          if (!Map) read += state[c] * q[c];
        }
        if (Map) scale[c] -= part * (k[c] * scale[c]);
      }
      if (!Reverse && !Map) partial[(t * kWarps + warp) * 32 + lane] = read;
    }
    if (Reverse || Map || call.o.data == nullptr) continue;
    __syncthreads();
    for (int t = warp; t < rows; t += kWarps) {
      float sum = 0.0F;
      for (int i = 0; i < kWarps; ++i) sum += partial[(t * kWarps + i) * 32 + lane];
      if (own.any) store(call.o, places.value_at(row + t, head) + own.column, sum);
    }
  }
  if constexpr (Map) {
    own.write(call, call.segments.scales + slot_state, scale);
    own.write(call, call.segments.adds + slot_state, state);
  } else {
    float* end = Reverse ? back.d_initial : call.final;
    if (segment.last) own.write(call, end != nullptr ? end + end_state : nullptr, state);
  }
}

// The state before each segment, in the place of what it adds: a thread for each element.
template <bool Reverse>
__global__ void __launch_bounds__(kThreads)
    start_segments(LonghornCall call, const float* initial, int parts) {
  const std::int64_t task = blockIdx.x / static_cast<unsigned>(parts);
  const Segment of(call, task * call.segments.most, Reverse);
  if (of.of == 1) return;
  const std::int64_t size = static_cast<std::int64_t>(call.d_k) * call.d_v;
  const std::int64_t element =
      (blockIdx.x - task * parts) * kThreads + static_cast<int>(threadIdx.x);
  if (element >= size) return;
  const Places places{call};
  float state =
      initial != nullptr ? initial[places.state_at(of.sequence, of.head) + element] : 0.0F;
  const std::int64_t stride = call.value_heads * size;
  std::int64_t at = places.state_at(of.slot + (Reverse ? of.of - 1 : 0), of.head) + element;
  for (int i = 0; i < of.of; ++i) {
    const bool more = i + 1 < of.of;
    const float scale = more ? call.segments.scales[at] : 0.0F;
    const float add = more ? call.segments.adds[at] : 0.0F;
    call.segments.adds[at] = state;
    state = scale * state + add;
    at += Reverse ? -stride : stride;
  }
}

// ---- The way back through a chunk --------------------------------------------------------------

constexpr int kBackWarps = 4;
constexpr int kBackThreads = kBackWarps * 32;
constexpr int kSize = 8;                   // channels of a warp
constexpr int kBand = kBackWarps * kSize;  // channels of a block at a time
constexpr int kSteps = 8;                  // rows between two kept states, and of those kept
constexpr int kKept = kLonghornChunk / kSteps;
constexpr int kSlot = kSize * kBackThreads;  // floats of one state of the block

constexpr int kBackFloats = Tile<kBand>::floats(kSteps) + (kKept + kSteps) * kSlot +
                            2 * kSteps * kBackThreads + 2 * kLonghornChunk * 32 +
                            2 * kLonghornChunk;

struct BackShared {
  float* tile;
  float *kept, *history;   // [kKept], [kSteps] states
  float *part_v, *part_D;  // [kSteps, kBackWarps, 32]
  float *sum_v, *sum_D;    // [64, 32]
  float *norms, *d_norms;  // [64]

  __device__ BackShared() {
    tile = reinterpret_cast<float*>(rankone::cuda::shared_memory());
    kept = tile + Tile<kBand>::floats(kSteps);
    history = kept + kKept * kSlot;
    part_v = history + kSteps * kSlot;
    part_D = part_v + kSteps * kBackThreads;
    sum_v = part_D + kSteps * kBackThreads;
    sum_D = sum_v + kLonghornChunk * 32;
    norms = sum_D + kLonghornChunk * 32;
    d_norms = norms + kLonghornChunk;
  }
};

__device__ void put(float* slot, const float (&state)[kSize]) {
#pragma unroll
  for (int i = 0; i < kSize; ++i) slot[i * kBackThreads + static_cast<int>(threadIdx.x)] = state[i];
}
__device__ void get(float (&state)[kSize], const float* slot) {
#pragma unroll
  for (int i = 0; i < kSize; ++i) state[i] = slot[i * kBackThreads + static_cast<int>(threadIdx.x)];
}

// What a block works on: a chunk of one key head.
struct ChunkBack {
  const LonghornCall& call;
  const LonghornBack& back;
  Places places;
  BackShared shared;
  Tile<kBand> tile;
  rankone::cuda::Span span;
  std::int64_t chunk, key_head;
  int warp, lane;

  __device__ ChunkBack(const LonghornCall& of, const LonghornBack& way)
      : call(of), back(way), places{of}, tile(shared.tile, kSteps) {
    chunk = blockIdx.x / call.heads;
    key_head = blockIdx.x - chunk * call.heads;
    span = call.rows.span(chunk);
    warp = static_cast<int>(threadIdx.x) / 32;
    lane = static_cast<int>(threadIdx.x) % 32;
  }

  __device__ int steps_of(int block) const {
    const int left = span.count - block * kSteps;
    return left < kSteps ? left : kSteps;
  }
  __device__ void load_tile(int block, std::int64_t head, int column, int channel) const {
    const std::int64_t row = span.first + block * kSteps;
    __syncthreads();
    tile.load_keys(call, row, steps_of(block), key_head, channel);
    tile.load_values(call, back.d_o, row, steps_of(block), head, column,
                     shared.norms + block * kSteps);
    __syncthreads();
  }

  // The rows of a block forward; their states before go to `history` where it is given.
  __device__ void forward(float (&state)[kSize], int block, float* history) const {
    for (int t = 0; t < steps_of(block); ++t) {
      if (history != nullptr) put(history + t * kSlot, state);
      const float D = tile.D[t * 32 + lane], value = tile.value[t * 32 + lane];
      const float* k = tile.k + t * kBand + warp * kSize;
#pragma unroll
      for (int i = 0; i < kSize; ++i) state[i] = step(state[i], D, k[i], value);
    }
  }

  // Reverse step, Gr = dL/dS from the future, S before the step:
  //     dq_d += S+_dj do_j;  Gr_dj += q_d do_j;  dk_d += Gr_dj D_j (v_j - 2 k_d S_dj)
  //     dD_j = sum_d Gr_dj k_d (v_j - k_d S_dj);  dv_j = sum_d Gr_dj D_j k_d
  //     Gr_dj <- Gr_dj (1 - D_j k_d^2)
  __device__ void reverse(float (&cotangent)[kSize], int block, int channel, bool add) const {
    for (int t = steps_of(block) - 1; t >= 0; --t) {
      const float D = tile.D[t * 32 + lane], value = tile.value[t * 32 + lane];
      const float d_o = tile.d_o[t * 32 + lane];
      const float* k = tile.k + t * kBand + warp * kSize;
      const float* q = tile.q + t * kBand + warp * kSize;
      float before[kSize], sums[2 * kSize], d_v = 0.0F, d_D = 0.0F;
      get(before, shared.history + t * kSlot);
#pragma unroll
      for (int i = 0; i < kSize; ++i) {
        const float miss = value - k[i] * before[i];
        sums[i] = (before[i] + D * k[i] * miss) * d_o;
        cotangent[i] += q[i] * d_o;
        sums[kSize + i] = cotangent[i] * D * (miss - k[i] * before[i]);
        d_D += cotangent[i] * k[i] * miss;
        d_v += cotangent[i] * D * k[i];
        cotangent[i] -= D * k[i] * (k[i] * cotangent[i]);
      }
      shared.part_v[(t * kBackWarps + warp) * 32 + lane] = d_v;
      shared.part_D[(t * kBackWarps + warp) * 32 + lane] = d_D;
      const float sum = warp_sums(sums);
      const int number = lane / 2, d = channel + warp * kSize + number % kSize;
      if (lane % 2 == 0 && d < call.d_k) {
        float* to = (number < kSize ? back.sum_q : back.sum_k) +
                    places.key_at(span.first + block * kSteps + t, key_head) + d;
        *to = add ? *to + sum : sum;
      }
    }
    __syncthreads();
    for (int t = warp; t < steps_of(block); t += kBackWarps) {
      const int at = (block * kSteps + t) * 32 + lane;
      float d_v = channel == 0 ? 0.0F : shared.sum_v[at];
      float d_D = channel == 0 ? 0.0F : shared.sum_D[at];
      for (int i = 0; i < kBackWarps; ++i) {
        d_v += shared.part_v[(t * kBackWarps + i) * 32 + lane];
        d_D += shared.part_D[(t * kBackWarps + i) * 32 + lane];
      }
      shared.sum_v[at] = d_v;
      shared.sum_D[at] = d_D;
    }
  }

  // 32 columns of one value head with all channels.
  __device__ void columns(std::int64_t head, int column, bool add) const {
    for (int channel = 0; channel < call.d_k; channel += kBand) {
      const Column<kSize> own{channel + warp * kSize, column + lane, column + lane < call.d_v};
      const std::int64_t at = places.state_at(chunk, head);
      float state[kSize], cotangent[kSize];
      own.read(call, state, call.states + at);
      own.read(call, cotangent, back.cotangents + at);
      const int blocks = (span.count + kSteps - 1) / kSteps;
      for (int block = 0; block < blocks; ++block) {
        put(shared.kept + block * kSlot, state);
        if (block == blocks - 1) break;
        load_tile(block, head, column, channel);
        forward(state, block, nullptr);
      }
      for (int block = blocks - 1; block >= 0; --block) {
        load_tile(block, head, column, channel);
        get(state, shared.kept + block * kSlot);
        forward(state, block, shared.history);
        reverse(cotangent, block, channel, add);
      }
    }
    values(head, column);
  }

  // dv, dbeta = dD / (1 + beta N)^2 and, for the norm, dN = -sum dD D^2.
  __device__ void values(std::int64_t head, int column) const {
    for (int t = warp; t < span.count; t += kBackWarps) {
      const std::int64_t at = places.value_at(span.first + t, head) + column + lane;
      const float d_D = shared.sum_D[t * 32 + lane];
      float d_norm = 0.0F;
      if (column + lane < call.d_v) {
        const float beta = load(call.beta, at), below = 1.0F + beta * shared.norms[t];
        store(back.d_v, at, shared.sum_v[t * 32 + lane]);
        store(back.d_beta, at, d_D / (below * below));
        d_norm = -d_D * (beta / below) * (beta / below);
      }
      d_norm = warp_sum(d_norm);
      if (lane == 0) shared.d_norms[t] += d_norm;
    }
  }

  __device__ void keys() const {
    for (int i = static_cast<int>(threadIdx.x); i < span.count * call.d_k; i += kBackThreads) {
      const int t = i / call.d_k;
      const std::int64_t at = places.key_at(span.first + t, key_head) + i - t * call.d_k;
      store(back.d_q, at, back.sum_q[at]);
      store(back.d_k, at, back.sum_k[at] + 2.0F * shared.d_norms[t] * load(call.k, at));
    }
  }
};

__global__ void __launch_bounds__(kBackThreads) chunk_back(LonghornCall call, LonghornBack back) {
  const ChunkBack chunk(call, back);
  Tile<kBand> norms = chunk.tile;
  norms.norm = chunk.shared.norms;
  norms.load_norms(call, chunk.span.first, chunk.span.count, chunk.key_head);
  if (static_cast<int>(threadIdx.x) < kLonghornChunk) chunk.shared.d_norms[threadIdx.x] = 0.0F;
  __syncthreads();
  const std::int64_t group = call.value_heads / call.heads;
  for (std::int64_t member = 0; member < group; ++member) {
    for (int column = 0; column < call.d_v; column += 32) {
      chunk.columns(chunk.key_head * group + member, column, member > 0 || column > 0);
    }
  }
  __syncthreads();
  chunk.keys();
}

template <int Size, bool Reverse>
void start_walk(const LonghornCall& call, const LonghornBack& back, void* stream) {
  const std::int64_t heads = call.rows.sequences * call.value_heads;
  const std::int64_t blocks = heads * call.segments.most * ((call.d_v + 31) / 32);
  const std::size_t tile = Tile<kWarps * Size>::floats(kTile) * sizeof(float);
  if (call.segments.most > 1) {
    rankone::cuda::launch(walk<Size, Reverse, true>, blocks, kThreads, tile, stream, call, back);
    const int parts = (call.d_k * call.d_v + kThreads - 1) / kThreads;
    rankone::cuda::launch(start_segments<Reverse>, heads * parts, kThreads, 0, stream, call,
                          Reverse ? back.d_final : call.initial, parts);
  }
  rankone::cuda::launch(walk<Size, Reverse, false>, blocks, kThreads,
                        tile + kTile * kThreads * sizeof(float), stream, call, back);
}
template <bool Reverse>
void start_walk(const LonghornCall& call, const LonghornBack& back, void* stream) {
  if (call.d_k > 128) return start_walk<32, Reverse>(call, back, stream);
  start_walk<16, Reverse>(call, back, stream);
}

}  // namespace

void launch_longhorn(const LonghornCall& call, void* stream) {
  start_walk<false>(call, {}, stream);
}

void launch_longhorn_back(const LonghornCall& call, const LonghornBack& back, void* stream) {
  start_walk<false>(call, back, stream);
  start_walk<true>(call, back, stream);
  rankone::cuda::launch(chunk_back, call.rows.chunks * call.heads, kBackThreads,
                        kBackFloats * sizeof(float), stream, call, back);
}

}  // namespace rankone::recurrence::cuda
