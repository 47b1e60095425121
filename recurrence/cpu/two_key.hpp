#pragma once

// The two-key recurrence with an explicit chunk length, for the tests: two_key of the backend is
// this with kChunk.

#include "recurrence/recurrence.hpp"

namespace rankone::recurrence::cpu {

// chunk in 1..kMaxChunk. Arguments are those of recurrence::two_key, float32 and validated.
void two_key_chunked(Context& context, const Sequences& sequences, const TwoKey& inputs,
                     const TwoKeyOut& out, int chunk);
void two_key_vjp_chunked(Context& context, const Sequences& sequences, const TwoKey& inputs,
                         const TwoKeyCotangents& cotangents, const TwoKeyGrads& grads, int chunk);

}  // namespace rankone::recurrence::cpu
