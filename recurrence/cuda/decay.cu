// Log decays and their gradients: element-wise over rows of `heads * channels` columns. A thread
// has its columns for a block of rows, so that what belongs to a column (bias, rate, the sums for
// their gradients) stays in registers.

#include "recurrence/cuda/decay.hpp"

#include "recurrence/cuda/array.hpp"
#include "recurrence/cuda/sums.hpp"

namespace rankone::recurrence::cuda {
namespace {

// A float whose division takes a reciprocal of about an ulp without a way for denormal numbers, and
// whose log1p, for -1/32 .. 1, is a series without branches: those of the axes are in that range.
struct Number {
  float value;

  Number() = default;
  template <class Real>
  __device__ Number(Real of) : value(static_cast<float>(of)) {}  // NOLINT
  __device__ friend Number operator-(Number a) { return -a.value; }
  __device__ friend Number operator+(Number a, Number b) { return a.value + b.value; }
  __device__ friend Number operator-(Number a, Number b) { return a.value - b.value; }
  __device__ friend Number operator*(Number a, Number b) { return a.value * b.value; }
  __device__ friend Number operator/(Number a, Number b) {
    const float guess = rankone::cuda::reciprocal_fast(b.value);
    return a.value * (guess * (2.0F - b.value * guess));
  }
  __device__ friend bool operator<(Number a, Number b) { return a.value < b.value; }
  __device__ friend bool operator>(Number a, Number b) { return a.value > b.value; }
  __device__ friend bool operator>=(Number a, Number b) { return a.value >= b.value; }
  __device__ friend bool operator==(Number a, Number b) { return a.value == b.value; }
  __device__ friend Number exp_of(Number x) { return std::exp(x.value); }
  __device__ friend Number abs_of(Number x) { return std::abs(x.value); }
  __device__ friend Number max_of(Number a, Number b) { return a < b ? b : a; }
  __device__ friend Number min_of(Number a, Number b) { return b < a ? b : a; }
  __device__ friend Number select(bool condition, Number yes, Number no) {
    return condition ? yes : no;
  }
  // 2 artanh(x / (2 + x))
  __device__ friend Number log1p_of(Number x) {
    const float s = (x / (Number(2.0F) + x)).value, z = s * s;
    float sum = 1.0F / 13.0F;
    sum = sum * z + 1.0F / 11.0F;
    sum = sum * z + 1.0F / 9.0F;
    sum = sum * z + 1.0F / 7.0F;
    sum = sum * z + 1.0F / 5.0F;
    sum = sum * z + 1.0F / 3.0F;
    return 2.0F * s + 2.0F * s * (z * sum);
  }
};

constexpr int kThreads = 256;
constexpr int kMostRowsOfThread = 64;
constexpr int kAhead = 4;                    // rows of a thread whose loads are under way together
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

// Numbers as they lie in memory, so that nothing waits for them before they are used.
template <int Count>
struct Raw {
  static_assert(Count == 1 || Count == 4);
  uint4 word;

  __device__ __forceinline__ void read(const Source& from, std::int64_t at) {
    word = uint4{0, 0, 0, 0};
    if (from.data == nullptr) return;
    if (from.dtype == Dtype::f32) {
      const auto* data = static_cast<const float*>(from.data) + at;
      if constexpr (Count == 1) {
        word.x = read_word<std::uint32_t>(data);
      } else {
        word = read_word<uint4>(data);
      }
    } else {
      const auto* data = static_cast<const std::uint16_t*>(from.data) + at;
      if constexpr (Count == 1) {
        word.x = *data;
      } else {
        const auto half = read_word<uint2>(data);
        word.x = half.x;
        word.y = half.y;
      }
    }
  }
  __device__ __forceinline__ void get(float (&to)[Count], Dtype dtype) const {
    using rankone::cuda::bits_to_float;
    if (dtype == Dtype::f32) {
      to[0] = bits_to_float(word.x);
      if constexpr (Count == 4) {
        to[1] = bits_to_float(word.y);
        to[2] = bits_to_float(word.z);
        to[3] = bits_to_float(word.w);
      }
    } else {
      const bool wide = dtype == Dtype::bf16;
      float2 both = wide ? rankone::cuda::unpack<bf16>(word.x) : rankone::cuda::unpack<f16>(word.x);
      to[0] = both.x;
      if constexpr (Count == 4) {
        to[1] = both.y;
        both = wide ? rankone::cuda::unpack<bf16>(word.y) : rankone::cuda::unpack<f16>(word.y);
        to[2] = both.x;
        to[3] = both.y;
      }
    }
  }
};

template <int Vector>
__global__ void __launch_bounds__(kThreads) decay_rows(DecayCall call, Cut cut) {
  const Share<Vector> share(call, cut);
  if (!share.any) return;
  with_decay<Number>(call.constants, [&](auto policy) {
    for (std::int64_t first = share.row; first < share.end; first += kAhead * cut.down) {
      Raw<Vector> ahead[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const std::int64_t row = first + i * cut.down;
        if (row < share.end) ahead[i].read(call.x, row * cut.width + share.column);
      }
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const std::int64_t row = first + i * cut.down;
        if (row >= share.end) break;
        float x[Vector], g[Vector], dt[Vector];
        ahead[i].get(x, call.x.dtype);
#pragma unroll
        for (int c = 0; c < Vector; ++c) {
          const auto value = policy.value(x[c] + share.bias[c], share.rate[c]);
          g[c] = value.g.value;
          dt[c] = value.dt.value;
        }
        store(call.g, row * cut.width + share.column, g);
        store(call.dt, row * cut.width + share.column, dt);
      }
    }
  });
}

template <int Vector>
__global__ void __launch_bounds__(kThreads)
    decay_rows_back(DecayCall call, DecayBack back, Cut cut) {
  const Share<Vector> share(call, cut);
  float d_bias[Vector] = {}, d_a_log[Vector] = {};
  if (share.any) {
    with_decay<Number>(call.constants, [&](auto policy) {
      for (std::int64_t first = share.row; first < share.end; first += kAhead * cut.down) {
        Raw<Vector> ahead[kAhead], d_g_ahead[kAhead];
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
          const std::int64_t row = first + i * cut.down;
          if (row >= share.end) break;
          ahead[i].read(call.x, row * cut.width + share.column);
          d_g_ahead[i].read(back.d_g, row * cut.width + share.column);
        }
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
          const std::int64_t row = first + i * cut.down;
          if (row >= share.end) break;
          const std::int64_t at = row * cut.width + share.column;
          float x[Vector], d_g[Vector], d_dt[Vector], d_x[Vector];
          ahead[i].get(x, call.x.dtype);
          d_g_ahead[i].get(d_g, back.d_g.dtype);
          load(d_dt, back.d_dt, at);
#pragma unroll
          for (int c = 0; c < Vector; ++c) {
            const auto d = policy.vjp(x[c] + share.bias[c], share.rate[c], d_g[c], d_dt[c]);
            d_x[c] = d.x.value;
            d_bias[c] += d.x.value;
            d_a_log[c] += d.a_log.value;
          }
          store(back.d_x, at, d_x);
        }
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
  wide(call) ? start<4>(call, stream) : start<1>(call, stream);
}

std::int64_t decay_partials(const DecayCall& call) {
  // Of the narrow cut where the wide one does not apply; a planning pass has no addresses.
  const Cut cuts[] = {Cut::of<1>(call),
                      call.heads * call.channels % 8 == 0 ? Cut::of<4>(call) : Cut::of<1>(call)};
  std::int64_t most = 0;
  for (const Cut& cut : cuts) {
    const std::int64_t count = cut.row_blocks(call.rows) * 2 * cut.width;
    if (count > most) most = count;
  }
  return most;
}

void launch_decay_back(const DecayCall& call, const DecayBack& back, void* stream) {
  wide(call, back) ? start_back<4>(call, back, stream) : start_back<1>(call, back, stream);
}

}  // namespace rankone::recurrence::cuda
