// The way back of the diagonal preconditioner: the scan of A again, for the state before each
// chunk, then dL/dA scanned from the end, in one kernel with everything that is made of it.

#include "recurrence/cuda/precondition_chunk.hpp"
#include "recurrence/cuda/precondition_wide.hpp"
#include "recurrence/cuda/sums.hpp"

namespace rankone::recurrence::cuda {
namespace {

using namespace precondition_chunk;

// The state of A before each warp, from what launch_precondition() left.
template <class L>
__device__ __forceinline__ void join_states(const Chunk<L>& chunk) {
  const PreconditionCall& call = chunk.call;
  const LookBack back = chunk.look_back(call.scan, false);
#pragma unroll 1
  for (int channel = static_cast<int>(threadIdx.x); channel < chunk.d_k; channel += L::kThreads) {
    float state = 0.0F;
    if (call.states != nullptr) {
      state = call.states[chunk.chunk_state(channel)];
    } else if (!back.starts()) {
      state = back.before(channel, chunk.window(false));
    } else if (call.initial != nullptr) {
      state = call.initial[chunk.sequence_state(channel)];
    }
    chunk.spread(chunk.shared.sums, channel, false, state);
  }
  __syncthreads();
}

// The gradient of the parameter, of this chunk: from the rows of the warps that lie in `sums`.
template <class L>
__device__ __forceinline__ void put_partials(const Chunk<L>& chunk, const PreconditionBack& back) {
  if (back.partials == nullptr) return;
  const PreconditionCall& call = chunk.call;
  const std::int64_t at = static_cast<std::int64_t>(chunk.number) * chunk.heads + chunk.head;
  float* const sums = chunk.shared.sums;
  const bool atk = call.kind == PreconditionerKind::atk;
  for (int channel = static_cast<int>(threadIdx.x); channel < chunk.d_k; channel += L::kThreads) {
    float total = 0.0F;
    for (int warp = 0; warp < L::kWarps; ++warp) total += sums[warp * chunk.d_k + channel];
    if (atk) {
      sums[channel] = total;
    } else {
      back.partials[at * chunk.d_k + channel] = total;
    }
  }
  if (!atk) return;
  __syncthreads();
  if (chunk.warp != 0) return;
  float total = 0.0F;
  for (int channel = static_cast<int>(threadIdx.x); channel < chunk.d_k; channel += 32) {
    total += sums[channel];
  }
  total = warp_sum(total);
  if (threadIdx.x == 0) back.partials[at] = total;
}

// With lambda = dL/dA and k^ = k / |k|, in reverse order:
//     lambda += d_out target dfactor/dA;   dtarget = d_out factor;   dparameter += ...
//     dk^ = 2 b k^ lambda;   db = sum k^^2 lambda;   dg = exp(g) sum lambda A_{t-1}
//     lambda <- exp(g) lambda
// and, through the norm, dk = (2 b / |k|^2) k (lambda - db).
template <class L, PreconditionerKind Kind>
__global__ void __launch_bounds__(L::kThreads, L::kBlocksBack)
    emit_rows_back(PreconditionCall call, PreconditionBack back) {
  constexpr int kRows = L::kRows, kSize = L::kSize, kGroup = Chunk<L>::kGroup;
  using Format = typename L::Format;
  // The last chunks first: the others wait for them.
  const Chunk<L> chunk(call, gridDim.x - 1 - blockIdx.x);
  const auto& shared = chunk.shared;
  const bool tied = call.target.data == call.k.data;
  typename Lane<L>::Row d_next[kGroup], next[kGroup] = {};  // rows of another target than k
  chunk.read_group(d_next, back.d_out, 0);
  if (!tied) chunk.read_group(next, call.target, 0);
  chunk.look_back(call.scan, false).load_decays(chunk.window(false));
  chunk.look_back(back.scan, true).load_decays(chunk.window(true));
  chunk.load_gates();
  chunk.sum_rows();
  join_states(chunk);

  // In `lambdas` what each row adds (nothing where the chunk lacks it), then lambda from zero
  // behind the rows of this warp.
  float lambdas[kRows][kSize], state[kSize], d_parameter[kSize] = {};
  chunk.lane.load_row(state, shared.sums + chunk.warp * chunk.d_k);
  const auto factor = chunk.template factor<Kind>();
  auto* const to = static_cast<Format*>(back.d_target.data);
  const std::int64_t at = chunk.first_at(), stride = chunk.stride();
  const int stored = to != nullptr ? chunk.count : 0;
  const auto* const other = static_cast<const Format*>(back.other.data);
#pragma unroll
  for (int first = 0; first < kRows; first += kGroup) {
    float decays[kGroup], gains[kGroup], targets[kGroup][kSize], d_targets[kGroup][kSize];
    chunk.load_group(decays, shared.decay, first);
    chunk.load_group(gains, shared.gain, first);
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      chunk.lane.get(d_targets[i], d_next[i]);
      chunk.lane.get(targets[i], next[i]);
    }
    if (first + kGroup < kRows) {
      chunk.read_group(d_next, back.d_out, first + kGroup);
      if (!tied) chunk.read_group(next, call.target, first + kGroup);
    }
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      const int r = first + i;
      float k[kSize];
      chunk.lane.load_row(k, chunk.key_row(r));
      chunk.lane.store_row(shared.history + (chunk.begin + r) * chunk.d_k, state);
#pragma unroll
      for (int c = 0; c < kSize; ++c) {
        state[c] = precondition_step(state[c], decays[i], gains[i], k[c]);
        factor.back(state[c], c, tied ? k[c] : targets[i][c], d_targets[i][c], lambdas[r][c],
                    d_parameter[c]);
      }
      if (r >= stored) continue;
      if (back.joined && other != nullptr) {
        chunk.lane.load_row(k, other + at + r * stride);
#pragma unroll
        for (int c = 0; c < kSize; ++c) d_targets[i][c] += k[c];
      }
      chunk.lane.store_row(to + at + r * stride, d_targets[i]);
    }
  }
  float decay[kRows];
  chunk.load_gate(decay, shared.decay);
#pragma unroll
  for (int r = kRows - 2; r >= 0; --r) {
#pragma unroll
    for (int c = 0; c < kSize; ++c) lambdas[r][c] += decay[r + 1] * lambdas[r + 1][c];
  }
  float before[kSize];
#pragma unroll
  for (int c = 0; c < kSize; ++c) before[c] = decay[0] * lambdas[0][c];
  chunk.lane.store_row(shared.reverse + chunk.warp * chunk.d_k, before);
  chunk.lane.store_row(shared.sums + chunk.warp * chunk.d_k, d_parameter);
  __syncthreads();
  chunk.join(back.scan, shared.reverse, true, back.d_final, back.d_initial, nullptr, true);

  float behind[kSize], through = 1.0F;
  chunk.lane.load_row(behind, shared.reverse + chunk.warp * chunk.d_k);
  constexpr int kBatch = 8;  // rows whose sums over channels are taken together
#pragma unroll
  for (int first = kRows - kBatch; first >= 0; first -= kBatch) {
    float d_gain[kBatch], d_decay[kBatch];
#pragma unroll
    for (int i = kBatch - 1; i >= 0; --i) {
      const int r = first + i;
      float k[kSize], earlier[kSize];
      chunk.lane.load_row(k, chunk.key_row(r));
      chunk.lane.load_row(earlier, shared.history + (chunk.begin + r) * chunk.d_k);
      d_gain[i] = d_decay[i] = 0.0F;
#pragma unroll
      for (int c = 0; c < kSize; ++c) {
        lambdas[r][c] += through * behind[c];
        d_gain[i] += k[c] * (k[c] * lambdas[r][c]);
        d_decay[i] += lambdas[r][c] * earlier[c];
      }
      through *= decay[r];
    }
    constexpr int kLanes = 32 / kBatch;  // of a row
    const int own = first + static_cast<int>(threadIdx.x) % 32 / kLanes;
    const float of_gain = warp_sums(d_gain) * shared.square_inverse[chunk.begin + own];
    const float of_decay = warp_sums(d_decay) * shared.decay[chunk.begin + own];
    if (static_cast<int>(threadIdx.x) % kLanes == 0 && own < chunk.count) {
      store(back.d_b, chunk.gate_at(own), of_gain);
      store(back.d_g, chunk.gate_at(own), of_decay);
    }
    if (back.d_k.data == nullptr) continue;
    auto* const row = static_cast<Format*>(back.d_k.data) + chunk.first_at();
    // Where both are one, the gradient of the target lies there, with the other one.
    const auto* const added = back.joined ? row : other != nullptr ? other + at : nullptr;
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const float along = __shfl_sync(0xffffffffU, of_gain, i * kLanes);
      const int r = first + i;
      const float twice = 2.0F * shared.gain[chunk.begin + r];
      const float radial = call.normalize ? twice * along : 0.0F;
      float k[kSize];
      chunk.lane.load_row(k, chunk.key_row(r));
#pragma unroll
      for (int c = 0; c < kSize; ++c) k[c] *= twice * lambdas[r][c] - radial;
      if (r >= chunk.count) continue;
      if (added != nullptr) {
        float more[kSize];
        chunk.lane.load_row(more, added + r * chunk.stride());
#pragma unroll
        for (int c = 0; c < kSize; ++c) k[c] += more[c];
      }
      chunk.lane.store_row(row + r * chunk.stride(), k);
    }
  }
  put_partials(chunk, back);
}

// ---- Tied keys of 128 channels of 16 bits ------------------------------------------------------

// More warps with fewer rows each where nothing but the end of the sequence is waited for.
template <bool Kept>
constexpr int kWideThreads = Kept ? 256 : 128;

// A before the chunk, from what launch_precondition() left; a thread for a channel.
template <class Chunk>
__device__ __forceinline__ float state_before(const Chunk& chunk) {
  const PreconditionCall& call = chunk.call;
  const LookBack back = chunk.look_back(call.scan, false);
  const int slot = static_cast<int>(threadIdx.x);
  if (!back.starts()) return back.before(slot, chunk.window(false));
  return call.initial != nullptr ? call.initial[chunk.sequence_state(slot)] : 0.0F;
}

// As emit_rows_back(), in units of Factor::power. Kept: call.states are there. Adds: something is
// added to the gradient of k.
template <class F, bool Normalize, bool Kept, bool Adds>
__global__ void __launch_bounds__(kWideThreads<Kept>, Kept || Adds ? 3 : 4)
    emit_rows_back_wide(PreconditionCall call, PreconditionBack back) {
  namespace wide = precondition_wide;
  constexpr int kThreads = kWideThreads<Kept>, kRows = wide::Segments<kThreads>::kRows;
  constexpr int kGroup = wide::Chunk<F, kThreads>::kGroup, kSize = wide::kSize;
  constexpr int kWidth = wide::kWidth;
  // The last chunks first: the others wait for them.
  const wide::Chunk<F, kThreads> chunk(call, gridDim.x - 1 - blockIdx.x);
  const auto& shared = chunk.shared;
  chunk.copy_rows(shared.keys, call.k);
  rankone::cuda::copy_commit();
  wide::Word<F> d_next[kGroup];
  chunk.read_rows(d_next, back.d_out, 0);
  const auto gates = chunk.read_gates();
  if constexpr (Adds) {
    chunk.copy_rows(shared.added, back.other);
    rankone::cuda::copy_commit();
  }
  const int slot = static_cast<int>(threadIdx.x);
  float before = 0.0F;
  if (Kept && slot < kWidth) before = call.states[chunk.chunk_state(slot)];
  const auto key = [&](int r, float(&to)[kSize]) { load(to, chunk.key_row(r)); };
  chunk.look_back(back.scan, true).load_decays(chunk.window(true));
  if constexpr (!Kept) {
    chunk.look_back(call.scan, false).load_decays(chunk.window(false));
    __syncthreads();
    before = state_before(chunk);
  }
  rankone::cuda::copy_wait<Adds ? 1 : 0>();
  chunk.put_gates(gates, key);
  chunk.sum_rows(key);
  if (kThreads == kWidth || slot < kWidth) chunk.spread(slot, false, before);
  __syncthreads();

  // In `lambdas` what each row adds (nothing where the chunk lacks it), then lambda from zero
  // behind the rows of this segment.
  float lambdas[kRows][kSize], state[kSize];
  float* const own_sums = shared.sums + chunk.segment * kWidth;
  chunk.load_slots(state, own_sums);
  wide::Factor factor(chunk);
  rankone::cuda::copy_wait<0>();
  auto* to = static_cast<F*>(back.d_target.data) + chunk.first_at();
  const int stored = back.d_target.data != nullptr ? chunk.count : 0;
#pragma unroll
  for (int first = 0; first < kRows; first += kGroup) {
    float decays[kGroup], gains[kGroup];
    chunk.load_group(decays, shared.decay, first);
    chunk.load_group(gains, shared.gain, first);
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      const int r = first + i;
      float k[kSize], d[kSize];
      key(r, k);
      d_next[i].get(d);
      chunk.store_slots(shared.history + (chunk.begin + r) * kWidth, state);
#pragma unroll
      for (int c = 0; c < kSize; ++c) {
        state[c] = precondition_step(state[c], decays[i], gains[i], k[c]);
      }
      factor.back(state, k, d, lambdas[r]);
      if (Adds && back.joined) {
        F* const added = chunk.own_row(shared.added, r);
        float more[kSize];
        load(more, added);
#pragma unroll
        for (int c = 0; c < kSize; ++c) d[c] += more[c];
        write_word(added, wide::word_of<F>(d));
      } else {
        wide::store_if(r < stored, to, d);
        to += chunk.stride();
      }
    }
    if (first + kGroup < kRows) chunk.read_rows(d_next, back.d_out, first + kGroup);
  }
  float decay[kRows];
#pragma unroll
  for (int first = 0; first < kRows; first += kGroup) {
    float some[kGroup];
    chunk.load_group(some, shared.decay, first);
#pragma unroll
    for (int i = 0; i < kGroup; ++i) decay[first + i] = some[i];
  }
#pragma unroll
  for (int r = kRows - 2; r >= 0; --r) {
#pragma unroll
    for (int c = 0; c < kSize; ++c) lambdas[r][c] += decay[r + 1] * lambdas[r + 1][c];
  }
  {
    float added[kSize];  // in the place of the state that this lane has read
#pragma unroll
    for (int c = 0; c < kSize; ++c) added[c] = decay[0] * lambdas[0][c];
    chunk.store_slots(own_sums, added);
  }
  const float unit = factor.power;
  const float d_center = unit * warp_sum(factor.d_center);
  if (threadIdx.x % 32 == 0) shared.totals[threadIdx.x / 32] = d_center;
  __syncthreads();
  if (threadIdx.x == 0 && back.partials != nullptr) {
    float total = 0.0F;
#pragma unroll
    for (int warp = 0; warp < kThreads / 32; ++warp) total += shared.totals[warp];
    back.partials[static_cast<std::int64_t>(chunk.number) * chunk.heads + chunk.head] = total;
  }
  chunk.join(back.scan, true, back.d_final, back.d_initial, nullptr, true, unit);

  float behind[kSize], through = 1.0F, d_gain[kRows], d_decay[kRows];
  chunk.load_slots(behind, own_sums);
  const int keys = back.d_k.data != nullptr ? chunk.count : 0;
  auto* row = static_cast<F*>(back.d_k.data) + chunk.first_at() + (kRows - 1) * chunk.stride();
#pragma unroll
  for (int r = kRows - 1; r >= 0; --r) {
    float k[kSize], earlier[kSize];
    key(r, k);
    chunk.load_slots(earlier, shared.history + (chunk.begin + r) * kWidth);
    d_gain[r] = d_decay[r] = 0.0F;
    const float twice = 2.0F * unit * shared.gain[chunk.begin + r];
#pragma unroll
    for (int c = 0; c < kSize; ++c) {
      const float lambda = lambdas[r][c] + through * behind[c];
      const float turned = k[c] * lambda;
      d_gain[r] += k[c] * turned;
      d_decay[r] += lambda * earlier[c];
      lambdas[r][c] = twice * turned;
    }
    if constexpr (Adds) {
      float more[kSize];
      load(more, chunk.own_row(shared.added, r));
#pragma unroll
      for (int c = 0; c < kSize; ++c) lambdas[r][c] += more[c];
    }
    if constexpr (!Normalize) {
      wide::store_if(r < keys, row, lambdas[r]);
      row -= chunk.stride();
    }
    through *= decay[r];
  }
  const int own = chunk.lane / chunk.kRowLanes;
  const float of_gain =
      unit * wide::segment_sums(d_gain) * shared.square_inverse[chunk.begin + own];
  const float of_decay = unit * wide::segment_sums(d_decay) * shared.decay[chunk.begin + own];
  if (chunk.lane % chunk.kRowLanes == 0 && own < chunk.count) {
    store(back.d_b, chunk.gate_at(own), of_gain);
    store(back.d_g, chunk.gate_at(own), of_decay);
  }
  if constexpr (Normalize) {
    row -= (kRows - 1) * chunk.stride();
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float along = __shfl_sync(0xffffffffU, of_gain, chunk.kRowLanes * r, wide::kLanes);
      const float radial = 2.0F * shared.gain[chunk.begin + r] * along;
      float k[kSize];
      key(r, k);
#pragma unroll
      for (int c = 0; c < kSize; ++c) lambdas[r][c] -= radial * k[c];
      wide::store_if(r < keys, row, lambdas[r]);
      row += chunk.stride();
    }
  }
}

template <class F, bool Kept, bool Adds>
void launch_wide(const PreconditionCall& call, const PreconditionBack& back, void* stream) {
  const auto kernel = call.normalize ? emit_rows_back_wide<F, true, Kept, Adds>
                                     : emit_rows_back_wide<F, false, Kept, Adds>;
  constexpr int kThreads = kWideThreads<Kept>;
  rankone::cuda::launch(kernel, call.rows.chunks * call.heads, kThreads,
                        precondition_wide::Shared<F, kThreads>::bytes(true, Adds), stream, call,
                        back);
}

template <class L>
void launch_any(const PreconditionCall& call, const PreconditionBack& back, void* stream) {
  using Kind = PreconditionerKind;
  const auto kernel =
      call.kind == Kind::atk ? emit_rows_back<L, Kind::atk> : emit_rows_back<L, Kind::atq>;
  rankone::cuda::launch(kernel, call.rows.chunks * call.heads, L::kThreads,
                        Shared<L>::bytes(call.d_k, true), stream, call, back);
}

}  // namespace

void launch_precondition_back(const PreconditionCall& call, const PreconditionBack& back,
                              void* stream) {
  if (precondition_wide::fits(call, back.d_out, back.other, back.d_k, back.d_target)) {
    precondition_wide::with_format(call, [&](auto format) {
      using F = decltype(format);
      const bool kept = call.states != nullptr, adds = back.joined || back.other.data != nullptr;
      const auto start = adds ? (kept ? launch_wide<F, true, true> : launch_wide<F, false, true>)
                              : (kept ? launch_wide<F, true, false> : launch_wide<F, false, false>);
      start(call, back, stream);
    });
  } else {
    choose(call,
           in_words(call.d_k, call.k, call.target, back.d_out, back.other, back.d_k, back.d_target),
           [&]<class L>() { launch_any<L>(call, back, stream); });
  }
  const bool atk = call.kind == PreconditionerKind::atk;
  const std::int64_t groups = atk ? call.heads : call.heads * call.d_k;
  launch_sums(back.d_parameter, back.partials, call.rows.chunks, groups, groups, 1, 1.0F, stream);
}

}  // namespace rankone::recurrence::cuda
