#pragma once

// The two-key recurrence of this backend, for what calls it directly.

#include "recurrence/recurrence.hpp"

namespace rankone::recurrence::cpu {

// A preconditioner that runs inside the tasks of the recurrence: its rows are made a span at a time
// in the scratch of the task, where the recurrence reads them, or where `out.out` wants them.
struct PreconditionedKeys {
  const Precondition& inputs;
  const PreconditionOut& out;
};

// Arguments are those of recurrence::two_key, float32 and validated. With `keys` a head must be one
// task, and w (atk) or q (atq) is there for its shape only.
void two_key(Context& context, const Sequences& sequences, const TwoKey& inputs,
             const TwoKeyOut& out, const PreconditionedKeys* keys = nullptr);
bool one_task_a_head(const Sequences& sequences, const TwoKey& inputs, int threads);
// With an explicit chunk length, 1..kMaxChunk, for the tests.
void two_key_vjp_chunked(Context& context, const Sequences& sequences, const TwoKey& inputs,
                         const TwoKeyCotangents& cotangents, const TwoKeyGrads& grads, int chunk);

}  // namespace rankone::recurrence::cpu
