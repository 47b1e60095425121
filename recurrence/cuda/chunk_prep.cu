#include "recurrence/cuda/chunk_prep.hpp"

#include <algorithm>

#include "recurrence/cuda/chunk_prep_bulk.hpp"

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
  const std::size_t output =
      delta ? sizeof(ScalarOutput<true, false>) : sizeof(ScalarOutput<false, false>);
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
  auto& out = *reinterpret_cast<ScalarOutput<Delta, false>*>(tiles);
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
    put_numbers<Delta, false>(numbers, load_gates<Format>(call, span.first, span.count, head), c,
                              record, span.count);
  }
  copy_wait<0>();
  __syncthreads();
  float p[32] = {}, a[32] = {};
  multiply_keys<MmaEngine<Format>, T, Delta, false>(p, a, tiles, tiles + T::kBytes,
                                                    tiles + (separate ? 2 : 1) * T::kBytes, warp);
  __syncthreads();
  clear_above(out.p);
  if constexpr (Delta) clear_above(out.y);
  put_products<Format>(p, a, numbers, out, call.scale, warp);
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

struct ScalarCall {
  ChunkCall chunk;
  TensorMap query, write, erase;
  PrepTurns turns;
};

// A block is a team, with as many neighbours on its multiprocessor as fit.
constexpr int kBulkThreads = kTeam + 32;

template <class Format, int Columns, bool Delta, bool Separate, bool Lean>
__global__ void __launch_bounds__(kBulkThreads, PrepShape<Columns, Delta, Separate, Lean>::kBlocks)
    prepare_scalar_bulk(const __grid_constant__ ScalarCall c) {
  if constexpr (kHopper) {
    using S = PrepShape<Columns, Delta, Separate, Lean>;
    auto& shared = *reinterpret_cast<typename S::Shared*>(shared_memory());
    if (threadIdx.x == 0) shared.begin();
    __syncthreads();
    PrepTurns turns = c.turns;
    turns.first = blockIdx.x;
    turns.step = gridDim.x;
    if (warp_number() == 4) {
      // The tiles of all blocks would arrive at the same time: let those of one in three come
      // first.
      if (turns.end > gridDim.x) pause((Lean ? 450 : 900) * (blockIdx.x * S::kBlocks / gridDim.x));
      return feed_team<Format, Columns, Delta, Separate, Lean>(
          c.chunk, {&c.query, &c.write, &c.erase}, turns, shared);
    }
    work_team<Format, Columns, Delta, Separate, Lean>(c.chunk, turns, shared, kWorkers);
  }
}

// Lean records of additive calls are numbers alone: a warp for each.
template <class Format>
__global__ void __launch_bounds__(kThreads) prepare_numbers(const __grid_constant__ ChunkCall c) {
  auto* const numbers = reinterpret_cast<ScalarNumbers*>(shared_memory());
  const auto heads = static_cast<std::uint32_t>(c.call.value_heads);
  const std::uint32_t items = static_cast<std::uint32_t>(c.call.rows.chunks) * heads;
  const int warp = warp_number();
  const std::uint32_t item = blockIdx.x * (kThreads / 32) + static_cast<std::uint32_t>(warp);
  if (item >= items) return;
  const std::uint32_t head = item % heads;
  const Span span = span_of(c.call.rows, item / heads);
  put_numbers<false, true>(numbers[warp], load_gates<Format>(c.call, span.first, span.count, head),
                           c, c.records + item * c.layout.bytes, span.count);
}

template <class Format, int Columns, bool Delta, bool Separate, bool Lean>
void start_bulk(const ScalarCall& call, int multiprocessors, void* stream) {
  using S = PrepShape<Columns, Delta, Separate, Lean>;
  launch(prepare_scalar_bulk<Format, Columns, Delta, Separate, Lean>,
         std::min<std::int64_t>(call.turns.end, multiprocessors * S::kBlocks), kBulkThreads,
         sizeof(typename S::Shared), stream, call);
}

// ------------------------------------------------------------------------------------------------

template <class Format, int Columns>
void launch_columns(const ChunkCall& c, const ChunkPrepDevice& device, void* stream) {
  const TwoKeyCall& call = c.call;
  if (device.engine == Engine::wgmma) {
    constexpr int kWarps = kThreads / 32;
    if (c.layout.lean && !call.delta) {
      return launch(prepare_numbers<Format>,
                    (call.rows.chunks * call.value_heads + kWarps - 1) / kWarps, kThreads,
                    kWarps * sizeof(ScalarNumbers), stream, c);
    }
    ScalarCall bulk{};
    bulk.chunk = c;
    bulk.turns = prep_turns(call, 0, device.chunks);
    bulk.write = row_map(call.w, call.rows.count, call.heads, call.d_k);
    const bool separate = call.delta && !call.same_key;
    if (separate) bulk.erase = row_map(call.e, call.rows.count, call.heads, call.d_k);
    if constexpr (Columns <= 128) {  // as the scans
      if (c.layout.lean) {
        return (separate ? start_bulk<Format, Columns, true, true, true>
                         : start_bulk<Format, Columns, true, false, true>)(bulk,
                                                                           device.multiprocessors,
                                                                           stream);
      }
    }
    bulk.query = row_map(call.q, call.rows.count, call.heads, call.d_k);
    return (!call.delta ? start_bulk<Format, Columns, false, false, false>
            : separate  ? start_bulk<Format, Columns, true, true, false>
                        : start_bulk<Format, Columns, true, false, false>)(bulk,
                                                                          device.multiprocessors,
                                                                          stream);
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
