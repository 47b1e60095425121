#include "recurrence/cuda/chunk_split.hpp"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>

#include "recurrence/cuda/chunk_scan_parts.hpp"

namespace rankone::recurrence::cuda {
namespace {

constexpr int kRows = 32;  // value columns of a block: rows of the transposed state
constexpr int kWarps = 8;  // each has an eighth of the key channels
constexpr int kThreads = 32 * kWarps;

// start += M start_before, for one segment after another, and end += M^T end_after, backwards. Both
// sides of the product are two bf16 numbers each, the low ones multiplied with the high ones only:
// what is left out is 2^-16 of a product, far below the rounding of the state in the scans.
// Bulk: maps come by the copy engine.
template <int DK, bool Bulk>
struct SplitShared {
  static constexpr int kStages = Bulk || DK == 64 ? 3 : 2;  // maps that fit beside the states
  using Map = Tile<64, DK, false>;
  using State = Tile<kRows, DK, false>;
  static constexpr int kMap = DK / 64 * 2 * Map::kBytes;  // of a segment
  static constexpr int kBarriers = kStages * kMap + 2 * State::kBytes;
  static constexpr int kBytes = kBarriers + kStages * 8;
};

struct Boundaries {
  const void* maps;
  float *starts, *ends;  // in these places; `ends` may be null
  int segments, d_k, d_v, blocks_per_head;
};

// Of some value columns of a head; Back: the ends, not the starts.
template <int DK, bool Bulk, bool Back>
__device__ __forceinline__ void carry(const Boundaries& call, std::int64_t block) {
  using Shared = SplitShared<DK, Bulk>;
  constexpr int kStages = Shared::kStages;
  using Map = typename Shared::Map;
  using State = typename Shared::State;
  constexpr int kTiles = DK / kWarps / 8;  // tiles of 8 channels of a warp
  unsigned char* const shared = shared_memory();
  unsigned char* const high = shared + kStages * Shared::kMap;
  unsigned char* const low = high + State::kBytes;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const int g = lane / 4, t = lane % 4;
  const int segments = call.segments, d_k = call.d_k, d_v = call.d_v;
  const std::int64_t head = block / call.blocks_per_head;
  const int first = static_cast<int>(block % call.blocks_per_head) * kRows;
  const std::int64_t state_size = static_cast<std::int64_t>(d_v) * d_k;
  float* const states = Back ? call.ends : call.starts;
  // Step i, 1 and up, goes over the map of this segment, from the place of this state.
  const auto segment_of = [&](int step) { return Back ? segments - 1 - step : step; };
  const auto place_of = [&](int step) { return Back ? segments - 1 - step : step; };

  auto* const arrived = reinterpret_cast<std::uint64_t*>(shared + Shared::kBarriers);
  if constexpr (Bulk) {
    if (thread == 0) {
      for (int i = 0; i < kStages; ++i) mbarrier_init(arrived + i, 1);
      mbarrier_fence();
    }
    __syncthreads();
  }
  const auto fetch = [&](int step) {
    const int stage = step % kStages;
    const unsigned char* const from = static_cast<const unsigned char*>(call.maps) +
                                      (head * segments + segment_of(step)) * Shared::kMap;
    unsigned char* const to = shared + stage * Shared::kMap;
    if constexpr (Bulk) {
      if (thread == 0 && step + 1 < segments) {
        fence_async();
        mbarrier_arrive_expect(arrived + stage, Shared::kMap);
        copy_bulk(to, from, Shared::kMap, arrived + stage);
      }
    } else {
      if (step + 1 < segments) {
#pragma unroll 4
        for (int i = thread * 16; i < Shared::kMap; i += kThreads * 16) copy_16(to + i, from + i);
      }
      copy_commit();
    }
  };
  // Where the fragment d[m][n][2 j ..] stands in a state, or -1.
  const auto place = [&](int m, int n, int j) -> std::int64_t {
    const int v = first + 16 * m + 8 * j + g, k = 8 * (kTiles * warp + n) + 2 * t;
    return v < d_v && k < d_k ? static_cast<std::int64_t>(v) * d_k + k : -1;
  };
  const auto read = [&](float(&d)[2][kTiles][4], int step) {
    const float* const from = states + (head * segments + place_of(step)) * state_size;
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const std::int64_t at = place(m, n, j);
          const float2 both =
              at >= 0 ? *reinterpret_cast<const float2*>(from + at) : make_float2(0.0F, 0.0F);
          d[m][n][2 * j] = both.x;
          d[m][n][2 * j + 1] = both.y;
        }
      }
    }
  };

#pragma unroll
  for (int i = 1; i <= kStages; ++i) fetch(i);
  float state[2][kTiles][4], next[2][kTiles][4], ahead[2][kTiles][4];
  read(state, 1);
  read(ahead, 2);
  for (int step = 1; step + 1 < segments; ++step) {
    // The state for all warps; what the next segment but one adds to it meanwhile.
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
#pragma unroll
        for (int j = 0; j < 4; ++j) next[m][n][j] = ahead[m][n][j];
      }
    }
    if (step + 2 < segments) read(ahead, step + 2);
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const float x = state[m][n][2 * j], y = state[m][n][2 * j + 1];
          const std::uint32_t rounded = pack<bf16>(x, y);
          const float2 back = unpack<bf16>(rounded);
          const int at = State::place(16 * m + 8 * j + g, kTiles * warp + n) + 4 * t;
          *reinterpret_cast<std::uint32_t*>(high + at) = rounded;
          *reinterpret_cast<std::uint32_t*>(low + at) = pack<bf16>(x - back.x, y - back.y);
        }
      }
    }
    if constexpr (Bulk) {
      mbarrier_wait(arrived + step % kStages, static_cast<std::uint32_t>((step - 1) / kStages % 2));
    } else {
      copy_wait<kStages - 1>();
    }
    __syncthreads();
    // Three sums at once: a product waits for the one before in its sum.
    float second[2][kTiles][4] = {}, third[2][kTiles][4] = {};
    const unsigned char* const map = shared + step % kStages * Shared::kMap;
#pragma unroll
    for (int k = 0; k < DK / 16; ++k) {
      std::uint32_t large[2][4], small[2][4];
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        load_a<State>(large[m], high, 16 * m, k);
        load_a<State>(small[m], low, 16 * m, k);
      }
      std::uint32_t right[4], rest[4];  // of 16 channels; of 8 where a warp has no more
      const int n0 = 8 * kTiles * warp / 16 * 16;
      if constexpr (Back) {
        const unsigned char* const tile = map + n0 / 64 * 2 * Map::kBytes;
        load_b<Map>(right, tile, n0 % 64, k);
        load_b<Map>(rest, tile + Map::kBytes, n0 % 64, k);
      } else {
        const unsigned char* const tile = map + k / 4 * 2 * Map::kBytes;
        load_b_transposed<Map>(right, tile, n0, k % 4);
        load_b_transposed<Map>(rest, tile + Map::kBytes, n0, k % 4);
      }
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        const int of = kTiles == 1 ? warp % 2 : n;
        const std::uint32_t b0 = of == 0 ? right[0] : right[2], b1 = of == 0 ? right[1] : right[3];
        const std::uint32_t c0 = of == 0 ? rest[0] : rest[2], c1 = of == 0 ? rest[1] : rest[3];
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          mma_m16n8k16<bf16>(second[m][n], small[m], b0, b1);
          mma_m16n8k16<bf16>(third[m][n], large[m], c0, c1);
          mma_m16n8k16<bf16>(next[m][n], large[m], b0, b1);
        }
      }
    }
    float* const to = states + (head * segments + place_of(step + 1)) * state_size;
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
#pragma unroll
        for (int j = 0; j < 4; ++j) next[m][n][j] += second[m][n][j] + third[m][n][j];
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const std::int64_t at = place(m, n, j);
          if (at >= 0) {
            *reinterpret_cast<float2*>(to + at) =
                make_float2(next[m][n][2 * j], next[m][n][2 * j + 1]);
          }
          state[m][n][2 * j] = next[m][n][2 * j];
          state[m][n][2 * j + 1] = next[m][n][2 * j + 1];
        }
      }
    }
    __syncthreads();  // all have read the state and the map
    fetch(step + kStages);
  }
  if constexpr (!Bulk) copy_wait<0>();
}

// The first blocks have the starts, the others, where there are such, the ends.
template <int DK, bool Bulk>
__global__ void __launch_bounds__(kThreads, 1)
    segment_boundaries(const __grid_constant__ Boundaries call, std::int64_t half) {
  if constexpr (Bulk && !kHopper) {
  } else if (blockIdx.x < half) {
    carry<DK, Bulk, false>(call, blockIdx.x);
  } else {
    carry<DK, Bulk, true>(call, blockIdx.x - half);
  }
}

// Chunks of the segments of a sequence where the first is scanned beside the maps of the others:
// it takes as long as they do with `lead` times their chunks, and the last segments begin when the
// state has been carried to them. All the same otherwise, and where memory is the limit.
struct Lengths {
  double first, other, last;
};
constexpr double kLeadLean = 0.78, kLeadChannel = 0.85;  // on an H200 with 128 x 128

Lengths segment_lengths(std::int64_t chunks, int count, double lead) {
  constexpr int kFewest = 8;              // of a segment
  constexpr std::int64_t kLongest = 512;  // sequence
  const auto all = static_cast<double>(chunks);
  const int fewer = std::min(count - 2, 3);
  const double other = (all + fewer) / (lead + count - 1);
  if (lead == 1.0 || other < kFewest || chunks > kLongest)
    return {all / count, all / count, all / count};
  return {lead * other, other, other - fewer};
}

void set_parts(Segments& segments, std::int64_t chunks, double lead) {
  if (!segments.lead) return;
  const Lengths lengths = segment_lengths(chunks, segments.count, lead);
  if (lengths.first == lengths.other) return;
  const auto part = [&](double length) {
    return static_cast<int>(std::lround(1024.0 * length / static_cast<double>(chunks)));
  };
  segments.first_part = part(lengths.first);
  segments.last_part = part(lengths.last);
}

}  // namespace

Segments plan_segments(std::int64_t sequences, std::int64_t value_heads, int d_k, int d_v,
                       std::int64_t chunks, int multiprocessors, bool back, bool lean,
                       double* microseconds) {
  constexpr int kMost = 16, kFewestChunks = 4;
  // Microseconds on an H200 with 128 x 128: a chunk of a block of one tile or two, in a scan
  // without outputs, with outputs, and in one of both directions; a kernel besides its chunks; the
  // kernel between, and a step of it or of a scan that carries its state itself; a leading segment
  // besides its chunks; and the reads and writes of a chunk and tile while all multiprocessors are
  // busy, alone in a block or not.
  struct Chunk {
    double tile, pair, tile_moved, pair_moved;
  };
  constexpr Chunk kState{0.97, 1.31, 0.0, 0.0}, kOutput{1.14, 1.92, 0.0120, 0.0104};
  constexpr Chunk kMaking{1.40, 2.25, 0.0118, 0.0126};  // outputs, of lean records
  constexpr Chunk kBack{1.47, 2.37, 0.0141, 0.0141}, kBackMaps{1.47, 1.90, 0.0, 0.0};
  constexpr double kStart = 8.0, kBetween = 1.7, kStep = 2.3, kCarry = 1.5, kLead = 3.0;
  const std::int64_t heads = sequences * value_heads;
  const int values = value_tiles(d_v);
  const auto blocks = [](int count, int tiles) { return (count + tiles - 1) / tiles; };
  // Blocks over the same number of chunks, that many a head; `all` of one tile each.
  struct Blocks {
    const Chunk& chunk;
    double length;
    int tiles;
    std::int64_t units, all;
  };
  // The time of a kernel of one or two kinds of them.
  const auto time = [&](std::initializer_list<Blocks> kinds) {
    double count = 0.0, chain = 0.0, moved = 0.0;
    for (const Blocks& kind : kinds) {
      const bool alone = kind.tiles == 1;
      count += static_cast<double>(heads * kind.units);
      chain = std::max(chain, kind.length * (alone ? kind.chunk.tile : kind.chunk.pair));
      moved += kind.length * static_cast<double>(heads * kind.all) *
               (alone ? kind.chunk.tile_moved : kind.chunk.pair_moved);
    }
    return kStart + std::max(std::ceil(count / multiprocessors) * chain, moved);
  };
  Segments best;
  double least = std::numeric_limits<double>::max();
  const auto cost = [&](const Segments& plan) {
    const auto even = static_cast<double>((chunks + plan.count - 1) / plan.count);
    Lengths lengths{even, even, even};
    if (plan.lead && lean) lengths = segment_lengths(chunks, plan.count, kLeadLean);
    const auto scans = [&](int segments, double length) {
      const std::int64_t count = (back ? 2 : 1) * std::int64_t{segments};
      return Blocks{back   ? kBack
                    : lean ? kMaking
                           : kOutput,
                    length, plan.scan_tiles, count * blocks(values, plan.scan_tiles),
                    count * values};
    };
    const int first = back ? plan.count : plan.lead ? 0 : 1, tiles = plan.map_tiles;
    const int both = values + value_tiles(d_k), others = plan.count - 2;
    const Blocks maps{back ? kBackMaps : kState, lengths.other, tiles,
                      first * std::int64_t{blocks(values, tiles)} + others * blocks(both, tiles),
                      0};
    if (plan.count == 1) return time({scans(1, even)});
    const double between = plan.count < 3                          ? 0.0
                           : back || (lean && plan.scan_tiles > 1) ? kBetween + kStep * others
                                                                   : kCarry * others;
    if (plan.lead) {
      return time({scans(1, lengths.first), maps}) + kLead + between +
             time({scans(plan.count - 1, lengths.other)});
    }
    return time({maps}) + between + time({scans(plan.count, even)});
  };
  for (int count = 1; count <= kMost && (count == 1 || chunks >= count * kFewestChunks); ++count) {
    Segments cheapest;
    double lowest = std::numeric_limits<double>::max();
    for (int choice = 0; choice < 8; ++choice) {
      Segments plan;
      plan.count = count;
      plan.scan_tiles = 1 + choice % 2;
      plan.map_tiles = 1 + choice / 2 % 2;
      plan.lead = choice >= 4;
      if (plan.lead && (back || count < 3)) break;
      const double microseconds_of_plan = cost(plan);
      if (microseconds_of_plan < lowest) lowest = microseconds_of_plan, cheapest = plan;
    }
    if (lowest < 0.97 * least) {  // fewer segments where there is little in it
      least = lowest;
      best = cheapest;
    }
  }
  if (microseconds != nullptr) *microseconds = least;
  return best;
}

namespace {

// Of a call with lean records; one where it does not pay.
Windows plan_windows(const TwoKeyCall& call, std::int64_t chunks, int multiprocessors) {
  // Microseconds on an H200 with 128 x 128: a chunk of a head on one multiprocessor in preparation,
  // a chunk of a block of two tiles in the scan.
  constexpr double kPrepare = 1.38, kScan = 2.42;
  constexpr int kCount = 6;
  constexpr std::int64_t kFewest = 512;  // chunks: a window costs about 30 us
  Windows windows;
  const Rows& rows = call.rows;
  const bool even = rows.sequences == 1 || rows.time > 0;
  if (!even || !call.delta || key_columns(call.d_k) != 128) return windows;
  // Blocks of two tiles that leave a quarter to a half of the multiprocessors idle.
  const std::int64_t heads = rows.sequences * call.value_heads;
  const std::int64_t blocks = heads * ((value_tiles(call.d_v) + 1) / 2);
  const std::int64_t idle = multiprocessors - blocks;
  if (idle > multiprocessors / 2 || idle < multiprocessors / 4 || chunks < kFewest) return windows;
  windows.count = kCount;
  windows.blocks = static_cast<int>(idle);
  windows.chunks = chunks;
  // What is prepared beside all windows but the last takes as long as their scan.
  const double beside = static_cast<double>(idle) * kScan /
                        (kPrepare * static_cast<double>(heads)) * (kCount - 1) / kCount;
  windows.first = static_cast<std::int64_t>(static_cast<double>(chunks) * (1.0 - beside));
  return windows;
}

}  // namespace

std::int64_t Windows::prepared(int number) const {
  if (number >= count - 1) return chunks;
  return std::max(first + (chunks - first) * number / (count - 1), chunks * (number + 1) / count);
}

ForwardPlan plan_forward(const TwoKeyCall& call, std::int64_t chunks, bool takes_lean,
                         int multiprocessors) {
  const auto plan = [&](bool lean, double& microseconds) {
    return plan_segments(call.rows.sequences, call.value_heads, call.d_k, call.d_v, chunks,
                         multiprocessors, false, lean, &microseconds);
  };
  ForwardPlan full, lean;
  double full_time = 0.0, lean_time = 0.0;
  full.segments = plan(false, full_time);
  if (call.gate == GateKind::channel) set_parts(full.segments, chunks, kLeadChannel);
  if (!takes_lean) return full;
  // Preparation of a record with all multiprocessors of an H200, microseconds. In one segment,
  // where the blocks of many sequences come one behind the other, less than a sixteenth to be won
  // may be lost.
  constexpr double kFull = 0.0126, kLean = 0.0085, kWorth = 0.94;
  lean.lean = true;
  lean.segments = plan(true, lean_time);
  set_parts(lean.segments, chunks, kLeadLean);
  lean.windows = plan_windows(call, chunks, multiprocessors);
  const auto records = static_cast<double>(call.rows.chunks * call.value_heads);
  const double worth = lean.segments.count == 1 ? kWorth : 1.0;
  const bool pays = lean_time + kLean * records < worth * (full_time + kFull * records);
  return lean.windows.count > 1 || pays ? lean : full;
}

void launch_segment_boundaries(const ChunkCall& chunk, int segments, const SegmentMaps& maps,
                               float* starts, float* ends, Engine engine, void* stream) {
  if (segments < 3) return;  // the second segment starts where the first ends
  const TwoKeyCall& call = chunk.call;
  const int blocks_per_head = (call.d_v + kRows - 1) / kRows;
  const Boundaries boundaries{maps.m, starts, ends, segments, call.d_k, call.d_v, blocks_per_head};
  const std::int64_t half = call.rows.sequences * call.value_heads * blocks_per_head;
  const auto start = [&](auto dk, auto bulk) {
    launch(segment_boundaries<dk, bulk>, ends != nullptr ? 2 * half : half, kThreads,
           SplitShared<dk, bulk>::kBytes, stream, boundaries, half);
  };
  const auto with_engine = [&](auto dk) {
    engine == Engine::wgmma ? start(dk, std::true_type{}) : start(dk, std::false_type{});
  };
  key_columns(call.d_k) == 64 ? with_engine(std::integral_constant<int, 64>{})
                              : with_engine(std::integral_constant<int, 128>{});
}

}  // namespace rankone::recurrence::cuda
