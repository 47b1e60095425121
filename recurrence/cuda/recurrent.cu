#include "recurrence/cuda/recurrent.hpp"

#include "recurrence/cuda/token_forward.hpp"

namespace rankone::recurrence::cuda {

void launch_recurrent(const TwoKeyCall& call, void* stream) {
  constexpr int kTokens = 4;
  with_format(call.format, [&](auto format) {
    with_warps(warps_of(call), [&](auto warps) {
      constexpr int kWarps = warps.value;
      launch(forward_kernel<decltype(format), float, kWarps, 8, kTokens, Pass::tokens>,
             blocks_of(call), 32 * kWarps, kForwardBytes<kWarps, 8, kTokens>, stream, call,
             split_of(call), Trace{});
    });
  });
}

}  // namespace rankone::recurrence::cuda
