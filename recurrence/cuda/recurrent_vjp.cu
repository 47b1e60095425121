// The way back in three passes, and a sum where value heads share keys:
//
//   1. the recurrence forward, token by token: keeps the residual r = v - S~^T e of every token and
//      the state at the start of every chunk of 32;
//   2. its reverse, token by token, which needs no state:
//        Gr += scale q do^T;  du = Gr^T w;  dv = b du;  Gr -= e dv^T;  Gr <- diag(exp g) Gr
//      and keeps du and the gradient Gr of the state at the end of every chunk;
//   3. all chunks at once: with u = b r and dv known, the gradients of q, e, w, g and b are
//   products
//      of what was kept. The gradient of the decay takes the terms that cross it
//      (docs/kernel-notes.md): the sum over all later tokens has no correct digit under strong
//      decay.

#include "recurrence/cuda/recurrent_vjp.hpp"

#include "recurrence/cuda/token_backward.hpp"
#include "recurrence/cuda/token_gradients.hpp"

namespace rankone::recurrence::cuda {
namespace {

constexpr int kTokens = 4;

// What the workspace holds.
struct Kept {
  float *residual, *d_update;    // [R, HV, V]
  float *states, *d_states;      // [chunks, HV, V, keys]
  float *query, *erase, *write;  // [R, HV, K], where value heads share keys
  std::size_t bytes = 0;

  Kept(const TwoKeyCall& call, std::int64_t rows, void* workspace) {
    const std::int64_t keys = 32 * warps_of(call);
    const std::int64_t values = rows * call.value_heads * call.d_v;
    const std::int64_t chunks = call.rows.chunks * (call.rows.chunk / kChunkRows);
    const std::int64_t state = chunks * call.value_heads * call.d_v * keys;
    const std::int64_t shared =
        call.value_heads > call.heads ? rows * call.value_heads * call.d_k : 0;
    const auto take = [&](std::int64_t floats) {
      const std::size_t at = bytes;
      bytes += (static_cast<std::size_t>(floats) * sizeof(float) + 255) / 256 * 256;
      return workspace == nullptr
                 ? nullptr
                 : reinterpret_cast<float*>(static_cast<unsigned char*>(workspace) + at);
    };
    residual = take(values);
    d_update = take(values);
    states = take(state);
    d_states = take(state);
    query = take(shared);
    erase = take(shared);
    write = take(shared);
  }
};

template <class Format, int Warps>
void scan(const TwoKeyCall& call, const TwoKeyBack& back, const Kept& kept, void* stream) {
  TwoKeyCall forward = call;
  forward.final_state = nullptr;
  launch(forward_kernel<Format, float, Warps, 8, kTokens, Pass::traced>, blocks_of(call),
         32 * Warps, kForwardBytes<Warps, 8, kTokens>, stream, forward, split_of(call),
         Trace{kept.residual, kept.states, kChunkRows});
  launch(backward_kernel<Format, Warps, 8, kTokens>, blocks_of(call), 32 * Warps,
         kBackwardBytes<Warps, 8, kTokens>, stream, call, back, split_of(call),
         BackTrace{kept.d_update, kept.d_states, kChunkRows});
}

template <class Format>
void gradients(const TwoKeyCall& call, const TwoKeyBack& back, std::int64_t rows, const Kept& kept,
               void* stream) {
  const bool shared = call.value_heads > call.heads;
  const bool tied = back.d_e != nullptr && back.d_e == back.d_w;
  ChunkInputs in;
  in.residual = kept.residual;
  in.d_update = kept.d_update;
  in.states = kept.states;
  in.d_states = kept.d_states;
  in.tied = tied;
  const int keys = 32 * warps_of(call);
  const std::int64_t blocks = call.rows.chunks * (call.rows.chunk / kChunkRows) * call.value_heads;
  const std::size_t bytes = sizeof(float) * gradient_floats(keys);
  const std::int64_t elements = rows * call.heads * call.d_k;
  if (!shared) {
    in.query = back.d_q;
    in.erase = tied ? nullptr : back.d_e;
    in.write = back.d_w;
    launch(gradient_kernel<Format, Format>, blocks, keys, bytes, stream, call, back, in);
    return;
  }
  in.query = back.d_q == nullptr ? nullptr : kept.query;
  in.erase = tied || back.d_e == nullptr ? nullptr : kept.erase;
  in.write = back.d_w == nullptr ? nullptr : kept.write;
  launch(gradient_kernel<Format, float>, blocks, keys, bytes, stream, call, back, in);
  const auto add = [&](const float* from, void* to) {
    if (from == nullptr) return;
    launch(add_heads_kernel<Format>, (elements + 255) / 256, 256, 0, stream, from,
           static_cast<Format*>(to), elements, call.heads, call.value_heads / call.heads, call.d_k);
  };
  add(static_cast<float*>(in.query), back.d_q);
  add(static_cast<float*>(in.erase), back.d_e);
  add(static_cast<float*>(in.write), back.d_w);
}

}  // namespace

std::size_t recurrent_vjp_bytes(const TwoKeyCall& call, std::int64_t rows) {
  return Kept(call, rows, nullptr).bytes;
}

void launch_recurrent_vjp(const TwoKeyCall& call, const TwoKeyBack& back, std::int64_t rows,
                          void* workspace, void* stream) {
  const Kept kept(call, rows, workspace);
  with_format(call.format, [&](auto format) {
    using Format = decltype(format);
    with_warps(warps_of(call),
               [&](auto warps) { scan<Format, warps.value>(call, back, kept, stream); });
    gradients<Format>(call, back, rows, kept, stream);
  });
}

}  // namespace rankone::recurrence::cuda
