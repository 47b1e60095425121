#pragma once

// The two-key recurrence of this backend, for what calls it directly.

#include "recurrence/recurrence.hpp"

namespace rankone::recurrence::cpu {

// Arguments are those of recurrence::two_key, float32 and validated.
void two_key(Context& context, const Sequences& sequences, const TwoKey& inputs,
             const TwoKeyOut& out);
// With an explicit chunk length, 1..kMaxChunk, for the tests.
void two_key_vjp_chunked(Context& context, const Sequences& sequences, const TwoKey& inputs,
                         const TwoKeyCotangents& cotangents, const TwoKeyGrads& grads, int chunk);

}  // namespace rankone::recurrence::cpu
