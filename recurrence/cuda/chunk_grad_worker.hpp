#pragma once

// What the gradient kernels with the copy engine share: workers, each of four warps with 16 rows of
// the chunk per warp, that take one (chunk, head) after another on their own, and the tiles of
// each. Two of them on a multiprocessor fill each other's waits. Tiles stand in slots of shared
// memory, each with a barrier; as soon as a tile has been read, what is needed next is asked for
// there.

#include "core/cuda/tensor_map.hpp"
#include "recurrence/cuda/chunk_grad_loop.hpp"

namespace rankone::recurrence::cuda {

inline constexpr int kStreamWorkers = 2, kStreamThreads = 128 * kStreamWorkers;

struct GradTensors {
  TensorMap query, erase, write, output, value, update;
  TensorMap gate;  // of channels; a float is two elements
};
struct StreamCall {
  GradCall grad;
  GradTensors tensors;
};

// Numbers of the worker.
struct StreamRows {
  std::uint64_t arrived[8];
  float gain[64];
  float high[64];  // sum of the log2 decays, as two floats; then the dots of the reads per row
  float low[64];   // then those of dW
  float crossing[64], column[64];
  float state[4];
  GradItem items[3];  // a warp may still store one while another looks for the next but one
};

template <int Half>
__device__ __forceinline__ void zero(float (&d)[Half]) {
#pragma unroll
  for (float& x : d) x = 0.0F;
}
// Waits for the products that d gets.
template <class Engine, int Half>
__device__ __forceinline__ void finish(float (&d)[Half]) {
  Engine::commit();
  Engine::template wait<0>();
  Engine::hold(d);
}

// The rows of item `number`, (chunk, key head), by one warp.
inline __device__ void find_item(const TwoKeyCall& sizes, std::int64_t number, GradItem* to) {
  const Rows& all = sizes.rows;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const auto heads = static_cast<unsigned>(sizes.heads);
  GradItem item;
  const auto chunk = static_cast<unsigned>(number) / heads;
  item.chunk = chunk;
  item.key_head = static_cast<unsigned>(number) - chunk * heads;
  if (all.chunk_boundaries == nullptr) {
    const auto per_sequence = static_cast<unsigned>((all.time + kChunkRows - 1) / kChunkRows);
    const unsigned sequence = chunk / per_sequence;
    const int before = static_cast<int>(chunk - sequence * per_sequence) * kChunkRows;
    const std::int64_t left = all.time - before;
    item.first = sequence * all.time + before;
    item.count = static_cast<int>(left < kChunkRows ? left : kChunkRows);
  } else {
    // The last sequence whose first chunk is at most this one, 32 places looked at at once.
    std::int64_t low = 0, high = all.sequences;
    while (high - low > 1) {
      const std::int64_t step = (high - low + 31) / 32, probe = low + lane * step;
      const bool reached = probe < high && all.chunk_boundaries[probe] <= item.chunk;
      std::uint32_t votes = __ballot_sync(0xffffffffU, reached ? 1 : 0);
      int last = 0;
      while ((votes >>= 1) != 0) ++last;
      low += last * step;
      high = low + step < high ? low + step : high;
    }
    const std::int64_t start = all.begin(low), length = all.end(low) - start;
    const std::int64_t before = (item.chunk - all.first_chunk(low)) * kChunkRows;
    item.first = start + before;
    const std::int64_t left = length - before;
    // Without rows there is nothing to write.
    item.count = !sizes.takes(length) ? 0 : static_cast<int>(left < kChunkRows ? left : kChunkRows);
  }
  if (lane == 0) *to = item;
}

// Columns: of the keys that are worked off together. Of a late e there is no place of its own: it
// stands first in that of the second state, and later in that of dO.
template <int Columns, bool Late>
struct StreamShared {
  using Keys = RowTile<64, Columns>;
  using Values = RowTile<64, 64>;
  using State = Tile<64, Columns, false>;
  enum Slot { query, write, update, output, value, state_a, state_b, erase };
  static constexpr int kPair = 2 * Values::kBytes;
  // In the order of the slots: keys, pairs of value tiles, states, e.
  static __host__ __device__ constexpr int place(Slot slot) {
    const int keys = slot < update ? slot : 2;
    const int values = slot < update ? 0 : slot < state_a ? slot - update : 3;
    const int states = slot < state_a ? 0 : slot - state_a;
    return keys * Keys::kBytes + values * kPair + states * State::kBytes;
  }
  static constexpr int kTiles = place(erase) + (Late ? 0 : Columns == 64 ? Keys::kBytes : 0);
  static constexpr int kNumbers = 1536;
  static_assert(sizeof(StreamRows) <= kNumbers);
  static constexpr int kBytes = kStreamWorkers * (kTiles + kNumbers);
};

inline constexpr int kStreamSharedBytes = StreamShared<128, false>::kBytes;  // at most

// Tiles: of values worked off together, 1 if that is all, else 2. `Columns` key columns from `pass`
// times as many on.
template <class Format, class Engine, int Columns, int Tiles, bool Late>
class GradWorker {
 public:
  using Shared = StreamShared<Columns, Late>;
  using Slot = typename Shared::Slot;
  using Keys = typename Shared::Keys;
  using Values = typename Shared::Values;
  using State = typename Shared::State;
  static constexpr int kHalf = Columns / 2;

  // `bytes` of shared memory for the tiles of a worker; the numbers of all stand behind.
  __device__ GradWorker(const StreamCall& c, int bytes)
      : call_(c),
        worker_(__shfl_sync(0xffffffffU, static_cast<int>(threadIdx.x / 128), 0)),
        thread_(static_cast<int>(threadIdx.x % 128)),
        lane_(thread_ % 32),
        warp_(__shfl_sync(0xffffffffU, thread_ / 32, 0)),
        row_(16 * warp_ + lane_ / 4),
        pairs_(value_tiles(sizes().d_v) / Tiles),
        shared_(shared_memory() + worker_ * bytes),
        rows_(*reinterpret_cast<StreamRows*>(shared_memory() + kStreamWorkers * bytes +
                                             worker_ * Shared::kNumbers)) {}

  // Before anything else.
  __device__ __forceinline__ void start() const {
    if (thread_ == 0) {
      for (int i = 0; i < 8; ++i) mbarrier_init(rows_.arrived + i, 1);
      mbarrier_fence();
    }
    sync();
  }

  __device__ __forceinline__ const TwoKeyCall& sizes() const { return call_.grad.chunk.call; }
  __device__ __forceinline__ void sync() const { barrier_sync(1 + worker_, 128); }
  __device__ __forceinline__ unsigned char* at(Slot slot) const {
    return shared_ + Shared::place(slot);
  }

  // ---- Tiles ------------------------------------------------------------------------------------

  __device__ __forceinline__ bool asks() const { return thread_ == 96; }

  __device__ void bring_keys(Slot slot, const TensorMap& map, const GradItem& item,
                             int pass = 0) const {
    mbarrier_arrive_expect(rows_.arrived + slot, Keys::kBytes);
#pragma unroll
    for (int i = 0; i < Columns / 64; ++i) {
      copy_rows(at(slot) + i * Keys::kBlock, &map, pass * Columns + 64 * i,
                static_cast<int>(item.key_head), static_cast<int>(item.first),
                rows_.arrived + slot);
    }
  }
  __device__ void bring_values(Slot slot, const TensorMap& map, const GradItem& item,
                               int pair) const {
    mbarrier_arrive_expect(rows_.arrived + slot, Tiles * Values::kBytes);
#pragma unroll
    for (int i = 0; i < Tiles; ++i) {
      copy_rows(at(slot) + i * Values::kBytes, &map, (Tiles * pair + i) * kValueTile,
                static_cast<int>(item.key_head), static_cast<int>(item.first),
                rows_.arrived + slot);
    }
  }
  // State tiles from `tile` on, `Count` of them.
  template <int Count = 1>
  __device__ void bring_state(Slot slot, const void* states, const GradItem& item, int tile,
                              int pass = 0) const {
    mbarrier_arrive_expect(rows_.arrived + slot, Count * State::kBytes);
#pragma unroll
    for (int i = 0; i < Count; ++i) {
      copy_bulk(at(slot) + i * State::kBytes,
                static_cast<const unsigned char*>(states) + pass * State::kBytes +
                    2 * call_.grad.chunk.state_tile(item.chunk, item.key_head, tile + i),
                State::kBytes, rows_.arrived + slot);
    }
  }
  __device__ void bring_states(const GradItem& item, int pair, int pass = 0) const {
    bring_state(Slot::state_a, call_.grad.chunk.states, item, Tiles * pair, pass);
    if (Tiles == 2) {
      bring_state(Slot::state_b, call_.grad.chunk.states, item, Tiles * pair + 1, pass);
    }
  }

  __device__ __forceinline__ void wait(Slot slot) {
    mbarrier_wait(rows_.arrived + slot, phases_ >> slot & 1U);
    phases_ ^= 1U << slot;
  }
  // Rows beyond the end of the chunk are those of others.
  __device__ __forceinline__ void clear(Slot slot, int blocks, int count) const {
    for (int i = 0; i < blocks; ++i) {
      for (int piece = count * 8 + thread_; piece < 64 * 8; piece += 128) {
        *reinterpret_cast<uint4*>(at(slot) + i * Values::kBytes + piece * 16) =
            make_uint4(0, 0, 0, 0);
      }
    }
  }
  __device__ __forceinline__ void cleared() const {
    fence_async();
    sync();
  }

  // All have read tiles with ordinary loads that the copy engine will write next.
  __device__ __forceinline__ void read() const {
    fence_async();
    sync();
  }

  // ---- Products ---------------------------------------------------------------------------------

  // d += left right^T over key columns or 64 value columns.
  template <class T, int Steps>
  __device__ __forceinline__ void inner(float (&d)[32], const unsigned char* left,
                                        const unsigned char* right) const {
#pragma unroll
    for (int k = 0; k < Steps; ++k) {
      Engine::template multiply_tiles<T, false, T, false>(d, left, right, k);
    }
  }
  // d += values state over 64 value columns.
  __device__ __forceinline__ void through(float (&d)[kHalf], const unsigned char* values,
                                          const unsigned char* state) const {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      Engine::template multiply_tiles<Values, false, State, true>(d, values, state, k);
    }
  }
  const StreamCall& call_;
  const int worker_, thread_;
  int lane_;
  const int warp_;
  int row_;
  const int pairs_;
  unsigned char* const shared_;
  StreamRows& rows_;
  std::uint32_t phases_ = 0;
};

}  // namespace rankone::recurrence::cuda
