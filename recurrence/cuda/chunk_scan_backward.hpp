#pragma once

// The backward scan. Per chunk from the last to the first, with D the transposed cotangent
// [64 value columns, K] of the state at the chunk's end (rows of these matrices are value columns):
//
//     dU = out (D W^^T) + dO P;   dV = dR = (gain dU) Y      (additive: dV = gain dU)
//     D = keep D + (scale in dO) Q~ - (in dV) E~
//
// D and dU are kept divided by
// the mantissa of `scale`, which leaves a power of two with dO: so a product of inputs stays exact
// where there is no decay.

#include "recurrence/cuda/chunk_scan_forward.hpp"

namespace rankone::recurrence::cuda {

struct ScanBackward {
  ChunkCall chunk;
  ScanBack back;
  ScanTensors tensors;
  int segments = 1;
  bool maps = false;        // only the contributions to `ends`, of all segments but the first
  std::int64_t blocks = 0;  // of this scan in a launch of both
  float mantissa = 1.0F, power = 1.0F;  // scale = mantissa * power; 1 <= |mantissa| < 2, or scale 0
  int stages = 2;
  int groups = 1;  // of a block that have a tile, at most
};

template <class Format, int DK, bool Scaled, bool Delta, class Engine>
__device__ __forceinline__ void scan_backward(const ScanBackward& scan, std::int64_t block) {
  using Block = ScanBlock<Engine>;
  using Stage = ScanStage<DK, Scaled, Delta, true>;
  constexpr int kSteps = DK / 16;
  const ChunkCall& chunk = scan.chunk;
  const TwoKeyCall& call = chunk.call;
  unsigned char* const shared = shared_memory();
  const int bytes = Stage::bytes(call.same_key, scan.groups);
  const ScanBarriers barriers(shared, scan.stages, bytes);
  const ScanTask& task =
      start_block<Engine>(barriers, scan.stages, chunk, scan.tensors, block, scan.segments,
                          {scan.maps ? 1 : 0, scan.segments, false}, scan.groups);
  if (threadIdx.x >= Block::kWorkers) {
    Engine::template give_registers<kFeedRegistersBack>();
    feed_scan<Format, DK, Scaled, Delta, true, Engine, false>(
        chunk, scan.tensors, task, barriers, scan.stages, bytes, scan.back.d_o,
        scan.maps ? nullptr : scan.back.d_v, true, {}, 0);
    return;
  }
  Engine::template take_registers<kGroupRegistersBack>();
  const int group = group_number();
  if (group >= task.groups) return;
  const int tile = task.tile + group, column = tile * kValueTile;

  float state[DK / 2];  // the cotangent
#pragma unroll
  for (int i = 0; i < DK / 2; ++i) state[i] = 0.0F;
  const std::int64_t head_number = task.sequence * call.value_heads + task.head;
  const std::int64_t size = std::int64_t{call.d_k} * call.d_v;
  if (task.segment + 1 < scan.segments) {
    if (!scan.maps) {
      read_transposed<DK>(state,
                          scan.back.ends + (head_number * scan.segments + task.segment) * size,
                          column, call.d_k, call.d_v);
    }
  } else if (scan.back.d_final != nullptr) {
    read_state<DK>(state, scan.back.d_final + head_number * size, column, call.d_k, call.d_v);
#pragma unroll
    for (int i = 0; i < DK / 2; ++i) state[i] /= scan.mantissa;
  }

  const float inverse = 1.0F / scan.mantissa;  // P has the whole scale
  StageTurns<Engine> turns(barriers, scan.stages);
  turns.first(task.end > task.begin);
  for (int index = task.end - 1; index >= task.begin; --index) {
    unsigned char* const stage = shared + turns.stage() * bytes;
    unsigned char* const values = stage + Stage::value(call.same_key, group);
    if constexpr (Engine::kBulk) {
      const int count = task.count(index);
      if (count < kChunkRows) clear_beyond<Stage, Scaled, true>(stage, call.same_key, count);
    }
    turns.start();

    std::uint32_t left[kSteps][4];
    round_to<Format>(left, state);
    std::uint32_t right[4][4];  // dO, then gain dU, rounded
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      load_a_transposed<typename Stage::Value>(right[k], values, 16 * group_warp(), k);
    }
    constexpr bool kApart = sums_apart(Scaled, Delta);
    [[maybe_unused]] float sums[kApart ? DK / 2 : 1];
    float carried[32];  // D W^^T, then gain dU, then dV
    float local[32];    // dO P
    Engine::begin();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      Engine::template multiply<typename Stage::Square, true>(local, right[k],
                                                              stage + Stage::kSquareP, k, k == 0);
    }
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      Engine::template multiply<typename Stage::Key, false>(carried, left[k], stage + Stage::kWrite,
                                                            k, k == 0);
    }
    Engine::commit();
    if (chunk.d_states != nullptr) {
      std::uint32_t whole[kSteps][4];  // with the mantissa
#pragma unroll
      for (int k = 0; k < kSteps; ++k) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          whole[k][j] = pack<Format>(scan.mantissa * state[8 * k + 2 * j],
                                     scan.mantissa * state[8 * k + 2 * j + 1]);
        }
      }
      store_state_tile<DK>(whole,
                           static_cast<unsigned char*>(chunk.d_states) +
                               2 * chunk.state_tile(task.first_chunk + index, task.head, tile));
    }
    std::uint32_t query[4][4];  // scale in dO
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const float2 in = pair_of(stage + Stage::kIn, n);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float2 d = unpack<Format>(right[n / 2][2 * (n % 2) + j]);
        query[n / 2][2 * (n % 2) + j] =
            pack<Format>(scan.power * in.x * d.x, scan.power * in.y * d.y);
      }
    }
    Engine::template wait<0>();
    Engine::hold(carried);
    Engine::hold(local);
    if constexpr (!kApart) decay_state<DK, Scaled>(state, stage + Stage::kKeep);
    Engine::begin();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if constexpr (kApart) {
        Engine::template multiply<typename Stage::Key, true>(sums, query[k], stage + Stage::kQuery,
                                                             k, k == 0);
      } else {
        Engine::template multiply<typename Stage::Key, true>(state, query[k], stage + Stage::kQuery,
                                                             k, false);
      }
    }
    Engine::commit();
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const float2 out = pair_of(stage + Stage::kOut, n);
      const float2 gain = pair_of(stage + Stage::kGain, n);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        float* d = carried + 4 * n + 2 * j;
        d[0] = gain.x * (out.x * d[0] + inverse * local[4 * n + 2 * j]);
        d[1] = gain.y * (out.y * d[1] + inverse * local[4 * n + 2 * j + 1]);
      }
    }
    [[maybe_unused]] const bool precise =
        Delta && *reinterpret_cast<const float*>(stage + Stage::kPrecise) != 0.0F;
    if constexpr (Delta) {
      round_to<Format>(right, carried);
      if (precise) {
        std::uint32_t rest[4][4];
        rest_of<Format>(rest, carried, right);
        put_rows<typename Stage::Value>(rest, values);
      }
      Engine::begin();
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        Engine::template multiply<typename Stage::Square, true>(carried, right[k],
                                                                stage + Stage::kSquareY, k, false);
      }
      Engine::commit();
    }
    Engine::template wait<0>();
    Engine::hold(carried);
    if constexpr (kApart) {
      Engine::hold(sums);
      add_sums(state, sums, stage + Stage::kKeep);
    } else {
      Engine::hold(state);
    }
    if constexpr (Delta) {
      if (precise) {
        add_rest<Format, typename Stage::Value, typename Stage::Square, true>(
            carried, right, values, stage + Stage::kSquareY,
            task.record + index * (call.value_heads * chunk.layout.bytes) +
                chunk.layout.square_low);
      }
    }
    std::uint32_t result[4][4], erase[4][4];  // dV; - in dV
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const float2 in = pair_of(stage + Stage::kIn, n);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float x = carried[4 * n + 2 * j], y = carried[4 * n + 2 * j + 1];
        result[n / 2][2 * (n % 2) + j] = pack<Format>(scan.mantissa * x, scan.mantissa * y);
        if constexpr (Delta) erase[n / 2][2 * (n % 2) + j] = pack<Format>(-in.x * x, -in.y * y);
      }
    }
    if constexpr (Delta) {
      Engine::begin();
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        Engine::template multiply<typename Stage::Key, true>(
            state, erase[k], stage + Stage::erase(call.same_key), k, false);
      }
      Engine::commit();
    }
    put_rows<typename Stage::Value>(result, values);
    turns.read();
    turns.ahead(index > task.begin);
    Engine::template wait<0>();
    Engine::hold(state);
    turns.finish();
  }

  // (Computed anew: registers are short in the loop.)
  const std::int64_t same_head = task.sequence * call.value_heads + task.head;
  if (scan.maps) {
    write_transposed<DK>(
        scan.back.ends + (same_head * scan.segments + task.segment - 1) * call.d_k * call.d_v,
        state, column, call.d_k, call.d_v);
  } else if (scan.back.d_initial != nullptr && task.segment == 0) {
    write_state<DK>(scan.back.d_initial + same_head * call.d_k * call.d_v, state, scan.mantissa,
                    column, call.d_k, call.d_v);
  }
}

}  // namespace rankone::recurrence::cuda
