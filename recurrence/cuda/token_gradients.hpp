#pragma once

// The gradients of one chunk of 32 tokens and one value head, from what the two scans kept. With
// S_0 the state before the chunk, G the gradient of the state after it, a the factors of decay,
// D_i = a_1 .. a_i, E_j = a_(j+1) .. a_n, f_ij = a_(j+1) .. a_i, and per key channel:
//
//     P_ij = scale do_i . u_j (j <= i)     A_ij = -dv_i . u_j (j < i)     u = b r
//     dq_i =  scale D_i S_0 do_i + sum_(j <= i) P_ij f_ij w_j
//     de_i = -D_i S_0 dv_i + sum_(j < i) A_ij f_ij w_j
//     dw_j =  E_j G u_j + sum_(i >= j) P_ij f_ij q_i + sum_(i > j) A_ij f_ij e_i
//     db_i =  du_i . r_i
//     dg_t =  D_n rowsum(S_0 * G) + sum_(j < t) w_j (E_j G u_j)
//           + sum_(i >= t) (q_i scale D_i S_0 do_i - e_i D_i S_0 dv_i)
//           + sum_(i >= t) (q_i dq'_i + e_i de'_i - w_i dw'_i),   ' the sums over i > j alone
//
// Products of factors are running products, which can only lose what the recurrence itself loses.

#include "recurrence/cuda/token.hpp"

namespace rankone::recurrence::cuda {

inline constexpr int kChunkRows = 32;

struct ChunkInputs {
  const float *residual = nullptr, *d_update = nullptr;  // [R, HV, V]
  const float *states = nullptr, *d_states = nullptr;    // [chunks, HV, V, keys]
  // Gradients; null where not wanted. Of the rows of key heads, [R, H, K], where each has one value
  // head; else [R, HV, K], to be added. Where tied, `write` receives de + dw.
  void *query = nullptr, *erase = nullptr, *write = nullptr;
  bool tied = false;
};

inline constexpr int kTileColumns = 32;
inline constexpr int kTileRow = kChunkRows + 4;  // of do, dv and u, transposed

// Shared memory of gradient_kernel.
inline int gradient_floats(int keys) {
  return 4 * kChunkRows * keys + 3 * kTileColumns * kTileRow + 2 * kChunkRows * kChunkRows +
         kChunkRows;
}

// A block of `keys` threads, one a key channel. Output is Format, or float to be added.
template <class Format, class Output>
__global__ void __launch_bounds__(256)
    gradient_kernel(const TwoKeyCall call, const TwoKeyBack back, const ChunkInputs in) {
  constexpr int C = kChunkRows;
  const int thread = static_cast<int>(threadIdx.x), keys = static_cast<int>(blockDim.x);
  const int warp = thread / 32, lane = thread % 32, warps = keys / 32;
  const std::int64_t number = blockIdx.x / call.value_heads, head = blockIdx.x % call.value_heads;
  const std::int64_t group = call.value_heads / call.heads, key_head = head / group;
  const int parts = call.rows.chunk / C;
  const Span span = call.rows.span(number / parts);
  const int skipped = static_cast<int>(number % parts) * C;
  if (skipped >= span.count) return;
  const std::int64_t first = span.first + skipped;
  const int n = span.count - skipped < C ? span.count - skipped : C;
  const int d_k = call.d_k, d_v = call.d_v;

  auto* decay = reinterpret_cast<float*>(shared_memory()) + thread;  // [C, keys] from here on
  float* const column_1 = decay + C * keys;
  float* const column_2 = column_1 + C * keys;
  float* const column_3 = column_2 + C * keys;
  float* const tile_o = column_3 + C * keys - thread;      // [kTileColumns, kTileRow]: do
  float* const tile_v = tile_o + kTileColumns * kTileRow;  // dv
  float* const tile_u = tile_v + kTileColumns * kTileRow;
  auto* pairs = reinterpret_cast<float2*>(tile_u + kTileColumns * kTileRow);  // P, A [C, C]
  float* const d_gain = reinterpret_cast<float*>(pairs + C * C);

  const bool has_key = thread < d_k;
  for (int i = 0; i < n; ++i) {
    const std::int64_t gate = (first + i) * call.value_heads + head;
    float factor = 1.0F;
    if (has_key && call.gate == GateKind::channel) {
      factor = token_decay(gate_value(call.g.dtype, gate_bits(call.g, gate * d_k + thread)));
    } else if (call.gate == GateKind::scalar) {
      factor = token_decay(gate_value(call.g.dtype, gate_bits(call.g, gate)));
    }
    decay[i * keys] = factor;
  }
  for (int i = thread; i < C * C; i += keys) pairs[i] = make_float2(0.0F, 0.0F);
  for (int i = thread; i < C; i += keys) d_gain[i] = 0.0F;

  // Products with the states, by column tiles.
  float s_o[C], s_v[C], g_u[C], whole = 0.0F;
#pragma unroll
  for (int i = 0; i < C; ++i) s_o[i] = s_v[i] = g_u[i] = 0.0F;
  const std::int64_t state_at = (number * call.value_heads + head) * d_v * keys + thread;
  for (int start = 0; start < d_v; start += kTileColumns) {
    const int columns = d_v - start < kTileColumns ? d_v - start : kTileColumns;
    __syncthreads();
    for (int i = warp; i < C; i += warps) {
      const std::int64_t gate = (first + i) * call.value_heads + head;
      float d_o = 0.0F, r = 0.0F, du = 0.0F, gain = 1.0F;
      if (i < n && lane < columns) {
        const std::int64_t value = gate * d_v + start + lane;
        d_o = widen(static_cast<const Format*>(back.d_o)[value]);
        r = in.residual[value];
        du = in.d_update[value];
      }
      if (i < n && call.b.data != nullptr) {
        gain = gate_value(call.b.dtype, gate_bits(call.b, gate));
      }
      tile_o[lane * kTileRow + i] = call.scale * d_o;
      tile_v[lane * kTileRow + i] = -gain * du;
      tile_u[lane * kTileRow + i] = gain * r;
      float product = du * r;
#pragma unroll
      for (int step = 16; step > 0; step /= 2) {
        product += __shfl_xor_sync(0xffffffffU, product, step);
      }
      if (lane == 0) d_gain[i] += product;
    }
    __syncthreads();
    // Four rows of pairs by one column a turn; warps with their rows above the column skip it.
    for (int task = thread; task < C * C / 4; task += keys) {
      const int row = task / C * 4, column = task % C;
      if (row + 3 < column || row >= n) continue;
      float p[4] = {0.0F, 0.0F, 0.0F, 0.0F}, a[4] = {0.0F, 0.0F, 0.0F, 0.0F};
      for (int v = 0; v < columns; ++v) {
        const float4 o = *reinterpret_cast<const float4*>(tile_o + v * kTileRow + row);
        const float4 x = *reinterpret_cast<const float4*>(tile_v + v * kTileRow + row);
        const float u = tile_u[v * kTileRow + column];
        p[0] += o.x * u, p[1] += o.y * u, p[2] += o.z * u, p[3] += o.w * u;
        a[0] += x.x * u, a[1] += x.y * u, a[2] += x.z * u, a[3] += x.w * u;
      }
      for (int i = 0; i < 4; ++i) {
        float2& pair = pairs[(row + i) * C + column];
        pair = make_float2(pair.x + p[i], pair.y + a[i]);
      }
    }
    const float* state = in.states + state_at + static_cast<std::int64_t>(start) * keys;
    const float* d_state = in.d_states + state_at + static_cast<std::int64_t>(start) * keys;
    for (int v = 0; v < columns; ++v) {
      const float s = state[v * keys], g = d_state[v * keys];
      whole += s * g;
#pragma unroll
      for (int i = 0; i < C; i += 4) {
        const float4 o = *reinterpret_cast<const float4*>(tile_o + v * kTileRow + i);
        const float4 x = *reinterpret_cast<const float4*>(tile_v + v * kTileRow + i);
        const float4 u = *reinterpret_cast<const float4*>(tile_u + v * kTileRow + i);
        s_o[i] += s * o.x, s_o[i + 1] += s * o.y, s_o[i + 2] += s * o.z, s_o[i + 3] += s * o.w;
        s_v[i] += s * x.x, s_v[i + 1] += s * x.y, s_v[i + 2] += s * x.z, s_v[i + 3] += s * x.w;
        g_u[i] += g * u.x, g_u[i + 1] += g * u.y, g_u[i + 2] += g * u.z, g_u[i + 3] += g * u.w;
      }
    }
  }
#pragma unroll
  for (int i = 0; i < C; ++i) {
    column_1[i * keys] = s_o[i];
    column_2[i * keys] = s_v[i];
    column_3[i * keys] = g_u[i];
  }
  __syncthreads();

  // From here on a thread reads and writes its own columns only.
  const std::int64_t key_row = call.heads * d_k;
  const std::int64_t key_at = (first * call.heads + key_head) * d_k + thread;
  const auto* q = static_cast<const Format*>(call.q) + key_at;
  const auto* e = static_cast<const Format*>(call.delta ? call.e : call.w) + key_at;
  const auto* w = static_cast<const Format*>(call.w) + key_at;
  const bool added = group > 1;
  const std::int64_t out_row = added ? call.value_heads * d_k : key_row;
  const std::int64_t out_at = added ? (first * call.value_heads + head) * d_k + thread : key_at;
  const auto put = [&](void* gradient, int i, float value) {
    if (gradient != nullptr)
      static_cast<Output*>(gradient)[out_at + i * out_row] = narrow<Output>(value);
  };
  if (has_key) {
    // Queries and erase keys. Leaves q dq + e de (no diagonal) in column 1, de in column 2.
    float from_start = 1.0F;
    for (int i = 0; i < n; ++i) {
      from_start *= decay[i * keys];
      float d_q = from_start * column_1[i * keys], d_e = from_start * column_2[i * keys];
      float inner_q = 0.0F, inner_e = 0.0F, factor = 1.0F;
      for (int j = i - 1; j >= 0; --j) {
        factor *= decay[(j + 1) * keys];
        const float key = factor * widen(w[j * key_row]);
        const float2 pair = pairs[i * C + j];
        inner_q += pair.x * key;
        inner_e += pair.y * key;
      }
      d_q += inner_q;
      d_e += inner_e;
      const float erases = call.delta ? widen(e[i * key_row]) : 0.0F;
      column_1[i * keys] = widen(q[i * key_row]) * d_q + erases * d_e;
      column_2[i * keys] = d_e;
      d_q += pairs[i * C + i].x * widen(w[i * key_row]);
      put(in.query, i, d_q);
      put(in.erase, i, d_e);
    }
    // Write keys, from the last. Leaves the suffix sums of the gradient of the decay in column 1,
    // the terms of its prefix sums in column 3.
    float to_end = 1.0F, suffix = 0.0F;
    for (int j = n - 1; j >= 0; --j) {
      const float through = to_end * column_3[j * keys];
      float inner = 0.0F, factor = 1.0F;
      for (int i = j + 1; i < n; ++i) {
        factor *= decay[i * keys];
        const float2 pair = pairs[i * C + j];
        float reader = pair.x * widen(q[i * key_row]);
        if (call.delta) reader += pair.y * widen(e[i * key_row]);
        inner += factor * reader;
      }
      const float key = widen(w[j * key_row]);
      suffix += column_1[j * keys] - key * inner;
      column_1[j * keys] = suffix;
      column_3[j * keys] = key * through;
      float d_w = through + inner + pairs[j * C + j].x * widen(q[j * key_row]);
      if (in.tied) d_w += column_2[j * keys];
      put(in.write, j, d_w);
      to_end *= decay[j * keys];
    }
    float before = to_end * whole;
    for (int i = 0; i < n; ++i) {
      const float d_g = before + column_1[i * keys];
      before += column_3[i * keys];
      column_1[i * keys] = d_g;
      if (call.gate == GateKind::channel && back.d_g != nullptr) {
        put_gate(back.d_g, call.g.dtype, ((first + i) * call.value_heads + head) * d_k + thread,
                 d_g);
      }
    }
  } else {
    for (int i = 0; i < n; ++i) column_1[i * keys] = 0.0F;
  }
  if (back.d_b != nullptr) {
    for (int i = thread; i < n; i += keys) {
      put_gate(back.d_b, call.b.dtype, (first + i) * call.value_heads + head, d_gain[i]);
    }
  }
  if (call.gate != GateKind::scalar || back.d_g == nullptr) return;
  __syncthreads();
  for (int i = warp; i < n; i += warps) {
    float sum = 0.0F;
    for (int k = lane; k < keys; k += 32) sum += column_1[i * keys + k - thread];
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffU, sum, step);
    if (lane == 0) put_gate(back.d_g, call.g.dtype, (first + i) * call.value_heads + head, sum);
  }
}

// [R, HV, K] added over the value heads of each key head, in order, into [R, H, K].
template <class Format>
__global__ void __launch_bounds__(256)
    add_heads_kernel(const float* from, Format* to, std::int64_t elements, std::int64_t heads,
                     std::int64_t group, std::int64_t d_k) {
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * 256 + threadIdx.x;
  if (at >= elements) return;
  const std::int64_t row = at / (heads * d_k), inside = at % (heads * d_k);
  const std::int64_t head = inside / d_k, channel = inside % d_k;
  const float* first = from + (row * heads * group + head * group) * d_k + channel;
  float sum = 0.0F;
  for (std::int64_t i = 0; i < group; ++i) sum += first[i * d_k];
  to[at] = narrow<Format>(sum);
}

}  // namespace rankone::recurrence::cuda
