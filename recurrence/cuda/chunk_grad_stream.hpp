#pragma once

// The gradients with one log decay per row, or none, where the copy engine brings the tiles and
// each value head has keys of its own. M1 and M2 as in chunk_grad_scalar.hpp, but M1 with its
// diagonal:
//
//     dq = exp(G) scale dO S^T + M1 b w      de = - exp(G) dV S^T + M2 b w
//     dw = b (dW + M1^T q + M2^T e),         dW = exp(G_last - G) Z dS^T
//     c_ij = M1_ij q_i . w_j + M2_ij e_i . w_j                    db_j = w_j . dW_j + sum_i c_ij
//     dg_t = exp(G_last) <S, dS> + sum_{j < t} b_j w_j . dW_j
//            + sum_{i >= t} (q . dq + e . de)_i before M is added + sum_{j < t <= i} b_j c_ij
//
// So dg has nothing but what crosses t: nothing cancels, and M may be rounded as it likes.

#include "recurrence/cuda/chunk_grad_worker.hpp"

namespace rankone::recurrence::cuda {

template <class Format, class Engine, int Columns, int Tiles, bool Delta, bool Tied>
class GradStream
    : private GradWorker<Format, Engine, Columns, Tiles, Delta && !Tied && Columns == 128> {
  static constexpr bool kLate = Delta && !Tied && Columns == 128;
  static constexpr bool kOwnErase = Delta && !Tied && !kLate;
  using Base = GradWorker<Format, Engine, Columns, Tiles, kLate>;
  using Base::asks, Base::at, Base::bring_keys, Base::bring_state, Base::bring_states,
      Base::bring_values, Base::clear, Base::cleared, Base::read, Base::sizes, Base::sync,
      Base::through, Base::wait;
  using Base::call_, Base::lane_, Base::pairs_, Base::row_, Base::rows_, Base::thread_, Base::warp_,
      Base::worker_, Base::kHalf;
  using typename Base::Keys, typename Base::Shared, typename Base::Slot, typename Base::State,
      typename Base::Values;
  static constexpr int kTiles = Columns / 8;

 public:
  __device__ explicit GradStream(const StreamCall& c)
      : Base(c, Shared::kTiles),
        gated_(sizes().gate == GateKind::scalar && c.grad.back.d_g != nullptr) {}

  __device__ void run() {
    const std::int64_t step = std::int64_t{kStreamWorkers} * gridDim.x;
    const std::int64_t count = sizes().rows.chunks * sizes().heads;
    // Neighbouring items run at the same time: they share lines of the gates.
    std::int64_t number = std::int64_t{blockIdx.x} * kStreamWorkers + worker_;
    this->start();
    if (number >= count) return;
    if (warp_ == 3) find_item(sizes(), number, rows_.items);
    sync();
    ask_first(rows_.items[0]);
    ask_last(rows_.items[0]);
    GradGates gates;
    if (warp_ == 0) gates.ask(call_.grad, rows_.items[0], rows_.items[0].key_head);
    int turn = 0;
    for (; number < count; number += step) {
      const bool more = number + step < count;
      if (warp_ == 0) {
        double sums[2];
        gates.write(rows_.high, rows_.low, rows_.gain, sums);
      }
      const int after = turn == 2 ? 0 : turn + 1;
      if (warp_ == 3 && more) find_item(sizes(), number + step, rows_.items + after);
      sync();
      work(rows_.items[turn], rows_.items[after], more, gates);
      turn = after;
    }
  }

 private:
  // Of the next item, what its slots are free for before its keys are and after. Where there are
  // several pairs of value tiles, these are asked for where they are used.
  __device__ void ask_first(const GradItem& item) const {
    if (!asks()) return;
    if (pairs_ == 1) {
      bring_values(Slot::update, call_.tensors.update, item, 0);
      bring_state(Slot::state_a, call_.grad.chunk.states, item, 0);
      if (!kLate) bring_values(Slot::output, call_.tensors.output, item, 0);
      if (!kLate && Tiles == 2) bring_state(Slot::state_b, call_.grad.chunk.states, item, 1);
    }
    if (kLate) bring_keys(Slot::state_b, call_.tensors.erase, item);
  }
  __device__ void ask_last(const GradItem& item) const {
    if (!asks()) return;
    bring_keys(Slot::query, call_.tensors.query, item);
    bring_keys(Slot::write, call_.tensors.write, item);
    if (kOwnErase) bring_keys(Slot::erase, call_.tensors.erase, item);
    if (pairs_ > 1) return;
    if (kLate) bring_values(Slot::output, call_.tensors.output, item, 0);
    if (Delta) bring_values(Slot::value, call_.tensors.value, item, 0);
  }

  // d += m tile.
  __device__ __forceinline__ void add_rows(float (&d)[kHalf], const std::uint32_t (&m)[4][4],
                                           const unsigned char* tile) const {
    Engine::begin();
#pragma unroll
    for (int k = 0; k < 4; ++k) Engine::template multiply<Keys, true>(d, m[k], tile, k, false);
    finish<Engine>(d);
  }
  // This warp's part of <a, b>: the diagonal of a b^T.
  __device__ __forceinline__ float state_product(const unsigned char* a,
                                                 const unsigned char* b) const {
    float d[2][4] = {};
#pragma unroll
    for (int k = 0; k < Columns / 16; ++k) {
      std::uint32_t left[4], right[4];
      load_a<State>(left, a, 16 * warp_, k);
      load_b<State>(right, b, 16 * warp_, k);
      mma_m16n8k16<Format>(d[0], left, right[0], right[1]);
      mma_m16n8k16<Format>(d[1], left, right[2], right[3]);
    }
    const int off = lane_ / 4 - 2 * (lane_ % 4);
    return (off == 0 ? d[0][0] + d[1][2] : 0.0F) + (off == 1 ? d[0][1] + d[1][3] : 0.0F);
  }

  // ---- Rows -------------------------------------------------------------------------------------

  __device__ __forceinline__ void scale_rows(float (&d)[kHalf], const float (&factor)[2]) const {
#pragma unroll
    for (int i = 0; i < kHalf; ++i) d[i] *= factor[i / 2 % 2];
  }
  // Per row, the dot product of d with a key; in all lanes of the quad.
  __device__ __forceinline__ void add_dots(float (&sums)[2], const float (&d)[kHalf],
                                           const unsigned char* tile) const {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      float sum = 0.0F;
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        const float2 x = unpack<Format>(*reinterpret_cast<const std::uint32_t*>(
            tile + Keys::place(row_ + 8 * j, n) + lane_ % 4 * 4));
        sum += x.x * d[4 * n + 2 * j] + x.y * d[4 * n + 2 * j + 1];
      }
      sums[j] += quad_sum(sum);
    }
  }
  __device__ __forceinline__ void put_rows(float* to, const float (&sums)[2]) const {
    if (lane_ % 4 != 0) return;
    to[row_] = sums[0];
    to[row_ + 8] = sums[1];
  }
  __device__ __forceinline__ void store(const float (&d)[kHalf], const GradItem& item,
                                        void* to) const {
    if (to != nullptr) store_keys<Format, Columns>(d, sizes(), item, 0, to);
  }

  // M from the products of values, rounded, with b as left sides and without; and the sums of c.
  __device__ __forceinline__ void interactions(const float (&seen)[32], const float (&read)[32],
                                               const float (&query)[32], const float (&erase)[32],
                                               std::uint32_t (&m)[2][4][4],
                                               std::uint32_t (&plain)[2][4][4]) const {
    const float scale = sizes().scale;
    const float high[2] = {rows_.high[row_], rows_.high[row_ + 8]};
    const float low[2] = {rows_.low[row_], rows_.low[row_ + 8]};
    std::uint32_t c[2][4][4];  // b c in two parts
    float column[16];
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const int first = 8 * n + 2 * (lane_ % 4);
      const auto pair = [first](const float* of) {
        return *reinterpret_cast<const float2*>(of + first);
      };
      const float2 highs = pair(rows_.high), lows = pair(rows_.low), gains = pair(rows_.gain);
      column[2 * n] = column[2 * n + 1] = 0.0F;
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int i = row_ + 8 * j, at = 4 * n + 2 * j, to = n % 2 * 2 + j;
        const float x = exp2_bounded(high[j] - highs.x + (low[j] - lows.x));
        const float y = exp2_bounded(high[j] - highs.y + (low[j] - lows.y));
        const float seen_x = first <= i ? scale * seen[at] * x : 0.0F;
        const float seen_y = first + 1 <= i ? scale * seen[at + 1] * y : 0.0F;
        float c_x = seen_x * query[at], c_y = seen_y * query[at + 1];
        m[0][n / 2][to] = pack<Format>(gains.x * seen_x, gains.y * seen_y);
        plain[0][n / 2][to] = pack<Format>(seen_x, seen_y);
        if constexpr (Delta) {
          const float read_x = first < i ? -read[at] * x : 0.0F;
          const float read_y = first + 1 < i ? -read[at + 1] * y : 0.0F;
          c_x += read_x * erase[at];
          c_y += read_y * erase[at + 1];
          m[1][n / 2][to] = pack<Format>(gains.x * read_x, gains.y * read_y);
          plain[1][n / 2][to] = pack<Format>(read_x, read_y);
        }
        column[2 * n] += c_x;
        column[2 * n + 1] += c_y;
        c_x *= gains.x;
        c_y *= gains.y;
        // bf16 for its range, in both formats.
        c[0][n / 2][to] = pack<bf16>(c_x, c_y);
        const float2 rounded = unpack<bf16>(c[0][n / 2][to]);
        c[1][n / 2][to] = pack<bf16>(c_x - rounded.x, c_y - rounded.y);
      }
    }
    // Per column 2 lane and the next; added up over the warps by turns.
    fold_lanes<2>(column, lane_);
    float crossing[16] = {};
    if (gated_) {
      sum_crossing(c, crossing);
      fold_lanes<2>(crossing, lane_);
    }
#pragma unroll
    for (int turn = 0; turn < 4; ++turn) {
      if (turn == warp_) {
        add_columns(rows_.column, column, turn == 0);
        add_columns(rows_.crossing, crossing, turn == 0);
      }
      sync();
    }
  }
  __device__ __forceinline__ void add_columns(float* to, const float (&x)[16], bool first) const {
    auto& own = *reinterpret_cast<float2*>(to + 2 * lane_);
    const float2 old = first ? make_float2(0.0F, 0.0F) : own;
    own = make_float2(old.x + x[0], old.y + x[1]);
  }
  // Sums over the warp's rows i >= t of what their columns j < t have: the latter by a product with
  // ones.
  __device__ __forceinline__ void sum_crossing(const std::uint32_t (&c)[2][4][4],
                                               float (&sums)[16]) const {
    const int g = lane_ / 4, t = lane_ % 4;
    constexpr std::uint32_t kOne = 0x3f80U;
    const std::uint32_t ones = kOne | kOne << 16;
    const std::uint32_t corner = (2 * t < g ? kOne : 0U) | (2 * t + 1 < g ? kOne << 16 : 0U);
    float before[8][4] = {};
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if (k > warp_) break;
#pragma unroll
      for (int part = 0; part < 2; ++part) {
#pragma unroll
        for (int n = 2 * k; n < 8; ++n) {
          const bool whole = 2 * k + 1 < n, second = 2 * k + 1 == n;
          mma_m16n8k16<bf16>(before[n], c[part][k], whole || second ? ones : corner,
                             whole    ? ones
                             : second ? corner
                                      : 0U);
        }
      }
    }
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const int column = 8 * n + 2 * t;
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        sums[2 * n + j] = (column + j <= row_ ? before[n][j] : 0.0F) +
                          (column + j <= row_ + 8 ? before[n][2 + j] : 0.0F);
      }
    }
  }
  __device__ __forceinline__ void put_square(unsigned char* tile,
                                             const std::uint32_t (&m)[4][4]) const {
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        *reinterpret_cast<std::uint32_t*>(tile + Values::place(row_ + 8 * j, n) + lane_ % 4 * 4) =
            m[n / 2][n % 2 * 2 + j];
      }
    }
  }

  // dg and db, by one warp.
  __device__ __forceinline__ void finish_gates(const GradItem& item) const {
    const TwoKeyBack& back = call_.grad.back;
    const std::int64_t first = item.first * sizes().value_heads + item.key_head;
    if (back.d_b != nullptr) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int i = lane_ + 32 * j;
        if (i >= item.count) continue;
        put_gate(back.d_b, sizes().b.dtype, first + i * sizes().value_heads,
                 rows_.low[i] + rows_.column[i]);
      }
    }
    if (!gated_) return;
    float before = rows_.state[0] + rows_.state[1] + rows_.state[2] + rows_.state[3];
    float d_g[2];
#pragma unroll
    for (int j = 0; j < 2; ++j) {  // exclusive sums from the start
      const int i = lane_ + 32 * j;
      float sum = rows_.gain[i] * rows_.low[i];
#pragma unroll
      for (int delta = 1; delta < 32; delta *= 2) {
        const float other = __shfl_up_sync(0xffffffffU, sum, delta);
        if (lane_ >= delta) sum += other;
      }
      const float exclusive = __shfl_up_sync(0xffffffffU, sum, 1);
      d_g[j] = before + (lane_ > 0 ? exclusive : 0.0F);
      before += __shfl_sync(0xffffffffU, sum, 31);
    }
    float behind = 0.0F;
#pragma unroll
    for (int j = 1; j >= 0; --j) {  // inclusive sums from the end
      const int i = lane_ + 32 * j;
      float sum = rows_.high[i];
#pragma unroll
      for (int delta = 1; delta < 32; delta *= 2) {
        const float other = __shfl_down_sync(0xffffffffU, sum, delta);
        if (lane_ + delta < 32) sum += other;
      }
      d_g[j] += behind + sum + rows_.crossing[i];
      behind += __shfl_sync(0xffffffffU, sum, 0);
      if (i < item.count) {
        put_gate(back.d_g, sizes().g.dtype, first + i * sizes().value_heads, d_g[j]);
      }
    }
  }

  // ---- One item ---------------------------------------------------------------------------------

  // The first half of what a pair of value tiles has for dW: then dS of the first tile is there and
  // that of the second under way, in the place of the first state.
  static constexpr Slot kBack = kLate ? Slot::value : Slot::output;
  __device__ __forceinline__ void begin_back(const GradItem& item, int pair, float& state) {
    if (pairs_ > 1) {
      read();
      if (asks()) {
        bring_values(Slot::update, call_.tensors.update, item, pair);
        bring_states(item, pair);
        bring_state(kBack, call_.grad.chunk.d_states, item, Tiles * pair);
      }
      wait(Slot::update);
      wait(Slot::state_a);
      if (Tiles == 2) wait(Slot::state_b);
      if (item.count < kChunkRows) {
        clear(Slot::update, Tiles, item.count);
        cleared();
      }
    }
    wait(kBack);
    if (gated_) state += state_product(at(Slot::state_a), at(kBack));
    if (Tiles == 1) return;
    read();
    if (asks()) bring_state(Slot::state_a, call_.grad.chunk.d_states, item, Tiles * pair + 1);
  }

  // d = dO S^T or dV S^T, the values from `slot`.
  __device__ __forceinline__ void read_states(float (&d)[kHalf], Slot slot, const TensorMap& map,
                                              const GradItem& item) {
    zero(d);
    for (int pair = 0; pair < pairs_; ++pair) {
      if (pairs_ > 1) {
        sync();
        if (asks()) {
          bring_values(slot, map, item, pair);
          bring_states(item, pair);
        }
        wait(slot);
        if (item.count < kChunkRows) {
          clear(slot, Tiles, item.count);
          cleared();
        }
      }
      if (pairs_ > 1 || slot == Slot::output) {
        wait(Slot::state_a);
        if (Tiles == 2) wait(Slot::state_b);
      }
      Engine::begin();
      through(d, at(slot), at(Slot::state_a));
      if (Tiles == 2) through(d, at(slot) + Values::kBytes, at(Slot::state_b));
      finish<Engine>(d);
    }
  }

  __device__ __forceinline__ void work(const GradItem& item, const GradItem& next, bool more,
                                       GradGates& gates) {
    const TwoKeyBack& back = call_.grad.back;
    const bool partial = item.count < kChunkRows;
    const Slot early_erase = !Delta || Tied ? Slot::write : kLate ? Slot::state_b : Slot::erase;
    const Slot late_erase = kLate ? Slot::output : early_erase;
    std::uint32_t m[2][4][4], plain[2][4][4];
    {
      float seen[32], read[32], query[32], erase[32];
      zero(seen);
      zero(read);
      zero(query);
      zero(erase);
      wait(Slot::query);
      wait(Slot::write);
      if (kOwnErase) wait(Slot::erase);
      if (kLate) wait(Slot::state_b);
      for (int pair = 0; pair < pairs_; ++pair) {
        if (pairs_ > 1) {
          sync();
          if (asks()) {
            bring_values(Slot::update, call_.tensors.update, item, pair);
            bring_values(Slot::output, call_.tensors.output, item, pair);
            if (Delta) bring_values(Slot::value, call_.tensors.value, item, pair);
          }
        }
        wait(Slot::update);
        wait(Slot::output);
        if (Delta) wait(Slot::value);
        if (partial) {
          clear(Slot::query, Columns / 64, item.count);
          clear(Slot::write, Columns / 64, item.count);
          if (early_erase != Slot::write) clear(early_erase, Columns / 64, item.count);
          clear(Slot::update, Tiles, item.count);
          clear(Slot::output, Tiles, item.count);
          if (Delta) clear(Slot::value, Tiles, item.count);
          cleared();
        }
        Engine::begin();
        if (pair == 0) {
          this->template inner<Keys, Columns / 16>(query, at(Slot::query), at(Slot::write));
          if (Delta)
            this->template inner<Keys, Columns / 16>(erase, at(early_erase), at(Slot::write));
        }
#pragma unroll
        for (int i = 0; i < Tiles; ++i) {
          const int offset = i * Values::kBytes;
          this->template inner<Values, 4>(seen, at(Slot::output) + offset,
                                          at(Slot::update) + offset);
          if (Delta)
            this->template inner<Values, 4>(read, at(Slot::value) + offset,
                                            at(Slot::update) + offset);
        }
        Engine::commit();
        Engine::template wait<0>();
        Engine::hold(seen);
        Engine::hold(query);
        if (Delta) Engine::hold(read);
        if (Delta) Engine::hold(erase);
      }
      if (kLate) {
        sync();
        if (asks() && pairs_ == 1 && Tiles == 2) {
          bring_state(Slot::state_b, call_.grad.chunk.states, item, 1);
        }
      }
      interactions(seen, read, query, erase, m, plain);
    }
    const float high[2] = {rows_.high[row_], rows_.high[row_ + 8]};
    const float low[2] = {rows_.low[row_], rows_.low[row_ + 8]};
    const float in[2] = {exp2_bounded(high[0] + low[0]), exp2_bounded(high[1] + low[1])};
    const float out[2] = {exp2_bounded(rows_.high[63] - high[0] + (rows_.low[63] - low[0])),
                          exp2_bounded(rows_.high[63] - high[1] + (rows_.low[63] - low[1]))};
    const float keep = exp2_bounded(rows_.high[63] + rows_.low[63]);
    float reads[2] = {};

    float state = 0.0F;
    float sum[kHalf];  // of e, where it joins w
    const bool joined = Delta && Tied && back.d_e == back.d_w;
    {
      float d[kHalf];
      read_states(d, Slot::output, call_.tensors.output, item);
      sync();
      if (asks()) {
        if (kLate) {
          bring_keys(Slot::output, call_.tensors.erase, item);
        } else if (pairs_ == 1) {
          bring_state(Slot::output, call_.grad.chunk.d_states, item, 0);
        }
      }
      const float factor[2] = {sizes().scale * in[0], sizes().scale * in[1]};
      scale_rows(d, factor);
      if (gated_) add_dots(reads, d, at(Slot::query));
      add_rows(d, m[0], at(Slot::write));
      store(d, item, back.d_q);
    }
    if constexpr (Delta) {
      read_states(sum, Slot::value, call_.tensors.value, item);
      if constexpr (kLate) {
        sync();
        if (asks() && pairs_ == 1) {
          bring_state(Slot::value, call_.grad.chunk.d_states, item, 0);
        }
        wait(Slot::output);  // e
        if (partial) {
          clear(Slot::output, Columns / 64, item.count);
          cleared();
        }
      } else {
        begin_back(item, 0, state);
      }
      const float factor[2] = {-in[0], -in[1]};
      scale_rows(sum, factor);
      if (gated_) add_dots(reads, sum, at(late_erase));
      add_rows(sum, m[1], at(Slot::write));
      if (!joined) store(sum, item, back.d_e);
    }
    if (kLate || !Delta) begin_back(item, 0, state);
    float d[kHalf];
    zero(d);
    for (int pair = 0; pair < pairs_; ++pair) {
      if (pair > 0) begin_back(item, pair, state);
      Engine::begin();
      through(d, at(Slot::update), at(kBack));
      finish<Engine>(d);
      if (Tiles == 1) continue;
      wait(Slot::state_a);
      if (gated_) state += state_product(at(Slot::state_b), at(Slot::state_a));
      Engine::begin();
      through(d, at(Slot::update) + Values::kBytes, at(Slot::state_a));
      finish<Engine>(d);
    }
    read();
    if (more) ask_first(next);
    put_square(at(Slot::value), plain[0]);
    if (Delta) put_square(at(Slot::value) + Values::kBytes, plain[1]);
    fence_async();
    scale_rows(d, out);
    float writes[2] = {};
    add_dots(writes, d, at(Slot::write));
    put_rows(rows_.high, reads);
    put_rows(rows_.low, writes);
    state = warp_sum(state);
    if (lane_ == 0) rows_.state[warp_] = keep * state;
    const float gain[2] = {rows_.gain[row_], rows_.gain[row_ + 8]};
    sync();
    Engine::begin();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      Engine::template multiply_tiles<Values, true, Keys, true>(d, at(Slot::value), at(Slot::query),
                                                                k);
    }
    if (Delta) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        Engine::template multiply_tiles<Values, true, Keys, true>(
            d, at(Slot::value) + Values::kBytes, at(late_erase), k);
      }
    }
    finish<Engine>(d);
    read();
    if (more) ask_last(next);
    if (warp_ == 0) {
      // Not earlier: registers are short, and what waits in memory is waited for.
      if (more) gates.ask(call_.grad, next, next.key_head);
      finish_gates(item);
    }
    scale_rows(d, gain);
    if (Delta && joined) {
#pragma unroll
      for (int i = 0; i < kHalf; ++i) d[i] += sum[i];
    }
    store(d, item, back.d_w);
  }

  const bool gated_;
};

}  // namespace rankone::recurrence::cuda
