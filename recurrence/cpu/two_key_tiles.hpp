#pragma once

// The two-key recurrence on a tile unit (tiles.hpp), in chunks of 64 tokens. The products have
// operands of bf16, in one part or in high and low parts; state, triangular solve, decays and sums
// are float32. The rest of a sequence, where it is shorter than kTileRest, is left to the float32
// kernels, so how long it is decides and not what came before.

#include "core/context.hpp"
#include "recurrence/cpu/two_key_chunk.hpp"
#include "recurrence/recurrence.hpp"

namespace rankone::recurrence::cpu {

inline constexpr int kTileRest = 32;
// Rows of a sequence that the tiles leave.
constexpr Index tile_rest(Index length) {
  return length % kChunk < kTileRest ? length % kChunk : 0;
}

// Whether the context wants tiles, the machine has them, and the longest sequence is long enough.
// Under per-channel decay the float32 kernels are the faster ones (docs/kernel-notes.md), so there
// tiles run only where they are asked for by name.
bool tiles_take(const Context& context, Index longest, bool channel_decay);

// Arguments are those of recurrence::two_key, float32 and validated.
void two_key_tiles(Context& context, const Sequences& sequences, const TwoKey& inputs,
                   const TwoKeyOut& out);
void two_key_vjp_tiles(Context& context, const Sequences& sequences, const TwoKey& inputs,
                       const TwoKeyCotangents& cotangents, const TwoKeyGrads& grads);

}  // namespace rankone::recurrence::cpu
