#pragma once

// rankone bench recurrence | decode on a GPU: the time of a call in a CUDA graph, with the caches
// flushed before each run and warm, and of calls one by one; what a call costs its caller on the
// host; scratch; and the error beside it.

#include <string>

#include "apps/bench_mixer.hpp"
#include "recurrence/presets.hpp"

namespace rankone::apps {

struct CudaBenchOptions {
  std::string mixer, json;
  MixerShape shape{};
  Dtype format = Dtype::bf16;
  Dtype gate_format = Dtype::f32;
  GateChoice gates = GateChoice::usual;
  bool forward = true, vjp = true;  // of bench_recurrence_on_cuda()
};

void bench_recurrence_on_cuda(const CudaBenchOptions& options);
// shape.time tokens are read before the timed steps.
void bench_decode_on_cuda(const CudaBenchOptions& options);

}  // namespace rankone::apps
