#include "recurrence/cuda/recurrent.hpp"

#include "recurrence/cuda/token_forward.hpp"

namespace rankone::recurrence::cuda {
namespace {

constexpr int kWidth = 4, kTokens = 4;

template <class Format, bool Delta>
void start(const TwoKeyCall& call, void* stream) {
  const Split split = split_of(call, 8 * kWidth);
  launch(forward_kernel<Format, float, kWidth, kTokens, Delta, false>, blocks_of(call, split),
         32 * split.warps, sizeof(float) * forward_floats<kWidth, kTokens>(split.warps), stream,
         call, split, Trace{});
}

}  // namespace

void launch_recurrent(const TwoKeyCall& call, void* stream) {
  with_format(call.format, [&](auto format) {
    using Format = decltype(format);
    if (call.delta) {
      start<Format, true>(call, stream);
    } else {
      start<Format, false>(call, stream);
    }
  });
}

}  // namespace rankone::recurrence::cuda
