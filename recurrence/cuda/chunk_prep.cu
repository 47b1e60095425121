#include "recurrence/cuda/chunk_prep.hpp"

#include <algorithm>

#include "recurrence/cuda/chunk_prep_scalar.hpp"

// Without decay and for scalar decay. On Hopper blocks stay on the device and go over (chunk, value
// head): one warp has the copy engine bring the keys of the next and makes the numbers of its
// gates, while four make a and P and Y, which the copy engine takes away. Elsewhere one block of
// four warps per (chunk, value head) does everything.

namespace rankone::recurrence::cuda {
namespace {

// ---- Before Hopper -----------------------------------------------------------------------------

constexpr int kThreads = 128;
constexpr int kWorkers = 1;  // their barrier

template <int Columns>
std::size_t shared_bytes(bool delta, bool same_key) {
  const std::size_t keys = KeyTile<Columns>::kBytes * (delta && !same_key ? 3 : 2);
  const std::size_t output = delta ? sizeof(ScalarOutput<true>) : sizeof(ScalarOutput<false>);
  return std::max(keys, output) + sizeof(ScalarNumbers);
}

template <class Format, int Columns, bool Delta>
__global__ void __launch_bounds__(kThreads, Columns == 256 ? 3 : 4)
    prepare_scalar(const ChunkCall c) {
  using T = KeyTile<Columns>;
  const TwoKeyCall& call = c.call;
  const bool separate = Delta && !call.same_key;
  // The keys and, when they are used up, the results.
  unsigned char* const tiles = shared_memory();
  auto& out = *reinterpret_cast<ScalarOutput<Delta>*>(tiles);
  const int tile_bytes = (separate ? 3 : 2) * T::kBytes, output_bytes = sizeof out;
  auto& numbers = *reinterpret_cast<ScalarNumbers*>(
      tiles + (tile_bytes > output_bytes ? tile_bytes : output_bytes));
  const auto heads = static_cast<std::uint32_t>(call.value_heads);
  const std::int64_t chunk = blockIdx.x / heads, head = blockIdx.x % heads;
  const Span span = call.rows.span(chunk);
  unsigned char* const record = c.record(chunk, head);
  const int warp = warp_number();

  load_keys<Columns>(call, span.first, span.count, head, separate, tiles);
  copy_commit();
  if (warp == 0) {
    put_numbers(numbers, load_gates<Format>(call, span.first, span.count, head), c, record,
                span.count);
  }
  copy_wait<0>();
  __syncthreads();
  float p[32] = {}, a[32] = {};
  multiply_keys<MmaEngine<Format>, T, Delta>(p, a, tiles, tiles + T::kBytes,
                                             tiles + (separate ? 2 : 1) * T::kBytes, warp);
  __syncthreads();
  clear_above(out.p);
  if constexpr (Delta) clear_above(out.y);
  put_products<Format, Delta>(p, a, numbers, out, call.scale, warp);
  if constexpr (Delta) {
    const bool precise =
        invert_triangle<Format>(out.triangle, out.y, record + c.layout.square_low, out.notes, 1);
    if (threadIdx.x == 0) {
      *reinterpret_cast<float*>(record + c.layout.precise) = precise ? 1.0F : 0.0F;
    }
  }
  __syncthreads();
  put_tile(record + c.layout.square_p, out.p);
  if constexpr (Delta) put_tile(record + c.layout.square_y, out.y);
}

// ---- Hopper ------------------------------------------------------------------------------------

// The rows of keys, for the copy engine.
struct KeyTensors {
  TensorMap query, write, erase;
};
struct ScalarCall {
  ChunkCall chunk;
  KeyTensors tensors;
};

// A block has four warps that work and one that feeds them, and as many neighbours on its
// multiprocessor as fit.
constexpr int kBulkThreads = kThreads + 32;

template <int Columns, bool Delta, bool Separate>
struct Shape {
  static constexpr int kTiles = Separate ? 3 : 2;
  static constexpr int kTileBytes = kTiles * KeyTile<Columns>::kBytes;
  struct Shared {
    unsigned char tiles[kTileBytes];
    ScalarOutput<Delta> output;
    ScalarNumbers numbers;
    std::uint64_t full, empty;  // tiles and numbers
  };
  static constexpr int kFit = 227 * 1024 / (static_cast<int>(sizeof(Shared)) + 1024);
  static constexpr int kMost = Delta ? 3 : 4;  // for registers
  static constexpr int kBlocks = kFit < kMost ? kFit : kMost;
};

// What the feeding warp does.
template <class Format, int Columns, bool Delta, bool Separate>
__device__ __forceinline__ void feed(const ScalarCall& c,
                                     typename Shape<Columns, Delta, Separate>::Shared& shared) {
  using S = Shape<Columns, Delta, Separate>;
  using T = KeyTile<Columns>;
  const TwoKeyCall& call = c.chunk.call;
  const auto heads = static_cast<std::uint32_t>(call.value_heads);
  const auto group = static_cast<std::uint32_t>(call.value_heads / call.heads);
  const std::uint32_t items = static_cast<std::uint32_t>(call.rows.chunks) * heads;
  const bool leads = threadIdx.x % 32 == 0;
  // The tiles of all blocks would arrive at the same time: let those of one in three come first.
  if (items > gridDim.x) pause(900 * (blockIdx.x * S::kBlocks / gridDim.x));
  std::uint32_t parity = 1;
  for (std::uint32_t item = blockIdx.x; item < items; item += gridDim.x, parity ^= 1) {
    const std::uint32_t chunk = item / heads, head = item % heads;
    const Span span = span_of(call.rows, chunk);
    const GatePair gates = load_gates<Format>(call, span.first, span.count, head);
    mbarrier_wait(&shared.empty, parity);
    if (leads) {
      mbarrier_arrive_expect(&shared.full, S::kTileBytes);
      const auto load = [&](int slot, const TensorMap* map) {
#pragma unroll
        for (int block = 0; block < Columns / 64; ++block) {
          copy_rows(shared.tiles + slot * T::kBytes + block * T::kBlock, map, 64 * block,
                    static_cast<int>(head / group), static_cast<int>(span.first), &shared.full);
        }
      };
      load(0, &c.tensors.query);
      load(1, &c.tensors.write);
      if constexpr (Separate) load(2, &c.tensors.erase);
    }
    __syncwarp();
    put_numbers(shared.numbers, gates, c.chunk, c.chunk.records + item * c.chunk.layout.bytes,
                span.count);
    __syncwarp();
    if (leads) mbarrier_arrive(&shared.full);
  }
}

// Rows beyond the end of a sequence belong to the next one, whose numbers may be anything.
template <int Columns, int Tiles>
__device__ __forceinline__ void clear_rows(unsigned char* tiles, int rows) {
  using T = KeyTile<Columns>;
  constexpr int kPieces = Columns / 8;
  for (int tile = 0; tile < Tiles; ++tile) {
    for (int i = rows * kPieces + static_cast<int>(threadIdx.x); i < 64 * kPieces; i += 128) {
      *reinterpret_cast<uint4*>(tiles + tile * T::kBytes + T::place(i / kPieces, i % kPieces)) =
          make_uint4(0, 0, 0, 0);
    }
  }
  fence_async();
  barrier_sync(kWorkers, kThreads);
}

template <class Format, int Columns, bool Delta, bool Separate>
__global__ void __launch_bounds__(kBulkThreads, Shape<Columns, Delta, Separate>::kBlocks)
    prepare_scalar_bulk(const __grid_constant__ ScalarCall c) {
  using S = Shape<Columns, Delta, Separate>;
  using T = KeyTile<Columns>;
  auto& shared = *reinterpret_cast<typename S::Shared*>(shared_memory());
  const int warp = warp_number();
  if (threadIdx.x == 0) {
    mbarrier_init(&shared.full, 2);
    mbarrier_init(&shared.empty, 4);
    mbarrier_fence();
  }
  __syncthreads();
  if (warp == 4) return feed<Format, Columns, Delta, Separate>(c, shared);

  const bool leads = threadIdx.x == 0;
  const RecordLayout& layout = c.chunk.layout;
  unsigned char* const tiles = shared.tiles;
  ScalarOutput<Delta>& out = shared.output;
  clear_above(out.p);
  if constexpr (Delta) clear_above(out.y);
  const std::uint32_t items = static_cast<std::uint32_t>(c.chunk.call.rows.chunks) *
                              static_cast<std::uint32_t>(c.chunk.call.value_heads);
  int turn = 0;
  for (std::uint32_t item = blockIdx.x; item < items; item += gridDim.x, ++turn) {
    unsigned char* const record = c.chunk.records + item * layout.bytes;
    mbarrier_wait(&shared.full, turn & 1);
    if (shared.numbers.count < kChunkRows) {
      clear_rows<Columns, S::kTiles>(tiles, shared.numbers.count);
    }
    float p[32], a[32];
    multiply_keys<WgmmaEngine<Format>, T, Delta>(p, a, tiles, tiles + T::kBytes,
                                                 tiles + (Separate ? 2 : 1) * T::kBytes, warp);
    if (leads) store_bulk_read();
    barrier_sync(kWorkers, kThreads);
    put_products<Format, Delta>(p, a, shared.numbers, out, c.chunk.call.scale, warp);
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(&shared.empty);
    if constexpr (Delta) {
      const bool precise = invert_triangle<Format>(out.triangle, out.y, record + layout.square_low,
                                                   out.notes, kWorkers, turn);
      if (leads) *reinterpret_cast<float*>(record + layout.precise) = precise ? 1.0F : 0.0F;
    }
    fence_async();
    barrier_sync(kWorkers, kThreads);
    if (leads) {
      if constexpr (Delta) {
        store_bulk(record + layout.square_y, out.y, 2 * kSquareBytes);
      } else {
        store_bulk(record + layout.square_p, out.p, kSquareBytes);
      }
    }
  }
  if (leads) store_bulk_read();
}

template <class Format, int Columns, bool Delta, bool Separate>
void start_bulk(const ScalarCall& call, int multiprocessors, void* stream) {
  using S = Shape<Columns, Delta, Separate>;
  const std::int64_t items = call.chunk.call.rows.chunks * call.chunk.call.value_heads;
  launch(prepare_scalar_bulk<Format, Columns, Delta, Separate>,
         std::min<std::int64_t>(items, multiprocessors * S::kBlocks), kBulkThreads,
         sizeof(typename S::Shared), stream, call);
}

// ------------------------------------------------------------------------------------------------

template <class Format, int Columns>
void launch_columns(const ChunkCall& c, const ChunkPrepDevice& device, void* stream) {
  const TwoKeyCall& call = c.call;
  if (device.engine == Engine::wgmma) {
    ScalarCall bulk = {c, {}};
    bulk.tensors.query = row_map(call.q, call.rows.count, call.heads, call.d_k);
    bulk.tensors.write = row_map(call.w, call.rows.count, call.heads, call.d_k);
    if (!call.delta) {
      return start_bulk<Format, Columns, false, false>(bulk, device.multiprocessors, stream);
    }
    if (call.same_key) {
      return start_bulk<Format, Columns, true, false>(bulk, device.multiprocessors, stream);
    }
    bulk.tensors.erase = row_map(call.e, call.rows.count, call.heads, call.d_k);
    return start_bulk<Format, Columns, true, true>(bulk, device.multiprocessors, stream);
  }
  const auto start = [&](auto kernel) {
    launch(kernel, call.rows.chunks * call.value_heads, kThreads,
           shared_bytes<Columns>(call.delta, call.same_key), stream, c);
  };
  call.delta ? start(prepare_scalar<Format, Columns, true>)
             : start(prepare_scalar<Format, Columns, false>);
}

template <class Format>
void launch_format(const ChunkCall& c, const ChunkPrepDevice& device, void* stream) {
  switch (key_columns(c.call.d_k)) {
    case 64:
      return launch_columns<Format, 64>(c, device, stream);
    case 128:
      return launch_columns<Format, 128>(c, device, stream);
    default:
      return launch_columns<Format, 256>(c, device, stream);
  }
}

}  // namespace

void launch_chunk_prep(const ChunkCall& call, const ChunkPrepDevice& device, void* stream) {
  if (call.call.gate == GateKind::channel) return launch_chunk_prep_channel(call, device, stream);
  call.call.format == Dtype::bf16 ? launch_format<bf16>(call, device, stream)
                                  : launch_format<f16>(call, device, stream);
}

}  // namespace rankone::recurrence::cuda
