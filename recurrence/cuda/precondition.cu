// The diagonal preconditioner: a scan over time for every channel, cut into chunks of 64 rows. A
// block has a chunk of one head, its warps 8 or 16 rows each, a lane 4 or 8 channels. Three
// kernels: what each chunk adds to the state; the states between the chunks; the rows. All sums
// have one order, whatever runs when. The way back is the same twice: for A, then for dL/dA from
// the end.

#include "recurrence/cuda/precondition.hpp"

#include "recurrence/cuda/precondition_chunk.hpp"
#include "recurrence/cuda/sums.hpp"

namespace rankone::recurrence::cuda {
namespace {

using namespace precondition_chunk;

template <class Format, int Vector, int Size>
__global__ void __launch_bounds__(Cut<Size>::kThreads) sum_chunks(PreconditionCall call) {
  const Chunk<Format, Vector, Size> chunk(call);
  chunk.sum_rows();
  chunk.put_sum(call.scan, chunk.shared.sums, false);
}

constexpr int kAhead = 16;    // chunks that a thread of scan_chunks() has at a time
constexpr int kSegments = 8;  // at most: of as many chunks each

// The states between the chunks of a sequence: a block takes a head, a column of threads a channel,
// its rows of threads consecutive segments of chunks. From the last chunk to the first where it is
// `reverse`. `initial` null: zero; `final` null: not wanted.
__global__ void __launch_bounds__(1024)
    scan_chunks(rankone::cuda::Rows rows, std::int64_t heads, int d_k, int width, ChunkScan scan,
                const float* initial, float* final, bool reverse) {
  const std::int64_t sequence = blockIdx.x / heads, head = blockIdx.x - sequence * heads;
  const int segment = static_cast<int>(threadIdx.x) / width;
  const int segments = static_cast<int>(blockDim.x) / width;
  const int channel = static_cast<int>(threadIdx.x) - segment * width;
  const bool any = channel < d_k;
  auto* sums = reinterpret_cast<float*>(rankone::cuda::shared_memory());  // [segments, width]
  float* decays = sums + segments * width;
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * d_k + channel;
  const std::int64_t first = rows.first_chunk(sequence);
  const std::int64_t count = rows.first_chunk(sequence + 1) - first;
  float state = any && initial != nullptr ? initial[at] : 0.0F;
  for (std::int64_t done = 0; done < count; done += segments * kAhead) {
    const std::int64_t mine = done + segment * kAhead;
    float sum[kAhead], decay[kAhead], total = 0.0F, through = 1.0F;
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const bool here = any && mine + i < count;
      const std::int64_t chunk = reverse ? first + count - 1 - mine - i : first + mine + i;
      sum[i] = here ? scan.states[(chunk * heads + head) * d_k + channel] : 0.0F;
      decay[i] = here ? scan.decays[chunk * heads + head] : 1.0F;
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      total = decay[i] * total + sum[i];
      through *= decay[i];
    }
    sums[segment * width + channel] = total;
    decays[segment * width + channel] = through;
    __syncthreads();
    float before = state;  // the state before the chunks of this thread
    for (int i = 0; i < segments; ++i) {
      if (i == segment) before = state;
      state = decays[i * width + channel] * state + sums[i * width + channel];
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (!any || mine + i >= count) break;
      const std::int64_t chunk = reverse ? first + count - 1 - mine - i : first + mine + i;
      scan.states[(chunk * heads + head) * d_k + channel] = before;
      before = decay[i] * before + sum[i];
    }
    __syncthreads();
  }
  if (any && segment == 0 && final != nullptr) final[at] = state;
}

template <class Format, int Vector, int Size>
__global__ void __launch_bounds__(Cut<Size>::kThreads) emit_rows(PreconditionCall call) {
  const Chunk<Format, Vector, Size> chunk(call);
  float state[Size], parameter[Size];
  chunk.lane.load_row(state, call.scan.states + chunk.state_at());
  chunk.load_parameter(parameter);
  chunk.sum_rows();
  chunk.start(state);
  auto* out = static_cast<Format*>(call.out.data);
#pragma unroll
  for (int r = 0; r < Cut<Size>::kRows; ++r) {
    if (r >= chunk.count) break;
    float k[Size], target[Size];
    chunk.target(target, r);
    chunk.key(k, r);
    chunk.step(state, r, k);
#pragma unroll
    for (int c = 0; c < Size; ++c) {
      target[c] *= chunk.factor(state[c], parameter[c]).factor.value;
    }
    chunk.lane.store_row(out + chunk.key_at(r), target);
  }
}

// ---- The way back ------------------------------------------------------------------------------

// With lambda = dL/dA: what each chunk adds to the lambda before it.
template <class Format, int Vector, int Size>
__global__ void __launch_bounds__(Cut<Size>::kThreads)
    sum_chunks_back(PreconditionCall call, PreconditionBack back) {
  constexpr int kRows = Cut<Size>::kRows;
  const Chunk<Format, Vector, Size> chunk(call);
  typename Lane<Format, Vector, Size>::Row d_outs[kRows];
  chunk.read_rows(d_outs, back.d_out);
  float state[Size], parameter[Size], sum[Size] = {}, decay = 1.0F;
  chunk.lane.load_row(state, call.scan.states + chunk.state_at());
  chunk.load_parameter(parameter);
  chunk.sum_rows();
  chunk.start(state);
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (r >= chunk.count) break;
    float k[Size], target[Size], d_out[Size];
    chunk.target(target, r);
    chunk.key(k, r);
    chunk.lane.get(d_out, d_outs[r]);
    chunk.step(state, r, k);
    decay *= chunk.shared.decay[chunk.begin + r];
#pragma unroll
    for (int c = 0; c < Size; ++c) {
      const float through = d_out[c] * target[c];
      sum[c] += decay * (through * chunk.factor(state[c], parameter[c]).d_state.value);
    }
  }
  chunk.lane.store_row(chunk.shared.reverse + chunk.warp * call.d_k, sum);
  __syncthreads();
  chunk.put_sum(back.scan, chunk.shared.reverse, true);
}

// lambda behind the rows of this warp, from lambda behind the chunk.
template <class Format, int Vector, int Size>
__device__ void start_back(const Chunk<Format, Vector, Size>& chunk, float (&lambda)[Size]) {
  for (int after = Cut<Size>::kWarps - 1; after > chunk.warp; --after) {
    float sum[Size];
    chunk.lane.load_row(sum, chunk.shared.reverse + after * chunk.call.d_k);
#pragma unroll
    for (int c = 0; c < Size; ++c) lambda[c] = chunk.shared.decays[after] * lambda[c] + sum[c];
  }
}

// Reverse step:
//     lambda += d_out target dfactor/dA;   dtarget = d_out factor;   dparameter += ...
//     dk^ = 2 b k^ lambda;   db = sum k^2 lambda;   dg = exp(g) sum lambda A_{t-1}
//     lambda <- exp(g) lambda
template <class Format, int Vector, int Size>
__global__ void __launch_bounds__(Cut<Size>::kThreads)
    emit_rows_back(PreconditionCall call, PreconditionBack back) {
  constexpr int kWarps = Cut<Size>::kWarps, kRows = Cut<Size>::kRows;
  const Chunk<Format, Vector, Size> chunk(call);
  const Shared& shared = chunk.shared;
  typename Lane<Format, Vector, Size>::Row d_outs[kRows];
  chunk.read_rows(d_outs, back.d_out);
  float state[Size], parameter[Size], lambda[Size], d_parameter[Size] = {}, sum[Size] = {};
  float decay = 1.0F;
  chunk.lane.load_row(state, call.scan.states + chunk.state_at());
  chunk.lane.load_row(lambda, back.scan.states + chunk.state_at());
  chunk.load_parameter(parameter);
  chunk.sum_rows();
  chunk.start(state);

  // Forward: dtarget, and what the reverse steps need: A_{t-1} and what each row adds to lambda.
  float* history = shared.history + chunk.begin * call.d_k;
  float* sources = shared.sources + chunk.begin * call.d_k;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (r >= chunk.count) break;
    float k[Size], target[Size], d_out[Size], source[Size];
    chunk.target(target, r);
    chunk.key(k, r);
    chunk.lane.get(d_out, d_outs[r]);
    chunk.lane.store_row(history + r * call.d_k, state);
    chunk.step(state, r, k);
    decay *= shared.decay[chunk.begin + r];
#pragma unroll
    for (int c = 0; c < Size; ++c) {
      const auto at = chunk.factor(state[c], parameter[c]);
      const float through = d_out[c] * target[c];
      d_out[c] *= at.factor.value;
      d_parameter[c] += through * at.d_parameter.value;
      source[c] = through * at.d_state.value;
      sum[c] += decay * source[c];
    }
    chunk.lane.store_row(sources + r * call.d_k, source);
    if (back.d_target.data != nullptr) {
      chunk.lane.store_row(static_cast<Format*>(back.d_target.data) + chunk.key_at(r), d_out);
    }
  }
  chunk.lane.store_row(shared.reverse + chunk.warp * call.d_k, sum);
  __syncthreads();
  start_back(chunk, lambda);

  float d_gain[kRows], d_decay[kRows], along[kRows];
#pragma unroll
  for (int r = kRows - 1; r >= 0; --r) {
    d_gain[r] = d_decay[r] = along[r] = 0.0F;
    if (r >= chunk.count) continue;
    const float gain = shared.gain[chunk.begin + r];
    float k[Size], before[Size], source[Size], d_key[Size];
    chunk.key(k, r);
    chunk.lane.load_row(before, history + r * call.d_k);
    chunk.lane.load_row(source, sources + r * call.d_k);
#pragma unroll
    for (int c = 0; c < Size; ++c) {
      lambda[c] += source[c];
      d_key[c] = 2.0F * gain * k[c] * lambda[c];
      d_gain[r] += k[c] * k[c] * lambda[c];
      along[r] += k[c] * d_key[c];
      lambda[c] *= shared.decay[chunk.begin + r];
      d_decay[r] += lambda[c] * before[c];
    }
    chunk.lane.store_row(history + r * call.d_k, d_key);  // in the place of A_{t-1}
  }
  const int own = static_cast<int>(threadIdx.x) % 32 * kRows / 32;
  const bool first = static_cast<int>(threadIdx.x) % (32 / kRows) == 0 && own < chunk.count;
  const float of_gain = warp_sums(d_gain), of_decay = warp_sums(d_decay);
  const float of_along = warp_sums(along);
  if (first) {
    store(back.d_b, chunk.gate_at(own), of_gain);
    store(back.d_g, chunk.gate_at(own), of_decay);
  }
  if (back.d_k.data != nullptr) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float share = __shfl_sync(0xffffffffU, of_along, r * (32 / kRows));
      if (r >= chunk.count) continue;
      float d_key[Size];
      chunk.lane.load_row(d_key, history + r * call.d_k);
      if (call.normalize) {
        const float inverse = shared.inverse_norm[chunk.begin + r];
        float k[Size];
        chunk.key(k, r);
#pragma unroll
        for (int c = 0; c < Size; ++c) d_key[c] = inverse * (d_key[c] - k[c] * share);
      }
      chunk.lane.store_row(static_cast<Format*>(back.d_k.data) + chunk.key_at(r), d_key);
    }
  }

  if (back.partials == nullptr) return;
  __syncthreads();
  chunk.lane.store_row(shared.sums + chunk.warp * call.d_k, d_parameter);
  __syncthreads();
  for (int channel = static_cast<int>(threadIdx.x); channel < call.d_k;
       channel += Cut<Size>::kThreads) {
    float total = 0.0F;
    for (int warp = 0; warp < kWarps; ++warp) total += shared.sums[warp * call.d_k + channel];
    back.partials[chunk.state_at() + channel] = total;
  }
}

void scan(const PreconditionCall& call, const ChunkScan& of, const float* initial, float* final,
          bool reverse, void* stream) {
  const int width = (call.d_k + 31) / 32 * 32;
  const int segments = 1024 / width < kSegments ? 1024 / width : kSegments;
  rankone::cuda::launch(scan_chunks, call.rows.sequences * call.heads, segments * width,
                        static_cast<std::size_t>(2 * segments * width) * sizeof(float), stream,
                        call.rows, call.heads, call.d_k, width, of, initial, final, reverse);
}

template <class Format, int Vector, int Size>
void start(const PreconditionCall& call, void* stream) {
  using Of = Cut<Size>;
  const std::int64_t blocks = call.rows.chunks * call.heads;
  const std::size_t shared = Shared::bytes(call.d_k, Of::kWarps, 0);
  rankone::cuda::launch(sum_chunks<Format, Vector, Size>, blocks, Of::kThreads, shared, stream,
                        call);
  scan(call, call.scan, call.initial, call.final, false, stream);
  if (call.out.data == nullptr) return;
  rankone::cuda::launch(emit_rows<Format, Vector, Size>, blocks, Of::kThreads, shared, stream,
                        call);
}

template <class Format, int Vector, int Size>
void start_vjp(const PreconditionCall& call, const PreconditionBack& back, void* stream) {
  using Of = Cut<Size>;
  const std::int64_t blocks = call.rows.chunks * call.heads;
  const std::size_t shared = Shared::bytes(call.d_k, Of::kWarps, 0);
  rankone::cuda::launch(sum_chunks<Format, Vector, Size>, blocks, Of::kThreads, shared, stream,
                        call);
  scan(call, call.scan, call.initial, nullptr, false, stream);
  rankone::cuda::launch(sum_chunks_back<Format, Vector, Size>, blocks, Of::kThreads, shared, stream,
                        call, back);
  scan(call, back.scan, back.d_final, back.d_initial, true, stream);
  rankone::cuda::launch(emit_rows_back<Format, Vector, Size>, blocks, Of::kThreads,
                        Shared::bytes(call.d_k, Of::kWarps, 2), stream, call, back);
  const bool atk = call.kind == PreconditionerKind::atk;
  launch_sums(back.d_parameter, back.partials, call.rows.chunks, call.heads * call.d_k,
              atk ? call.heads : call.heads * call.d_k, atk ? call.d_k : 1, 1.0F, stream);
}

// Calls run.template operator()<Format, Vector, Size>() with what fits the call.
template <class Run>
void choose(const PreconditionCall& call, bool words, Run&& run) {
  const auto sized = [&](auto format) {
    using Format = decltype(format);
    if (!words) return run.template operator()<Format, 1, 8>();
    if (call.d_k <= 128) return run.template operator()<Format, 4, 4>();
    return run.template operator()<Format, 4, 8>();
  };
  switch (call.k.dtype) {
    case Dtype::bf16:
      return sized(bf16{});
    case Dtype::f16:
      return sized(f16{});
    default:
      return sized(0.0F);
  }
}

}  // namespace

void launch_precondition(const PreconditionCall& call, void* stream) {
  choose(call, in_words(call.d_k, call.k, call.target, call.out),
         [&]<class Format, int Vector, int Size>() { start<Format, Vector, Size>(call, stream); });
}

void launch_precondition_back(const PreconditionCall& call, const PreconditionBack& back,
                              void* stream) {
  choose(call, in_words(call.d_k, call.k, call.target, back.d_out, back.d_k, back.d_target),
         [&]<class Format, int Vector, int Size>() {
           start_vjp<Format, Vector, Size>(call, back, stream);
         });
}

}  // namespace rankone::recurrence::cuda
