// The diagonal preconditioner: a scan over time for every channel, cut into chunks of 64
// rows. A block has a chunk of one head, its four warps 16 rows each, a lane 4 or 8 channels. It
// reads its rows once, into shared memory, and gets the state before them from the blocks before it
// (precondition_scan.hpp).

#include "recurrence/cuda/precondition_chunk.hpp"
#include "recurrence/cuda/precondition_wide.hpp"

namespace rankone::recurrence::cuda {
namespace {

using namespace precondition_chunk;

// ---- Before a scan -----------------------------------------------------------------------------

constexpr int kHeads = 32, kStrands = 16;  // of a block; a strand takes every sixteenth row
constexpr int kStartThreads = kHeads * kStrands;

__device__ void clear(float* words, std::int64_t count) {
  const float none = rankone::cuda::bits_to_float(kUnpublished);
  for (std::int64_t i = static_cast<int>(threadIdx.x); i < count; i += kStartThreads) {
    words[i] = none;
  }
}

// A block takes some heads of a chunk: their decays, and nothing published in one scan or two. The
// last blocks take the sequences: an empty one ends as it begins.
__global__ void __launch_bounds__(kStartThreads)
    start_scan(PreconditionCall call, ChunkScan other, const float* initial, float* final,
               int tiles) {
  const std::int64_t number = blockIdx.x / static_cast<unsigned>(tiles);
  const std::int64_t states = call.heads * call.d_k;
  const int thread = static_cast<int>(threadIdx.x);
  if (number >= call.rows.chunks) {
    const std::int64_t sequence = blockIdx.x - call.rows.chunks * tiles;
    if (call.rows.begin(sequence) != call.rows.end(sequence)) return;
    for (std::int64_t i = thread; i < states; i += kStartThreads) {
      final[sequence * states + i] = initial != nullptr ? initial[sequence * states + i] : 0.0F;
    }
    return;
  }
  const std::int64_t first_head = (blockIdx.x - number * tiles) * kHeads;
  const std::int64_t heads = call.heads - first_head < kHeads ? call.heads - first_head : kHeads;
  const std::int64_t at = number * states + first_head * call.d_k, count = heads * call.d_k;
  if (call.scan.sums != nullptr) clear(call.scan.sums + at, count);
  if (other.sums != nullptr) clear(other.sums + at, count);
  if (number % kScanWindow == 0) {
    const std::int64_t slot = number / kScanWindow * states + first_head * call.d_k;
    if (call.scan.windows != nullptr) clear(call.scan.windows + slot, count);
    if (other.sums != nullptr) clear(other.windows + slot, count);
  }

  auto* products = reinterpret_cast<float*>(rankone::cuda::shared_memory());  // [strands, heads]
  const ChunkPlace place(call.rows, kPreconditionChunk, static_cast<int>(number));
  const int strand = thread / kHeads, column = thread % kHeads;
  constexpr int kMost = kPreconditionChunk / kStrands;  // rows of a strand
  float g[kMost], decay = 1.0F;
#pragma unroll
  for (int i = 0; i < kMost; ++i) {
    const int r = strand + i * kStrands;
    const std::int64_t at_gate = (place.first + r) * call.heads + first_head + column;
    g[i] = column < heads && r < place.count ? load(call.g, at_gate) : 0.0F;
  }
#pragma unroll
  for (int i = 0; i < kMost; ++i) decay *= std::exp(g[i]);
  products[strand * kHeads + column] = decay;
  __syncthreads();
  if (strand != 0 || column >= heads) return;
  for (int other_strand = 1; other_strand < kStrands; ++other_strand) {
    decay *= products[other_strand * kHeads + column];
  }
  call.scan.decays[number * call.heads + first_head + column] = decay;
}

// ---- The states between the chunks alone ------------------------------------------------------

template <class L>
__global__ void __launch_bounds__(L::kThreads, L::kBlocks) scan_states(PreconditionCall call) {
  const Chunk<L> chunk(call, blockIdx.x);
  chunk.look_back(call.scan, false).load_decays(chunk.window(false));
  chunk.load_gates();
  chunk.sum_rows();
  chunk.join(call.scan, chunk.shared.sums, false, call.initial, call.final, call.states, false);
}

// ---- The rows ----------------------------------------------------------------------------------

template <class L, PreconditionerKind Kind>
__global__ void __launch_bounds__(L::kThreads, L::kBlocks) emit_rows(PreconditionCall call) {
  constexpr int kSize = L::kSize, kGroup = Chunk<L>::kGroup;
  const Chunk<L> chunk(call, blockIdx.x);
  const bool tied = call.target.data == call.k.data;
  typename Lane<L>::Row next[kGroup] = {};  // rows of another target than k
  if (!tied) chunk.read_group(next, call.target, 0);
  chunk.look_back(call.scan, false).load_decays(chunk.window(false));
  chunk.load_gates();
  chunk.sum_rows();
  chunk.join(call.scan, chunk.shared.sums, false, call.initial, call.final, call.states, true);
  float state[kSize];
  chunk.lane.load_row(state, chunk.shared.sums + chunk.warp * chunk.d_k);
  const auto factor = chunk.template factor<Kind>();
  auto* row = static_cast<typename L::Format*>(call.out.data) + chunk.first_at();
#pragma unroll 1
  for (int first = 0; first < chunk.count; first += kGroup) {
    float decays[kGroup], gains[kGroup], targets[kGroup][kSize];
    chunk.load_group(decays, chunk.shared.decay, first);
    chunk.load_group(gains, chunk.shared.gain, first);
#pragma unroll
    for (int i = 0; i < kGroup; ++i) chunk.lane.get(targets[i], next[i]);
    if (!tied) chunk.read_group(next, call.target, first + kGroup);
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      float k[kSize];
      chunk.lane.load_row(k, chunk.key_row(first + i));
#pragma unroll
      for (int c = 0; c < kSize; ++c) {
        state[c] = precondition_step(state[c], decays[i], gains[i], k[c]);
        k[c] = factor.value(state[c], c) * (tied ? k[c] : targets[i][c]);
      }
      if (first + i < chunk.count) chunk.lane.store_row(row, k);
      row += chunk.stride();
    }
  }
}

// ---- Tied keys of 128 channels of 16 bits ------------------------------------------------------

constexpr int kWideThreads = 128;

template <class F>
__global__ void __launch_bounds__(kWideThreads, 8) scan_states_wide(PreconditionCall call) {
  namespace wide = precondition_wide;
  const wide::Chunk<F, kWideThreads> chunk(call, blockIdx.x);
  wide::Word<F> keys[wide::Segments<kWideThreads>::kRows];
  chunk.read_rows(keys, call.k, 0);
  const auto key = [&](int r, float(&to)[wide::kSize]) { keys[r].get(to); };
  const auto gates = chunk.read_gates();
  chunk.look_back(call.scan, false).load_decays(chunk.window(false));
  chunk.put_gates(gates, key);
  chunk.sum_rows(key);
  chunk.join(call.scan, false, call.initial, call.final, call.states, false);
}

template <class F>
__global__ void __launch_bounds__(kWideThreads, 6) emit_rows_wide(PreconditionCall call) {
  namespace wide = precondition_wide;
  constexpr int kGroup = wide::Chunk<F, kWideThreads>::kGroup, kSize = wide::kSize,
                kRows = wide::Segments<kWideThreads>::kRows;
  const wide::Chunk<F, kWideThreads> chunk(call, blockIdx.x);
  wide::Word<F> keys[kRows];
  chunk.read_rows(keys, call.k, 0);
  const auto key = [&](int r, float(&to)[kSize]) { keys[r].get(to); };
  const auto gates = chunk.read_gates();
  chunk.look_back(call.scan, false).load_decays(chunk.window(false));
  chunk.put_gates(gates, key);
  chunk.sum_rows(key);
  chunk.join(call.scan, false, call.initial, call.final, call.states, true);
  float state[kSize];
  chunk.load_slots(state, chunk.shared.sums + chunk.segment * wide::kWidth);
  const wide::Factor factor(chunk);
  auto* row = static_cast<F*>(call.out.data) + chunk.first_at();
#pragma unroll
  for (int first = 0; first < kRows; first += kGroup) {
    float decays[kGroup], gains[kGroup];
    chunk.load_group(decays, chunk.shared.decay, first);
    chunk.load_group(gains, chunk.shared.gain, first);
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      const int r = first + i;
      float k[kSize], factors[kSize];
      keys[r].get(k);
#pragma unroll
      for (int c = 0; c < kSize; ++c) {
        state[c] = precondition_step(state[c], decays[i], gains[i], k[c]);
      }
      factor.values(factors, state);
#pragma unroll
      for (int c = 0; c < kSize; ++c) k[c] *= factors[c];
      if (r < chunk.count) wide::store_if(true, row, k);
      row += chunk.stride();
    }
  }
}

}  // namespace

void launch_precondition_start(const PreconditionCall& call, const ChunkScan& other,
                               const float* initial, float* final, void* stream) {
  const auto tiles = static_cast<int>((call.heads + kHeads - 1) / kHeads);
  const bool empty = call.rows.boundaries != nullptr || call.rows.time == 0;
  const std::int64_t sequences = final != nullptr && empty ? call.rows.sequences : 0;
  rankone::cuda::launch(start_scan, call.rows.chunks * tiles + sequences, kStartThreads,
                        kStartThreads * sizeof(float), stream, call, other, initial, final, tiles);
}

void launch_precondition(const PreconditionCall& call, void* stream) {
  if (precondition_wide::fits(call, call.out)) {
    return precondition_wide::with_format(call, [&](auto format) {
      using F = decltype(format);
      const auto kernel = call.out.data == nullptr ? scan_states_wide<F> : emit_rows_wide<F>;
      rankone::cuda::launch(kernel, call.rows.chunks * call.heads, kWideThreads,
                            precondition_wide::Shared<F, kWideThreads>::bytes(false), stream, call);
    });
  }
  choose(call, in_words(call.d_k, call.k, call.target, call.out), [&]<class L>() {
    using Kind = PreconditionerKind;
    const auto kernel = call.out.data == nullptr ? scan_states<L>
                        : call.kind == Kind::atk ? emit_rows<L, Kind::atk>
                                                 : emit_rows<L, Kind::atq>;
    rankone::cuda::launch(kernel, call.rows.chunks * call.heads, L::kThreads,
                          Shared<L>::bytes(call.d_k, false), stream, call);
  });
}

}  // namespace rankone::recurrence::cuda
