#include "recurrence/cuda/step.hpp"

#include "recurrence/cuda/token_forward.hpp"

namespace rankone::recurrence::cuda {
namespace {

template <class Format, class Store, int Warps, int Tokens, Pass kPass, bool Vector>
void start(const TwoKeyCall& call, void* stream) {
  launch(forward_kernel<Format, Store, Warps, Tokens, kPass, Vector>, blocks_of(call), 32 * Warps,
         kForwardBytes<Warps, Tokens>, stream, call, split_of(call), Trace{});
}

template <class Format, class Store, int Warps>
void start(const TwoKeyCall& call, void* stream) {
  const bool vector =
      call.d_v % kWidth == 0 && (reinterpret_cast<std::uintptr_t>(call.initial_state) |
                                 reinterpret_cast<std::uintptr_t>(call.final_state)) %
                                        16 ==
                                    0;
  // A packed call has its lengths on the device.
  const bool one = call.rows.boundaries == nullptr && call.rows.time == 1;
  if (!vector) {
    start<Format, Store, Warps, 4, Pass::tokens, false>(call, stream);
  } else if (one) {
    start<Format, Store, Warps, 1, Pass::one_token, true>(call, stream);
  } else {
    start<Format, Store, Warps, 4, Pass::tokens, true>(call, stream);
  }
}

}  // namespace

void launch_step(const TwoKeyCall& call, void* stream) {
  with_format(call.format, [&](auto format) {
    with_warps(warps_of(call), [&](auto warps) {
      using Format = decltype(format);
      if (call.state_dtype == Dtype::bf16) {
        start<Format, bf16, warps.value>(call, stream);
      } else {
        start<Format, float, warps.value>(call, stream);
      }
    });
  });
}

}  // namespace rankone::recurrence::cuda
