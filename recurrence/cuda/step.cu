#include "recurrence/cuda/step.hpp"

#include "recurrence/cuda/token_forward.hpp"

namespace rankone::recurrence::cuda {
namespace {

template <class Format, class Store, int Width, int Tokens, bool Delta>
void start(const TwoKeyCall& call, void* stream) {
  const Split split = split_of(call, 8 * Width);
  launch(forward_kernel<Format, Store, Width, Tokens, Delta, false>, blocks_of(call, split),
         32 * split.warps, sizeof(float) * forward_floats<Width, Tokens>(split.warps), stream, call,
         split, Trace{});
}

template <class Format, class Store, int Width, int Tokens>
void start(const TwoKeyCall& call, void* stream) {
  if (call.delta) {
    start<Format, Store, Width, Tokens, true>(call, stream);
  } else {
    start<Format, Store, Width, Tokens, false>(call, stream);
  }
}

template <class Format, class Store, int Width>
void start(const TwoKeyCall& call, void* stream) {
  // A packed call has its lengths on the device.
  if (call.rows.boundaries == nullptr && call.rows.time == 1) {
    start<Format, Store, Width, 1>(call, stream);
  } else {
    start<Format, Store, Width, 4>(call, stream);
  }
}

}  // namespace

void launch_step(const TwoKeyCall& call, void* stream) {
  with_format(call.format, [&](auto format) {
    using Format = decltype(format);
    if (call.state_dtype == Dtype::bf16) {
      start<Format, bf16, 8>(call, stream);
    } else {
      start<Format, float, 4>(call, stream);
    }
  });
}

}  // namespace rankone::recurrence::cuda
