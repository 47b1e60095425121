// MesaNet's conjugate gradients. Hkk is never formed for a token: with S the statistic before a
// chunk of rows, and decays between rows i and j of it,
//
//     Hkk_i p = decay_i S p + sum over j <= i of decay_ij b_j k_j (k_j . p)
//
// so first S of every chunk is summed up, then all chunks are solved at once, a block each. A warp
// has some rows of the chunk to itself, a lane every 32nd channel of them, and iterates until its
// rows have stopped; only at the beginning do the warps of a block wait for each other.

#include "recurrence/cuda/mesa.hpp"

#include "recurrence/cuda/array.hpp"
#include "recurrence/cuda/sums.hpp"

namespace rankone::recurrence::cuda {
namespace {

constexpr int kRows = kMesaChunk;
constexpr int kThreads = 256;

// A chunk of one head.
struct Place {
  std::int64_t chunk, head;
  rankone::cuda::Span span;

  __device__ Place(const MesaSolve& solve, std::int64_t number) {
    chunk = number / solve.heads;
    head = number - chunk * solve.heads;
    span = solve.rows.span(chunk);
  }
  __device__ std::int64_t gate_at(const MesaSolve& solve, int row) const {
    return (span.first + row) * solve.heads + head;
  }
  __device__ std::int64_t key_at(const MesaSolve& solve, int row) const {
    return gate_at(solve, row) * solve.d_k;
  }
  __device__ std::int64_t state_at(const MesaSolve& solve) const {
    return (chunk * solve.heads + head) * solve.d_k * solve.d_k;
  }
};

// ---- The statistic before each chunk -----------------------------------------------------------

constexpr int kPatch = 64;  // a block has a kPatch x kPatch patch of one chunk's sum

__global__ void __launch_bounds__(kThreads) sum_chunks(MesaSolve solve, int patches) {
  const std::int64_t number = blockIdx.x / (patches * patches);
  const int patch = static_cast<int>(blockIdx.x - number * patches * patches);
  const int top = patch / patches * kPatch, left = patch % patches * kPatch;
  const Place place(solve, number);
  auto* weighted = reinterpret_cast<float*>(rankone::cuda::shared_memory());  // [64, kPatch]
  float* keys = weighted + kRows * kPatch;
  float* weight = keys + kRows * kPatch;  // [64]: decay behind the row times its gain
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < place.span.count) {
    float sum = 0.0F;
    for (int row = place.span.count - 1; row > thread; --row) {
      sum += load(solve.g, place.gate_at(solve, row));
    }
    weight[thread] = std::exp(sum) * load(solve.b, place.gate_at(solve, thread), 1.0F);
    if (thread == 0 && patch == 0) {
      solve.decays[number] = std::exp(sum + load(solve.g, place.gate_at(solve, 0)));
    }
  }
  __syncthreads();
  for (int i = thread; i < kRows * kPatch; i += kThreads) {
    const int row = i / kPatch, c = i - row * kPatch;
    const bool any = row < place.span.count;
    weighted[i] = any && top + c < solve.d_k
                      ? weight[row] * load(solve.k, place.key_at(solve, row) + top + c)
                      : 0.0F;
    keys[i] =
        any && left + c < solve.d_k ? load(solve.k, place.key_at(solve, row) + left + c) : 0.0F;
  }
  __syncthreads();
  const int first_row = thread / 16 * 4, first_column = thread % 16 * 4;
  float sum[4][4] = {};
  for (int row = 0; row < place.span.count; ++row) {
    float a[4], b[4];
    load(a, weighted + row * kPatch + first_row);
    load(b, keys + row * kPatch + first_column);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) sum[i][j] += a[i] * b[j];
    }
  }
  float* to = solve.states + place.state_at(solve);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int d = top + first_row + i, c = left + first_column + j;
      if (d < solve.d_k && c < solve.d_k) {
        to[static_cast<std::int64_t>(d) * solve.d_k + c] = sum[i][j];
      }
    }
  }
}

// A thread has one element of Hkk through the chunks of a sequence.
__global__ void __launch_bounds__(kThreads) scan_chunks(MesaSolve solve, std::int64_t blocks) {
  const std::int64_t task = blockIdx.x / blocks;  // sequence and head
  const std::int64_t sequence = task / solve.heads, head = task - sequence * solve.heads;
  const std::int64_t size = static_cast<std::int64_t>(solve.d_k) * solve.d_k;
  const std::int64_t element =
      (blockIdx.x - task * blocks) * kThreads + static_cast<int>(threadIdx.x);
  if (element >= size) return;
  const std::int64_t first = solve.rows.first_chunk(sequence);
  const std::int64_t count = solve.rows.first_chunk(sequence + 1) - first;
  float state = solve.initial != nullptr ? solve.initial[task * size + element] : 0.0F;
  constexpr int kAhead = 8;  // chunks whose sums are loaded together
  for (std::int64_t done = 0; done < count; done += kAhead) {
    float sum[kAhead], decay[kAhead];
    const int some = count - done < kAhead ? static_cast<int>(count - done) : kAhead;
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (i >= some) break;
      const std::int64_t number = (first + done + i) * solve.heads + head;
      sum[i] = solve.states[number * size + element];
      decay[i] = solve.decays[number];
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (i >= some) break;
      solve.states[((first + done + i) * solve.heads + head) * size + element] = state;
      state = decay[i] * state + sum[i];
    }
  }
  if (solve.final != nullptr) solve.final[task * size + element] = state;
}

// ---- The solve ---------------------------------------------------------------------------------

constexpr int kKeyRow = kRows + 4;  // a row of keys by channel: four lanes' words in four banks

// Columns of a lane (channels lane, lane + 32, ...) and rows of a warp.
template <int Columns, int WarpRows>
class Solver {
 public:
  static constexpr int kWarps = kRows / WarpRows;
  static constexpr int kSolveThreads = kWarps * 32;
  static constexpr int kWidth = 32 * Columns;
  static constexpr bool kStateShared = Columns <= 4;

  static std::size_t shared_bytes() {
    const int floats = kRows * kWidth + kWidth * kKeyRow + 2 * kRows * kRows + kWidth + 2 * kRows +
                       (kStateShared ? kWidth * kWidth : 0);
    return static_cast<std::size_t>(floats) * sizeof(float);
  }

  __device__ explicit Solver(const MesaSolve& solve)
      : solve_(solve), place_(solve, static_cast<std::int64_t>(blockIdx.x)) {
    lane_ = static_cast<int>(threadIdx.x) % 32;
    first_row_ = static_cast<int>(threadIdx.x) / 32 * WarpRows;
    auto* memory = reinterpret_cast<float*>(rankone::cuda::shared_memory());
    directions_ = memory;                  // [kWidth, WarpRows] of each warp
    keys_ = directions_ + kRows * kWidth;  // [kWidth, kKeyRow]
    between_ = keys_ + kWidth * kKeyRow;   // [row, 64]: decay from j to row, times b_j
    pairs_ = between_ + kRows * kRows;     // [64, WarpRows] of each warp
    lambda_ = pairs_ + kRows * kRows;
    prefix_ = lambda_ + kWidth;
    gates_ = prefix_ + kRows;
    state_ = gates_ + kRows;
    direction_ = directions_ + first_row_ * kWidth;
    pair_ = pairs_ + first_row_ * kRows;
  }

  __device__ void run() {
    load_chunk();
    float residual[WarpRows][Columns], solution[WarpRows][Columns], squares[WarpRows],
        stop[WarpRows];
#pragma unroll
    for (int r = 0; r < WarpRows; ++r) {
      const int row = first_row_ + r;
#pragma unroll
      for (int m = 0; m < Columns; ++m) {
        const bool any = row < place_.span.count && channel(m) < solve_.d_k;
        residual[r][m] = any ? load(solve_.right, place_.key_at(solve_, row) + channel(m)) : 0.0F;
        solution[r][m] = 0.0F;
        direction_[channel(m) * WarpRows + r] = residual[r][m];
      }
      squares[r] = dot(residual[r], residual[r]);
      stop[r] = solve_.tolerance * solve_.tolerance * squares[r];
    }
    __syncwarp();
    for (int i = 0; i < solve_.max_iterations; ++i) {
      if (!iterate(residual, solution, squares, stop)) break;
    }
#pragma unroll
    for (int r = 0; r < WarpRows; ++r) {
      const int row = first_row_ + r;
      if (row >= place_.span.count) break;
#pragma unroll
      for (int m = 0; m < Columns; ++m) {
        if (channel(m) < solve_.d_k) {
          solve_.solution[place_.key_at(solve_, row) + channel(m)] = solution[r][m];
        }
      }
    }
  }

 private:
  __device__ int channel(int m) const { return m * 32 + lane_; }

  __device__ static float dot(const float (&a)[Columns], const float (&b)[Columns]) {
    float sum = 0.0F;
#pragma unroll
    for (int m = 0; m < Columns; ++m) sum += a[m] * b[m];
    return warp_sum(sum);
  }

  __device__ void load_chunk() {
    const int thread = static_cast<int>(threadIdx.x), count = place_.span.count;
    const int K = solve_.d_k;
    for (int i = thread; i < kRows * kWidth; i += kSolveThreads) {
      const int row = i / kWidth, c = i - row * kWidth;
      keys_[c * kKeyRow + row] =
          row < count && c < K ? load(solve_.k, place_.key_at(solve_, row) + c) : 0.0F;
    }
    for (int c = thread; c < kWidth; c += kSolveThreads) {
      lambda_[c] = c < K ? load(solve_.lambda, place_.head * K + c) : 0.0F;
    }
    if (kStateShared) {
      const float* from = solve_.states + place_.state_at(solve_);
      for (int i = thread; i < kWidth * kWidth; i += kSolveThreads) {
        const int d = i / kWidth, c = i - d * kWidth;
        state_[i] = d < K && c < K ? from[d * K + c] : 0.0F;
      }
    }
    if (thread < kRows) {
      gates_[thread] = thread < count ? load(solve_.g, place_.gate_at(solve_, thread)) : 0.0F;
    }
    __syncthreads();
    if (thread < kRows) {
      // Sums of intervals, each from its end: no difference of two long sums.
      float sum = 0.0F;
      for (int j = kRows - 1; j >= 0; --j) {
        float* to = between_ + thread * kRows + j;
        if (j > thread || thread >= count) {
          *to = 0.0F;
        } else {
          *to = std::exp(sum) * load(solve_.b, place_.gate_at(solve_, j), 1.0F);
          sum += gates_[j];
        }
      }
      prefix_[thread] = std::exp(sum);
    }
    __syncthreads();
  }

  // image = (Hkk + diag(lambda)) direction, of the rows of the warp.
  __device__ void apply(float (&image)[WarpRows][Columns]) const {
    const int K = solve_.d_k;
#pragma unroll
    for (int r = 0; r < WarpRows; ++r) {
#pragma unroll
      for (int m = 0; m < Columns; ++m) image[r][m] = 0.0F;
    }
    float dots[WarpRows][2] = {};
    const float* from = solve_.states + place_.state_at(solve_);
#pragma unroll 2
    for (int d = 0; d < K; ++d) {
      float p[WarpRows], s[Columns];
      load_rows(p, direction_ + d * WarpRows);
#pragma unroll
      for (int m = 0; m < Columns; ++m) {
        if (kStateShared) {
          s[m] = state_[d * kWidth + channel(m)];
        } else {
          s[m] = channel(m) < K ? __ldg(from + d * K + channel(m)) : 0.0F;
        }
      }
      const float k0 = keys_[d * kKeyRow + lane_], k1 = keys_[d * kKeyRow + 32 + lane_];
#pragma unroll
      for (int r = 0; r < WarpRows; ++r) {
#pragma unroll
        for (int m = 0; m < Columns; ++m) image[r][m] += p[r] * s[m];
        dots[r][0] += p[r] * k0;
        dots[r][1] += p[r] * k1;
      }
    }
#pragma unroll
    for (int r = 0; r < WarpRows; ++r) {
      const int row = first_row_ + r;
      const float prefix = prefix_[row];
#pragma unroll
      for (int m = 0; m < Columns; ++m) {
        image[r][m] =
            prefix * image[r][m] + lambda_[channel(m)] * direction_[channel(m) * WarpRows + r];
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int j = half * 32 + lane_;
        pair_[j * WarpRows + r] = j <= row ? between_[row * kRows + j] * dots[r][half] : 0.0F;
      }
    }
    __syncwarp();
    for (int j = 0; j < first_row_ + WarpRows; j += 4) {
      float k[Columns][4];
#pragma unroll
      for (int m = 0; m < Columns; ++m) load(k[m], keys_ + channel(m) * kKeyRow + j);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float pair[WarpRows];
        load_rows(pair, pair_ + (j + i) * WarpRows);
#pragma unroll
        for (int r = 0; r < WarpRows; ++r) {
          if (pair[r] == 0.0F) continue;  // a later key, which may be NaN
#pragma unroll
          for (int m = 0; m < Columns; ++m) image[r][m] += pair[r] * k[m][i];
        }
      }
    }
    __syncwarp();
  }

  __device__ __forceinline__ static void load_rows(float (&to)[WarpRows], const float* from) {
#pragma unroll
    for (int i = 0; i < WarpRows; i += 4) {
      float four[4];
      load(four, from + i);
#pragma unroll
      for (int j = 0; j < 4; ++j) to[i + j] = four[j];
    }
  }

  // One iteration of every row that has not stopped; false where none is left. A row stops with a
  // step and a growth of zero, which leave its solution and residual as they are.
  __device__ bool iterate(float (&residual)[WarpRows][Columns],
                          float (&solution)[WarpRows][Columns], float (&squares)[WarpRows],
                          const float (&stop)[WarpRows]) const {
    float image[WarpRows][Columns];
    apply(image);
    bool running = false;
#pragma unroll
    for (int r = 0; r < WarpRows; ++r) {
      float direction[Columns];
#pragma unroll
      for (int m = 0; m < Columns; ++m) direction[m] = direction_[channel(m) * WarpRows + r];
      const float curvature = dot(direction, image[r]);
      // Not "curvature > 0" alone: NaN must go on, to show in the result.
      if (squares[r] <= stop[r] || curvature == 0.0F) continue;
      running = true;
      const float step = squares[r] / (curvature + solve_.damping);
#pragma unroll
      for (int m = 0; m < Columns; ++m) {
        solution[r][m] += step * direction[m];
        residual[r][m] -= step * image[r][m];
      }
      const float now = dot(residual[r], residual[r]);
      const float growth = squares[r] == 0.0F ? 0.0F : now / (squares[r] + solve_.damping);
      squares[r] = now;
#pragma unroll
      for (int m = 0; m < Columns; ++m) {
        direction_[channel(m) * WarpRows + r] = residual[r][m] + growth * direction[m];
      }
    }
    __syncwarp();
    return running;
  }

  const MesaSolve& solve_;
  Place place_;
  int lane_, first_row_;
  float *directions_, *keys_, *between_, *pairs_, *lambda_, *prefix_, *gates_, *state_;
  float *direction_, *pair_;
};

template <int Columns, int WarpRows>
__global__ void __launch_bounds__(Solver<Columns, WarpRows>::kSolveThreads)
    solve_chunks(MesaSolve solve) {
  Solver<Columns, WarpRows>(solve).run();
}

template <int Columns, int WarpRows>
void start_solve(const MesaSolve& solve, void* stream) {
  using Of = Solver<Columns, WarpRows>;
  rankone::cuda::launch(solve_chunks<Columns, WarpRows>, solve.rows.chunks * solve.heads,
                        Of::kSolveThreads, Of::shared_bytes(), stream, solve);
}

// ---- The rest ----------------------------------------------------------------------------------

__global__ void __launch_bounds__(kThreads)
    combine(Sink to, Source a, Source b, Source c, float factor, std::int64_t count) {
  const std::int64_t at =
      static_cast<std::int64_t>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (at >= count) return;
  store(to, at, factor * (load(a, at) + load(b, at) + load(c, at)));
}

__global__ void __launch_bounds__(kThreads)
    multiply_rows(MesaSolve solve, const float* x, const float* y, float* partials) {
  const Place place(solve, static_cast<std::int64_t>(blockIdx.x));
  const int channel = static_cast<int>(threadIdx.x);
  if (channel >= solve.d_k) return;
  float sum = 0.0F;
  for (int row = 0; row < place.span.count; ++row) {
    const std::int64_t at = place.key_at(solve, row) + channel;
    sum += x[at] * y[at];
  }
  partials[static_cast<std::int64_t>(blockIdx.x) * solve.d_k + channel] = sum;
}

}  // namespace

void launch_mesa_states(const MesaSolve& solve, void* stream) {
  const int patches = (solve.d_k + kPatch - 1) / kPatch;
  rankone::cuda::launch(sum_chunks, solve.rows.chunks * solve.heads * patches * patches, kThreads,
                        (2 * kRows * kPatch + kRows) * sizeof(float), stream, solve, patches);
  const std::int64_t size = static_cast<std::int64_t>(solve.d_k) * solve.d_k;
  const std::int64_t blocks = (size + kThreads - 1) / kThreads;
  rankone::cuda::launch(scan_chunks, solve.rows.sequences * solve.heads * blocks, kThreads, 0,
                        stream, solve, blocks);
}

void launch_mesa_solve(const MesaSolve& solve, void* stream) {
  if (solve.d_k <= 32) return start_solve<1, 8>(solve, stream);
  if (solve.d_k <= 64) return start_solve<2, 8>(solve, stream);
  if (solve.d_k <= 128) return start_solve<4, 8>(solve, stream);
  start_solve<8, 4>(solve, stream);
}

void launch_combine(const Sink& to, const Source& a, const Source& b, const Source& c, float factor,
                    std::int64_t count, void* stream) {
  rankone::cuda::launch(combine, (count + kThreads - 1) / kThreads, kThreads, 0, stream, to, a, b,
                        c, factor, count);
}

void launch_lambda_grad(const MesaSolve& solve, const float* x, const float* y, const Sink& to,
                        float* partials, void* stream) {
  rankone::cuda::launch(multiply_rows, solve.rows.chunks * solve.heads, kThreads, 0, stream, solve,
                        x, y, partials);
  launch_sums(to, partials, solve.rows.chunks, solve.heads * solve.d_k, solve.heads * solve.d_k, 1,
              -1.0F, stream);
}

}  // namespace rankone::recurrence::cuda
