#pragma once

// Preparation without decay and for scalar decay on Hopper. Teams stay on the device and go over
// (chunk, value head): one warp has the copy engine bring the keys of the next and makes the
// numbers of its gates, while four make a and P and Y, which the copy engine takes away.

#include "recurrence/cuda/chunk_prep_scalar.hpp"

namespace rankone::recurrence::cuda {

// What a team takes: numbers first, first + step, ... below `end` of the (chunk, value head), from
// the last chunk of the call to the first or, where a scan waits for some, in their order: then,
// for sequences of one length, the first chunks of all of them, then the second, ...
struct PrepTurns {
  std::uint32_t first = 0, step = 1, end = 0;
  std::uint32_t sequences = 1, length = 0;  // in chunks
  std::uint32_t chunks = 0;                 // of the call; 0: in their order

  __device__ std::uint32_t chunk(std::uint32_t number) const {
    if (chunks != 0) return chunks - 1 - number;
    return sequences == 1 ? number : number % sequences * length + number / sequences;
  }
};

// Chunks `from` to `to` of every sequence; `to` negative: all chunks.
inline PrepTurns prep_turns(const TwoKeyCall& call, std::int64_t from, std::int64_t to) {
  const std::int64_t heads = call.value_heads, sequences = call.rows.sequences;
  if (to < 0) {
    // What came before has left the last rows in the cache.
    const auto chunks = static_cast<std::uint32_t>(call.rows.chunks);
    return {0, 1, chunks * static_cast<std::uint32_t>(heads), 1, 0, chunks};
  }
  return {static_cast<std::uint32_t>(from * sequences * heads), 1,
          static_cast<std::uint32_t>(to * sequences * heads), static_cast<std::uint32_t>(sequences),
          static_cast<std::uint32_t>(call.rows.chunks / sequences)};
}

// The rows of keys, for the copy engine.
struct KeyMaps {
  const TensorMap *query, *write, *erase;
};

inline constexpr int kTeam = 128;  // threads beside the warp that feeds them

template <int Columns, bool Delta, bool Separate, bool Lean>
struct PrepShape {
  static constexpr int kTiles = (Lean ? 1 : 2) + (Separate ? 1 : 0);
  static constexpr int kWrite = (Lean ? 0 : 1) * KeyTile<Columns>::kBytes;
  static constexpr int kErase = kWrite + (Separate ? KeyTile<Columns>::kBytes : 0);
  static constexpr int kTileBytes = kTiles * KeyTile<Columns>::kBytes;
  struct Shared {
    unsigned char tiles[kTileBytes];
    ScalarOutput<Delta, Lean> output;
    ScalarNumbers numbers;
    std::uint64_t full, empty;  // tiles and numbers

    // Before a barrier of all.
    __device__ void begin() {
      mbarrier_init(&full, 1 + 32);  // every lane arrives (chunk_scan_feed.hpp says why)
      mbarrier_init(&empty, kTeam);
      mbarrier_fence();
    }
  };
  static constexpr int kSharedBytes = (static_cast<int>(sizeof(Shared)) + 1023) / 1024 * 1024;
  static constexpr int kFit = 227 * 1024 / (static_cast<int>(sizeof(Shared)) + 1024);
  static constexpr int kMost = Delta && !Lean ? 3 : 4;  // for registers
  static constexpr int kBlocks = kFit < kMost ? kFit : kMost;
};

// What the feeding warp does.
template <class Format, int Columns, bool Delta, bool Separate, bool Lean>
__device__ __forceinline__ void feed_team(
    const ChunkCall& c, const KeyMaps& maps, const PrepTurns& turns,
    typename PrepShape<Columns, Delta, Separate, Lean>::Shared& shared) {
  using T = KeyTile<Columns>;
  const TwoKeyCall& call = c.call;
  const auto heads = static_cast<std::uint32_t>(call.value_heads);
  const auto group = static_cast<std::uint32_t>(call.value_heads / call.heads);
  const bool leads = threadIdx.x % 32 == 0;
  std::uint32_t parity = 1;
  for (std::uint32_t turn = turns.first; turn < turns.end; turn += turns.step, parity ^= 1) {
    const std::uint32_t chunk = turns.chunk(turn / heads), head = turn % heads;
    const std::uint32_t item = chunk * heads + head;
    const Span span = span_of(call.rows, chunk);
    const GatePair gates = load_gates<Format>(call, span.first, span.count, head);
    mbarrier_wait(&shared.empty, parity);
    if (leads) {
      mbarrier_arrive_expect(&shared.full, PrepShape<Columns, Delta, Separate, Lean>::kTileBytes);
      const auto load = [&](int slot, const TensorMap* map) {
#pragma unroll
        for (int block = 0; block < Columns / 64; ++block) {
          copy_rows(shared.tiles + slot * T::kBytes + block * T::kBlock, map, 64 * block,
                    static_cast<int>(head / group), static_cast<int>(span.first), &shared.full);
        }
      };
      if constexpr (!Lean) load(0, maps.query);
      load(Lean ? 0 : 1, maps.write);
      if constexpr (Separate) load(Lean ? 1 : 2, maps.erase);
      shared.numbers.item = item;
    }
    __syncwarp();
    put_numbers<Delta, Lean>(shared.numbers, gates, c, c.records + item * c.layout.bytes,
                             span.count);
    mbarrier_arrive(&shared.full);
  }
}

// Rows beyond the end of a sequence belong to the next one, whose numbers may be anything.
template <int Columns, int Tiles>
__device__ __forceinline__ void clear_rows(unsigned char* tiles, int rows, int barrier) {
  using T = KeyTile<Columns>;
  constexpr int kPieces = Columns / 8;
  for (int tile = 0; tile < Tiles; ++tile) {
    for (int i = rows * kPieces + static_cast<int>(threadIdx.x) % kTeam; i < 64 * kPieces;
         i += kTeam) {
      *reinterpret_cast<uint4*>(tiles + tile * T::kBytes + T::place(i / kPieces, i % kPieces)) =
          make_uint4(0, 0, 0, 0);
    }
  }
  fence_async();
  barrier_sync(barrier, kTeam);
}

// What the four warps do whose barrier it is.
template <class Format, int Columns, bool Delta, bool Separate, bool Lean>
__device__ __forceinline__ void work_team(
    const ChunkCall& c, const PrepTurns& turns,
    typename PrepShape<Columns, Delta, Separate, Lean>::Shared& shared, int barrier) {
  using S = PrepShape<Columns, Delta, Separate, Lean>;
  using T = KeyTile<Columns>;
  const int warp = warp_number() % 4;
  const bool leads = threadIdx.x % kTeam == 0;
  const RecordLayout& layout = c.layout;
  unsigned char* const tiles = shared.tiles;
  ScalarOutput<Delta, Lean>& out = shared.output;
  if constexpr (!Lean) clear_above(out.p);
  if constexpr (Delta) clear_above(out.y);
  int number = 0;
  for (std::uint32_t turn = turns.first; turn < turns.end; turn += turns.step, ++number) {
    mbarrier_wait(&shared.full, number & 1);
    unsigned char* const record = c.records + shared.numbers.item * layout.bytes;
    if (shared.numbers.count < kChunkRows) {
      clear_rows<Columns, S::kTiles>(tiles, shared.numbers.count, barrier);
    }
    float p[32], a[32];
    multiply_keys<WgmmaEngine<Format>, T, Delta, Lean>(p, a, tiles, tiles + S::kWrite,
                                                       tiles + S::kErase, warp);
    if (leads) store_bulk_read();
    barrier_sync(barrier, kTeam);
    put_products<Format>(p, a, shared.numbers, out, c.call.scale, warp);
    mbarrier_arrive(&shared.empty);
    if constexpr (Delta) {
      const bool precise = invert_triangle<Format>(out.triangle, out.y, record + layout.square_low,
                                                   out.notes, barrier, number);
      if (leads) *reinterpret_cast<float*>(record + layout.precise) = precise ? 1.0F : 0.0F;
    }
    fence_async();
    barrier_sync(barrier, kTeam);
    if (leads) {
      if constexpr (Delta) {
        store_bulk(record + layout.square_y, out.y, (Lean ? 1 : 2) * kSquareBytes);
      } else {
        store_bulk(record + layout.square_p, out.p, kSquareBytes);
      }
    }
  }
  if (leads) store_bulk_read();
}

}  // namespace rankone::recurrence::cuda
