// Log decays and their gradients: element-wise over rows of `heads * channels` columns. A thread
// has its columns for a block of rows, so that what belongs to a column (bias, rate, the sums for
// their gradients) stays in registers.

#include "recurrence/cuda/decay.hpp"

#include "recurrence/cuda/array.hpp"
#include "recurrence/cuda/sums.hpp"

namespace rankone::recurrence::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kMostRowsOfThread = 64;
constexpr std::int64_t kEnoughBlocks = 512;  // to fill any GPU

// `across` threads for a row of columns, `down` rows at a time.
struct Cut {
  std::int64_t width, columns;  // columns: blocks of across * Vector columns
  int across, down, rows_of_thread;

  template <int Vector>
  static Cut of(const DecayCall& call) {
    const std::int64_t width = call.heads * call.channels, units = width / Vector;
    const int across = units < kThreads ? static_cast<int>(units) : kThreads;
    Cut cut{width, (units + across - 1) / across, across, kThreads / across, 1};
    // A function of the call alone: it decides the order of the sums.
    while (cut.rows_of_thread < kMostRowsOfThread &&
           cut.row_blocks(call.rows) * cut.columns > kEnoughBlocks) {
      cut.rows_of_thread *= 2;
    }
    return cut;
  }
  __host__ __device__ std::int64_t block_rows() const {
    return std::int64_t{rows_of_thread} * down;
  }
  std::int64_t row_blocks(std::int64_t rows) const {
    return (rows + block_rows() - 1) / block_rows();
  }
};

// What one thread works on.
template <int Vector>
struct Share {
  bool any;
  int slot;               // of the rows taken at a time
  std::int64_t column;    // the first of Vector
  std::int64_t row, end;  // row, row + down, ... below end
  std::int64_t row_block;
  float bias[Vector], rate[Vector];

  __device__ Share(const DecayCall& call, const Cut& cut) {
    const int thread = static_cast<int>(threadIdx.x);
    slot = thread / cut.across;
    row_block = blockIdx.x / cut.columns;
    const std::int64_t unit =
        (blockIdx.x - row_block * cut.columns) * cut.across + (thread - slot * cut.across);
    column = unit * Vector;
    any = slot < cut.down && column < cut.width;
    row = row_block * cut.block_rows() + slot;
    end = (row_block + 1) * cut.block_rows();
    if (end > call.rows) end = call.rows;
    if (!any) return;
    load(bias, call.dt_bias, column);
#pragma unroll
    for (int i = 0; i < Vector; ++i) {
      const std::int64_t head = (column + i) / call.channels;
      rate[i] = decay_rate(call.constants.form, load(call.a_log, head), head);
    }
  }
};

template <int Vector>
__global__ void __launch_bounds__(kThreads) decay_rows(DecayCall call, Cut cut) {
  const Share<Vector> share(call, cut);
  if (!share.any) return;
  with_decay<float>(call.constants, [&](auto policy) {
#pragma unroll 2
    for (std::int64_t row = share.row; row < share.end; row += cut.down) {
      const std::int64_t at = row * cut.width + share.column;
      float x[Vector], g[Vector], dt[Vector];
      load(x, call.x, at);
#pragma unroll
      for (int i = 0; i < Vector; ++i) {
        const auto value = policy.value(x[i] + share.bias[i], share.rate[i]);
        g[i] = value.g;
        dt[i] = value.dt;
      }
      store(call.g, at, g);
      store(call.dt, at, dt);
    }
  });
}

template <int Vector>
__global__ void __launch_bounds__(kThreads)
    decay_rows_back(DecayCall call, DecayBack back, Cut cut) {
  const Share<Vector> share(call, cut);
  float d_bias[Vector] = {}, d_a_log[Vector] = {};
  if (share.any) {
    with_decay<float>(call.constants, [&](auto policy) {
#pragma unroll 2
      for (std::int64_t row = share.row; row < share.end; row += cut.down) {
        const std::int64_t at = row * cut.width + share.column;
        float x[Vector], d_g[Vector], d_dt[Vector], d_x[Vector];
        load(x, call.x, at);
        load(d_g, back.d_g, at);
        load(d_dt, back.d_dt, at);
#pragma unroll
        for (int i = 0; i < Vector; ++i) {
          const auto d = policy.vjp(x[i] + share.bias[i], share.rate[i], d_g[i], d_dt[i]);
          d_x[i] = d.x;
          d_bias[i] += d.x;
          d_a_log[i] += d.a_log;
        }
        store(back.d_x, at, d_x);
      }
    });
  }
  if (back.partials == nullptr) return;

  // The rows of the block in the order of their slots, for the bias and then for a_log.
  auto* sums = reinterpret_cast<float*>(rankone::cuda::shared_memory());
  const int thread = static_cast<int>(threadIdx.x), columns = cut.across * Vector;
  const std::int64_t first = (blockIdx.x - share.row_block * cut.columns) * columns;
  for (int part = 0; part < 2; ++part) {
    __syncthreads();
    if (share.slot < cut.down) {
#pragma unroll
      for (int i = 0; i < Vector; ++i) {
        sums[thread * Vector + i] = part == 0 ? d_bias[i] : d_a_log[i];
      }
    }
    __syncthreads();
    for (int column = thread; column < columns && first + column < cut.width; column += kThreads) {
      float sum = 0.0F;
      for (int slot = 0; slot < cut.down; ++slot) sum += sums[slot * columns + column];
      back.partials[(share.row_block * 2 + part) * cut.width + first + column] = sum;
    }
  }
}

bool wide(const DecayCall& call) {
  return in_words(call.heads * call.channels, call.x, call.dt_bias, call.g, call.dt);
}
bool wide(const DecayCall& call, const DecayBack& back) {
  return wide(call) && in_words(call.heads * call.channels, back.d_g, back.d_dt, back.d_x);
}

template <int Vector>
void start(const DecayCall& call, void* stream) {
  const Cut cut = Cut::of<Vector>(call);
  rankone::cuda::launch(decay_rows<Vector>, cut.row_blocks(call.rows) * cut.columns, kThreads, 0,
                        stream, call, cut);
}
template <int Vector>
void start_back(const DecayCall& call, const DecayBack& back, void* stream) {
  const Cut cut = Cut::of<Vector>(call);
  const std::int64_t parts = cut.row_blocks(call.rows);
  rankone::cuda::launch(decay_rows_back<Vector>, parts * cut.columns, kThreads,
                        kThreads * Vector * sizeof(float), stream, call, back, cut);
  launch_sums(back.d_dt_bias, back.partials, parts, 2 * cut.width, cut.width, 1, 1.0F, stream);
  launch_sums(back.d_a_log, back.partials + cut.width, parts, 2 * cut.width, call.heads,
              call.channels, 1.0F, stream);
}

}  // namespace

void launch_decay(const DecayCall& call, void* stream) {
  wide(call) ? start<8>(call, stream) : start<1>(call, stream);
}

std::int64_t decay_partials(const DecayCall& call) {
  // Of the narrow cut where the wide one does not apply; a planning pass has no addresses.
  const Cut cuts[] = {Cut::of<1>(call),
                      call.heads * call.channels % 8 == 0 ? Cut::of<8>(call) : Cut::of<1>(call)};
  std::int64_t most = 0;
  for (const Cut& cut : cuts) {
    const std::int64_t count = cut.row_blocks(call.rows) * 2 * cut.width;
    if (count > most) most = count;
  }
  return most;
}

void launch_decay_back(const DecayCall& call, const DecayBack& back, void* stream) {
  wide(call, back) ? start_back<8>(call, back, stream) : start_back<1>(call, back, stream);
}

}  // namespace rankone::recurrence::cuda
