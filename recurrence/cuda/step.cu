#include "recurrence/cuda/step.hpp"

#include "recurrence/cuda/recurrent.hpp"
#include "recurrence/cuda/token_forward.hpp"
#include "recurrence/cuda/token_step.hpp"

namespace rankone::recurrence::cuda {
namespace {

constexpr int kMostTiles = 4;  // of a block

// As many as leave enough blocks to fill a large GPU several times over.
int tiles_of(const TwoKeyCall& call) {
  constexpr std::int64_t kBlocks = 132 * 12;
  const std::int64_t tiles = blocks_of(call) / kBlocks;
  return static_cast<int>(tiles < 1 ? 1 : tiles > kMostTiles ? kMostTiles : tiles);
}

template <class Format, class Store, int Warps, int Tokens, int Tiles>
void start(const TwoKeyCall& call, int tiles, void* stream) {
  Split split = split_of(call);
  split.tiles = (split.tiles + tiles - 1) / tiles;
  launch(step_kernel<Format, Store, Warps, Tokens, Tiles>,
         call.rows.sequences * call.value_heads * split.tiles, 32 * Warps,
         StepLayout<Warps, Tokens, Tiles>::kBytes, stream, call, split, tiles);
}

template <class Format, class Store, int Warps>
void start(const TwoKeyCall& call, void* stream) {
  const bool vector =
      call.d_v % kWidth == 0 && (reinterpret_cast<std::uintptr_t>(call.initial_state) |
                                 reinterpret_cast<std::uintptr_t>(call.final_state)) %
                                        16 ==
                                    0;
  if (!vector && std::is_same_v<Store, float>) {
    launch_recurrent(call, stream);
  } else if (!vector) {
    launch(forward_kernel<Format, bf16, Warps, 8, 4, Pass::tokens>, blocks_of(call), 32 * Warps,
           kForwardBytes<Warps, 8, 4>, stream, call, split_of(call), Trace{});
  } else if (call.rows.boundaries == nullptr && call.rows.time == 1) {
    start<Format, Store, Warps, 1, 1>(call, 1, stream);
  } else {
    start<Format, Store, Warps, kStepTokens, kMostTiles>(call, tiles_of(call), stream);
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
