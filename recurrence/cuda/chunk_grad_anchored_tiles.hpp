#pragma once

// What a block of chunk_grad_anchored.hpp has in shared memory: the slots of its tiles, who fills
// them, and where a thread finds its numbers there.

#include "core/cuda/tensor_map.hpp"
#include "recurrence/cuda/chunk_grad_worker.hpp"
#include "recurrence/cuda/chunk_inputs.hpp"

namespace rankone::recurrence::cuda {

inline constexpr int kAnchoredThreads = 256, kAnchoredBlocks = 2;  // per multiprocessor

struct AnchoredRows {
  std::uint64_t arrived[7];
  float gain[64];
  float anchor[128];  // exp(A)
  int fits[8];        // of the warps
  GradItem items[3];  // a warp may still store one while another looks for the next but one
};

struct AnchoredShared {
  using Keys = RowTile<64, 128>;
  using Values = RowTile<64, 64>;
  using State = Tile<64, 128, false>;
  enum Slot { update, output, value, state_a, state_b, back_a, back_b };
  // The same slots later on. When Z and dS have been read: M1 and M2 in that of Z, and the gates in
  // the two of dS, where they become exp(G - A). When the products with the states are done as
  // well: the keys, and numbers of columns. Gates that are no floats come to that place.
  static constexpr Slot kSquares = update, kDecays = back_a, kQuery = output, kWrite = value,
                        kErase = state_a, kColumns = state_b, kNarrow = state_b;
  static constexpr int kSlot = Keys::kBytes;
  static constexpr int kNumbers = 7 * kSlot, kBytes = kNumbers + 1024;
  static_assert(sizeof(AnchoredRows) <= 1024 && 2 * Values::kBytes == kSlot &&
                State::kBytes == kSlot);
};

// Numbers per channel.
struct AnchoredSums {
  float crossing[4][128];  // of blocks of 16 rows
  float whole[4][128];     // what all dg have, likewise
  float state[128];        // exp(G_last) <S, dS>, later all of `whole` with it
  float gain[2][64];       // db b of the groups
};

// The tiles of a block: 256 threads, two groups of four warps.
template <class Format, bool Delta>
class AnchoredTiles {
 protected:
  using Shared = AnchoredShared;
  using Slot = Shared::Slot;
  using Keys = Shared::Keys;
  using Values = Shared::Values;
  using State = Shared::State;

  __device__ explicit AnchoredTiles(const StreamCall& c)
      : call_(c),
        rows_(*reinterpret_cast<AnchoredRows*>(shared_memory() + Shared::kNumbers)),
        warp_(__shfl_sync(0xffffffffU, static_cast<int>(threadIdx.x / 32), 0)) {}

  __device__ __forceinline__ const TwoKeyCall& sizes() const { return call_.grad.chunk.call; }
  static __device__ __forceinline__ unsigned char* at(int slot) {
    return shared_memory() + slot * Shared::kSlot;
  }
  // Where the thread has its rows and columns: its first row; in bytes, tile n = 0 of the group's
  // columns of that row in a tile of keys and among the decays. Tile n stands at ^ 16 n and ^ 32 n,
  // the row eight further down kBelow and kDecaysBelow behind. Found anew by every stage,
  // so that it takes no registers in between.
  struct Place {
    int row, group, column, keys, decays;
    __device__ __forceinline__ Place() {
      const int thread = forget(static_cast<int>(threadIdx.x)), lane = thread % 32;
      row = thread / 32 % 4 * 16 + lane / 4;
      group = thread / 128;
      column = 64 * group + 2 * (lane % 4);
      keys = group * Keys::kBlock + Keys::place(row, 0) + lane % 4 * 4;
      decays = decay_place(row, 32 * group + lane % 4);
    }
  };
  static constexpr int kBelow = 8 * 128, kDecaysBelow = 8 * 512;
  static __device__ __forceinline__ float2 key(int slot, int place) {
    return unpack<Format>(*reinterpret_cast<const std::uint32_t*>(at(slot) + place));
  }
  static __device__ __forceinline__ float2 decay(int place) {
    return *reinterpret_cast<const float2*>(at(Shared::kDecays) + place);
  }
  // Where the decays of a row and a pair of channels stand: rows that are read together fall into
  // different banks. Tile n of the group's columns stands at ^ 32 n.
  static __device__ __forceinline__ int decay_place(int row, int pair) {
    return row * 512 + (pair ^ (row % 4 * 4)) * 8;
  }
  __device__ __forceinline__ int group() const { return warp_ / 4; }
  static __device__ __forceinline__ int lane() { return static_cast<int>(threadIdx.x % 32); }

  // ---- Tiles ------------------------------------------------------------------------------------

  __device__ __forceinline__ void wait(Slot slot) {
    mbarrier_wait(rows_.arrived + slot, phases_ >> slot & 1U);
    phases_ ^= 1U << slot;
  }
  // Two blocks of 64 rows and columns.
  __device__ __forceinline__ void bring(Slot slot, const TensorMap& map,
                                        const GradItem& item) const {
    mbarrier_arrive_expect(rows_.arrived + slot, Shared::kSlot);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      copy_rows(at(slot) + i * Values::kBytes, &map, 64 * i, static_cast<int>(item.key_head),
                static_cast<int>(item.first), rows_.arrived + slot);
    }
  }
  __device__ __forceinline__ void bring_state(Slot slot, const void* states, const GradItem& item,
                                              int tile) const {
    mbarrier_arrive_expect(rows_.arrived + slot, State::kBytes);
    copy_bulk(at(slot),
              static_cast<const unsigned char*>(states) +
                  2 * call_.grad.chunk.state_tile(item.chunk, item.key_head, tile),
              State::kBytes, rows_.arrived + slot);
  }
  __device__ __forceinline__ bool asks() const { return threadIdx.x == 224; }
  // Tiles of an item, by one thread and in the order in which their places fall free.
  __device__ __forceinline__ void ask_update(const GradItem& item) const {
    bring(Slot::update, call_.tensors.update, item);
  }
  __device__ __forceinline__ void ask_back(const GradItem& item) const {
    bring_state(Slot::back_a, call_.grad.chunk.d_states, item, 0);
    bring_state(Slot::back_b, call_.grad.chunk.d_states, item, 1);
  }
  __device__ __forceinline__ void ask_values(const GradItem& item) const {
    bring(Slot::output, call_.tensors.output, item);
    if (Delta) bring(Slot::value, call_.tensors.value, item);
    bring_state(Slot::state_a, call_.grad.chunk.states, item, 0);
  }
  __device__ __forceinline__ void ask_last(const GradItem& item) const {
    bring_state(Slot::state_b, call_.grad.chunk.states, item, 1);
  }
  __device__ __forceinline__ void ask_all(const GradItem& item) const {
    if (!asks()) return;
    ask_update(item);
    ask_back(item);
    ask_values(item);
    ask_last(item);
  }
  // The gates, at the width of the call.
  __device__ __forceinline__ void bring_gates(const GradItem& item, bool narrow) const {
    const Slot slot = narrow ? Shared::kNarrow : Shared::kDecays;
    mbarrier_arrive_expect(rows_.arrived + slot, (narrow ? 1 : 2) * Shared::kSlot);
    copy_rows(at(slot), &call_.tensors.gate, 0, static_cast<int>(item.key_head),
              static_cast<int>(item.first), rows_.arrived + slot);
  }
  // Rows beyond the end of the chunk are those of others.
  __device__ __forceinline__ void clear(Slot slot, int count) const {
    for (int i = 0; i < 2; ++i) {
      for (int piece = count * 8 + static_cast<int>(threadIdx.x); piece < 64 * 8;
           piece += kAnchoredThreads) {
        *reinterpret_cast<uint4*>(at(slot) + i * Values::kBytes + piece * 16) =
            make_uint4(0, 0, 0, 0);
      }
    }
  }

  const StreamCall& call_;
  AnchoredRows& rows_;
  const int warp_;
  std::uint32_t phases_ = 0;
};

}  // namespace rankone::recurrence::cuda
