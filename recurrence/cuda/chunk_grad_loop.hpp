#pragma once

// The loop of the gradient kernel over its work, the same for all kinds of decay, and the
// copies of the third group.

#include "recurrence/cuda/chunk_grad_parts.hpp"

namespace rankone::recurrence::cuda {

// Finite: a factor of nothing must leave it nothing.
__device__ __forceinline__ float exp2_bounded(float x) {
  return exp2_fast(x < 127.0F ? x : 127.0F);
}

// Beyond -10000 every log decay is the same zero, but sums with it keep what else is in them.
__device__ __forceinline__ float bounded_decay(float g) { return g < -10000.0F ? -10000.0F : g; }

// The decays and gains of a head, by one warp; two rows (lane, lane + 32) per lane, which it
// asked for earlier.
struct GradGates {
  float g[2], gain[2];

  __device__ __forceinline__ void ask(const GradCall& call, const GradItem& item,
                                      std::int64_t head) {
    const TwoKeyCall& sizes = call.chunk.call;
    const int lane = static_cast<int>(threadIdx.x % 32);
    const auto* gains = reinterpret_cast<const float*>(call.chunk.record(item.chunk, head) +
                                                       call.chunk.layout.gain);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = lane + 32 * i;
      g[i] = sizes.gate == GateKind::scalar && row < item.count
                 ? gate_at(sizes.g, (item.first + row) * sizes.value_heads + head)
                 : 0.0F;
      gain[i] = gains[row];
    }
  }

  // Sums in double, so that differences are right to float32 for whatever decays come
  // together. Writes the gains and, as two floats, the sums up to each row; the rest is
  // returned: the lane's own sums, and the whole.
  __device__ __forceinline__ double write(float* high, float* low, float* gains,
                                          double (&sum)[2]) const {
    const int lane = static_cast<int>(threadIdx.x % 32);
    double before = 0.0;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      sum[i] = static_cast<double>(bounded_decay(g[i])) * 1.4426950408889634;
#pragma unroll
      for (int delta = 1; delta < 32; delta *= 2) {
        const double other = __shfl_up_sync(0xffffffffU, sum[i], delta);
        if (lane >= delta) sum[i] += other;
      }
      sum[i] += before;
      before = __shfl_sync(0xffffffffU, sum[i], 31);
      const int row = lane + 32 * i;
      high[row] = static_cast<float>(sum[i]);
      low[row] = static_cast<float>(sum[i] - static_cast<double>(high[row]));
      gains[row] = gain[i];
    }
    return before;
  }
  __device__ __forceinline__ void write(GradRows& rows) const {
    const int lane = static_cast<int>(threadIdx.x % 32);
    double sum[2];
    const double whole = write(rows.high, rows.low, rows.gain, sum);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = lane + 32 * i;
      rows.in[row] = exp2_bounded(static_cast<float>(sum[i]));
      rows.out[row] = exp2_bounded(static_cast<float>(whole - sum[i]));
      const std::uint32_t bits = float_to_bits(gain[i]);
      rows.mantissa[row] =
          (bits & 0x7f800000U) == 0 ? 1.0F : bits_to_float((bits & 0x807fffffU) | 0x3f800000U);
    }
    if (lane == 0) rows.keep = exp2_bounded(static_cast<float>(whole));
  }
};

// Where a chunk and head have their numbers per row between the passes: dg, then db.
__device__ __forceinline__ float* sums_between(const GradCall& call, const GradStep& step) {
  return call.chunk.gate_sums +
         (step.item().chunk * call.chunk.call.value_heads + step.value_head(call)) * 2 * kChunkRows;
}

// db = w . dw / b, from what part_gain has of it for every half; by one warp.
__device__ __forceinline__ void finish_gains(const GradCall& call, const GradStep& step,
                                             const GradRows& rows) {
  const TwoKeyCall& sizes = call.chunk.call;
  float* const sums = sums_between(call, step) + kChunkRows;
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const int i = static_cast<int>(threadIdx.x % 32) + 32 * j;
    float d_b = rows.part_gain[0][i] + rows.part_gain[1][i];
    if (step.pass > 0) d_b += sums[i];
    if (step.pass + 1 < call.passes) {
      sums[i] = d_b;
    } else if (i < step.item().count) {
      put_gate(call.back.d_b, sizes.b.dtype,
               (step.item().first + i) * sizes.value_heads + step.value_head(call), d_b);
    }
  }
}

// Barriers: the tiles of a stage have been read (by the first two groups, for the third); the keys
// have, and sums per row are there, likewise; gradients of e are there for the third; one
// of rows, and one among the threads of the third.
inline constexpr int kGradRead = 1, kGradParts = 3, kGradSum = 4, kGradRows = 5, kGradLoads = 6;

// One tile of 64 rows and columns, of which `rows` and `columns` are there, `stride` bytes apart,
// by the third group.
__device__ __forceinline__ void load_square(unsigned char* tile, const unsigned char* first,
                                            std::int64_t stride, int rows, int columns) {
  using T = RowTile<64, 64>;
  const int thread = static_cast<int>(threadIdx.x % 128), row = thread / 8, piece = thread % 8;
  const int inside = piece * 8 < columns ? rows : 0;
  const unsigned char* from = first + row * stride + piece * 16;
  unsigned char* to = tile + T::place(row, piece);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const bool valid = row + 16 * i < inside;
    copy_16(to + i * 16 * 128, valid ? from : first, valid);
    from += 16 * stride;
  }
}

template <int Columns>
class GradLoader {
  using Shared = GradShared<Columns>;

 public:
  __device__ GradLoader(const GradCall& call, unsigned char* shared, unsigned char* stages,
                        GradRows& rows)
      : call_(call), shared_(shared), stages_(stages), step_(call, rows.items) {}

  // The chunk of the next step, if it is another one; at first that of the first step.
  __device__ void find_rows() {
    if (!step_.valid(call_)) return;
    const TwoKeyCall& sizes = call_.chunk.call;
    const auto heads = static_cast<unsigned>(sizes.heads);
    GradItem item;
    item.chunk = step_.at / heads;
    item.key_head = step_.at % heads;
    const Rows& sequences = sizes.rows;
    if (sequences.boundaries ==
        nullptr) {  // 32 bits are enough for chunks, and their division fast
      const auto per_sequence =
          static_cast<unsigned>((sequences.time + kChunkRows - 1) / kChunkRows);
      const auto number = static_cast<unsigned>(item.chunk), sequence = number / per_sequence;
      const int before = static_cast<int>(number - sequence * per_sequence) * kChunkRows;
      const std::int64_t left = sequences.time - before;
      item.first = sequence * sequences.time + before;
      item.count = static_cast<int>(left < kChunkRows ? left : kChunkRows);
    } else {
      const Span span = sequences.span(item.chunk);
      item.first = span.first;
      // Without rows there is nothing to write.
      const std::int64_t length = sequences.end(span.sequence) - sequences.begin(span.sequence);
      item.count = sizes.takes(length) ? span.count : 0;
    }
    step_.item() = item;
  }

  __device__ void load_next() {
    if (step_.valid(call_)) {
      load_values(stages_ + stage_ * Shared::kStage);
      const std::uint32_t before = step_.at;
      step_.advance(call_);
      // By one thread; the others look at it behind a barrier.
      if (step_.at != before && threadIdx.x % 128 == 127) find_rows();
    }
    stage_ = stage_ + 1 == call_.stages ? 0 : stage_ + 1;
    copy_commit();
  }

  __device__ void load_keys(const GradStep& step) const {
    const TwoKeyCall& sizes = call_.chunk.call;
    const std::int64_t stride = sizes.heads * sizes.d_k * 2;
    const std::int64_t offset =
        step.item().first * stride + (step.item().key_head * sizes.d_k + step.pass * Columns) * 2;
    const auto rows = [&](int to, const void* from) {
#pragma unroll
      for (int i = 0; i < Columns / 64; ++i) {
        load_square(shared_ + to + i * RowTile<64, 64>::kBytes,
                    static_cast<const unsigned char*>(from) + offset + i * 128, stride,
                    step.item().count, sizes.d_k - step.pass * Columns - 64 * i);
      }
    };
    rows(Shared::kQuery, sizes.q);
    rows(Shared::kWrite, sizes.w);
    if (sizes.delta && !sizes.same_key) rows(Shared::kErase, sizes.e);
  }

 private:
  __device__ void load_values(unsigned char* stage) const {
    const ChunkCall& chunk = call_.chunk;
    const TwoKeyCall& sizes = chunk.call;
    const std::int64_t head = step_.value_head(call_), stride = sizes.value_heads * sizes.d_v * 2;
    const std::int64_t offset =
        step_.item().first * stride + (head * sizes.d_v + step_.tile * kValueTile) * 2;
    const auto rows = [&](int to, const void* from) {
      load_square(stage + to, static_cast<const unsigned char*>(from) + offset, stride,
                  step_.item().count, sizes.d_v - step_.tile * kValueTile);
    };
    rows(Shared::kOutput, call_.back.d_o);
    if (sizes.delta) rows(Shared::kValue, chunk.d_value);
    rows(Shared::kUpdate, chunk.z);
    constexpr int kBytes = Shared::State::kBytes;
    const std::int64_t tile = 2 * chunk.state_tile(step_.item().chunk, head, step_.tile) +
                              step_.pass * kBytes + threadIdx.x % 128 * 16;
    const auto* state = static_cast<const unsigned char*>(chunk.states) + tile;
    const auto* back = static_cast<const unsigned char*>(chunk.d_states) + tile;
    unsigned char* to = stage + Shared::kState + threadIdx.x % 128 * 16;
#pragma unroll
    for (int i = 0; i < kBytes; i += 2048) {
      copy_16(to + i, state + i);
      copy_16(to + Shared::State::kBytes + i, back + i);
    }
  }

  const GradCall& call_;
  unsigned char *shared_, *stages_;
  GradStep step_;
  int stage_ = 0;
};

// `Head` says what to do for a value head: start_head() may ask for more of it, and finish_head()
// makes gradients of the sums over value columns; all call it, the third group with what to do when
// the keys have been read (after kGradParts).
template <class Format, class Engine, int Columns, class Head>
__device__ __forceinline__ void work_off(const GradCall& call, Head& head, unsigned char* shared,
                                         unsigned char* stages) {
  const TwoKeyCall& sizes = call.chunk.call;
  const bool loads = grad_group() == 2;
  GradStep step(call, head.rows.items);
  if (!step.valid(call)) return;

  // Copies are committed in a fixed order: of every step its values and then keys, if any.
  GradLoader<Columns> loader(call, shared, stages, head.rows);
  if (threadIdx.x == 2 * 128 + 127) loader.find_rows();
  __syncthreads();
  if (loads) {
    for (int i = 0; i < call.stages; ++i) {
      loader.load_next();
      if (i == 0) loader.load_keys(step);
      copy_commit();
      barrier_sync(kGradLoads, 128);
    }
  }
  GradGates gates;
  typename Head::Sums sums;
  sums.clear();
  int stage = 0;
  while (step.valid(call)) {
    if (loads) {
      if (call.stages == 1) {
        copy_wait<1>();
      } else {
        copy_wait<3>();
      }
      fence_async();
    }
    __syncthreads();
    if (step.tile == 0) {
      head.start_head(step);
      if (threadIdx.x / 32 == 8) gates.ask(call, step.item(), step.value_head(call));
    }
    add_values<Format, Engine>(sums, stages + stage * GradShared<Columns>::kStage, sizes.delta,
                               head.gated);
    if (loads) {
      if (step.tile == 0 && threadIdx.x / 32 == 8) gates.write(head.rows);
      barrier_sync(kGradRead + stage, kGradThreads);
      loader.load_next();
    } else {
      barrier_arrive(kGradRead + stage, kGradThreads);
    }
    stage = stage + 1 == call.stages ? 0 : stage + 1;
    const GradStep done = step;
    step.advance(call);
    if (done.last_tile(call)) {
      if (loads) {
        // The keys were committed with the last step before the pass.
        if (done.member == 0 && done.tile == 0) {
          copy_wait<1>();
        } else {
          copy_wait<3>();
        }
        fence_async();
      }
      __syncthreads();  // the keys and gates of the head
      head.finish_head(done, sums, [&] {
        if (!done.last_of_pass(call) || !step.valid(call)) return;
        loader.load_keys(step);
      });
      sums.clear();  // here, so that finish_head() has their registers
    }
    if (loads) copy_commit();
  }
  if (loads) copy_wait<0>();
}

}  // namespace rankone::recurrence::cuda
