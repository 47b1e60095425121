#include "tests/cases/cases.hpp"

namespace rankone::test {
namespace {

using enum GateShape;

// Where decay is strong the plain implementation, which subtracts running sums, is a weak
// yardstick: there the relative error itself is held to a few roundings, without a floor.
constexpr double kStrong = 3e-6;
using V = GateValues;

// Lengths 1, 2, 3, 0, 1, ...
std::vector<std::int64_t> many_sequences(std::int64_t count) {
  std::vector<std::int64_t> boundaries{0};
  for (std::int64_t i = 0; i < count; ++i) boundaries.push_back(boundaries.back() + (i + 1) % 4);
  return boundaries;
}

std::vector<Case> make_cases() {
  std::vector<Case> list = {
      // The axes, at sizes that leave a ragged last chunk and a ragged last vector.
      {.name = "scalar", .gate = scalar, .batch = 2, .time = 150, .heads = 2, .value_heads = 2},
      {.name = "none", .gate = none, .time = 150, .d_k = 48, .d_v = 40},
      {.name = "channel", .gate = channel, .batch = 2, .time = 150, .heads = 2, .value_heads = 2},
      {.name = "additive_none", .gate = none, .time = 100, .delta = false},
      {.name = "additive_no_gain", .gate = none, .gains = Gains::none, .time = 200, .delta = false},
      {.name = "additive_scalar", .gate = scalar, .time = 131, .d_v = 64, .delta = false},
      {.name = "additive_channel", .gate = channel, .time = 131, .d_k = 40, .delta = false},
      {.name = "two_keys_none", .gate = none, .time = 97, .two_keys = true},
      {.name = "two_keys_scalar", .gate = scalar, .time = 129, .two_keys = true},
      {.name = "two_keys_channel", .gate = channel, .time = 129, .two_keys = true},
      {.name = "no_initial_state", .gate = scalar, .time = 130, .initial = false},
      {.name = "no_initial_state_channel", .gate = channel, .time = 70, .initial = false},
      {.name = "no_gain", .gate = scalar, .gains = Gains::none, .time = 70},
      {.name = "gain_some_zero", .gate = channel, .gains = Gains::some_zero, .time = 100},
      {.name = "gain_up_to_two", .gate = scalar, .gains = Gains::up_to_two, .time = 140},
      {.name = "grouped_2",
       .gate = scalar,
       .time = 80,
       .heads = 2,
       .value_heads = 4,
       .two_keys = true},
      {.name = "grouped_8_channel", .gate = channel, .time = 80, .value_heads = 8, .d_v = 16},
      {.name = "width_128",
       .gate = scalar,
       .time = 200,
       .heads = 2,
       .value_heads = 2,
       .d_k = 128,
       .d_v = 128},
      {.name = "width_128_channel", .gate = channel, .time = 90, .d_k = 128, .d_v = 128},
      {.name = "packed",
       .gate = scalar,
       .heads = 2,
       .value_heads = 2,
       .d_k = 24,
       .cu_seqlens = {0, 1, 65, 65, 130, 133, 260}},
      {.name = "packed_channel", .gate = channel, .d_v = 24, .cu_seqlens = {0, 3, 20, 84, 84, 147}},
      {.name = "typical", .gate = scalar, .gates = V::typical, .time = 200},
      {.name = "zero_gates", .gate = channel, .gates = V::zero, .time = 100},

      // Head sizes that are no multiple of a vector, and the largest.
      {.name = "width_48", .gate = scalar, .time = 70, .d_k = 48, .d_v = 48},
      {.name = "width_60", .gate = channel, .time = 70, .d_k = 60, .d_v = 60},
      {.name = "width_96", .gate = channel, .time = 70, .d_k = 96, .d_v = 96},
      {.name = "width_100", .gate = scalar, .time = 70, .d_k = 100, .d_v = 100},
      {.name = "width_1", .gate = channel, .time = 70, .d_k = 1, .d_v = 1},
      {.name = "width_7_by_3", .gate = channel, .time = 70, .d_k = 7, .d_v = 3},
      {.name = "width_192_by_5", .gate = scalar, .time = 66, .d_k = 192, .d_v = 5},
      {.name = "width_256", .gate = channel, .time = 66, .d_k = 256, .d_v = 64},
      {.name = "width_256_scalar", .gate = scalar, .time = 66, .d_k = 256, .d_v = 256},
      {.name = "width_16_by_1024", .gate = scalar, .time = 66, .d_k = 16, .d_v = 1024},

      // T1: every gate forgets almost everything, ragged last chunk.
      {.name = "t1_harsh", .gate = scalar, .gates = V::harsh, .time = 75, .bound = kStrong},
      {.name = "t1_harsh_channel",
       .gate = channel,
       .gates = V::harsh,
       .time = 75,
       .bound = kStrong},
      // T2: keys of norm 8, so the state grows to 1e15 and rounding with it: the ratio scatters,
      // the
      // bound is that of the golden files.
      {.name = "t2_raw_keys",
       .gate = none,
       .keys = Keys::raw,
       .time = 40,
       .d_k = 64,
       .d_v = 64,
       .bound = 2e-5},
      // T4: a factor beyond float32 on a state that is zero.
      {.name = "t4_jump",
       .gate = scalar,
       .gates = V::jump,
       .time = 4,
       .d_k = 4,
       .d_v = 4,
       .initial = false,
       .bound = kStrong},
      {.name = "t4_jump_channel",
       .gate = channel,
       .gates = V::jump,
       .time = 20,
       .d_k = 4,
       .d_v = 4,
       .initial = false,
       .bound = kStrong},
      // T5: runs of identical keys of norm 1 +- 2^-8, gain close to a reflection, no decay.
      {.name = "t5_rounded_keys",
       .gate = none,
       .keys = Keys::rounded,
       .gains = Gains::near_two,
       .time = 1024,
       .d_k = 64,
       .d_v = 16},
      // T7: the lower bound of KDA, saturated, and channels that alternate.
      {.name = "t7_minus_5_short",
       .gate = channel,
       .gates = V::minus_5,
       .time = 64,
       .bound = kStrong},
      {.name = "t7_minus_5",
       .gate = channel,
       .gates = V::minus_5,
       .time = 1000,
       .d_v = 16,
       .bound = kStrong},
      {.name = "t7_minus_3",
       .gate = channel,
       .gates = V::minus_3,
       .time = 300,
       .d_v = 16,
       .bound = kStrong},
      {.name = "t7_alternating",
       .gate = channel,
       .gates = V::alternating,
       .time = 300,
       .d_v = 16,
       .two_keys = true,
       .bound = kStrong},
      // T10: more (sequence, head) pairs than a 16-bit grid, and empty sequences. The worst of
      // 134,000
      // rows of four numbers says nothing beside another worst: an absolute bound.
      {.name = "t10_many_sequences",
       .gate = scalar,
       .heads = 32,
       .value_heads = 32,
       .d_k = 4,
       .d_v = 4,
       .cu_seqlens = many_sequences(2100),
       .bound = kStrong},
      {.name = "t10_empty_sequences", .gate = channel, .cu_seqlens = {0, 0, 5, 5, 5, 7, 7}},
      {.name = "no_tokens", .gate = scalar, .cu_seqlens = {0, 0, 0}},

      // Stress: the gates.
      {.name = "minus_30", .gate = channel, .gates = V::minus_30, .time = 200, .bound = kStrong},
      {.name = "minus_30_scalar",
       .gate = scalar,
       .gates = V::minus_30,
       .time = 200,
       .bound = kStrong},
      {.name = "mixed",
       .gate = channel,
       .gates = V::mixed,
       .time = 1000,
       .d_v = 16,
       .two_keys = true,
       .bound = kStrong},
      {.name = "mixed_scalar",
       .gate = scalar,
       .gates = V::mixed,
       .time = 1000,
       .d_v = 16,
       .bound = kStrong},
      {.name = "heavy_tail", .gate = channel, .gates = V::heavy, .time = 300, .bound = kStrong},
      {.name = "heavy_tail_scalar",
       .gate = scalar,
       .gates = V::heavy,
       .time = 300,
       .bound = kStrong},
      {.name = "lost", .gate = channel, .gates = V::lost, .time = 200, .bound = kStrong},
      {.name = "lost_scalar", .gate = scalar, .gates = V::lost, .time = 200, .bound = kStrong},
      {.name = "mixed_additive",
       .gate = channel,
       .gates = V::mixed,
       .time = 200,
       .delta = false,
       .bound = kStrong},
      // Stress: the keys.
      {.name = "correlated", .gate = scalar, .keys = Keys::correlated, .time = 300},
      {.name = "correlated_near_two",
       .gate = none,
       .keys = Keys::correlated,
       .gains = Gains::near_two,
       .time = 300},
      {.name = "wild_keys", .gate = scalar, .keys = Keys::wild, .time = 200},
      {.name = "expanding_two_keys",
       .gate = none,
       .gains = Gains::near_two,
       .time = 300,
       .two_keys = true},
      {.name = "reflection", .gate = none, .gains = Gains::two, .time = 500},
      // Identical keys at gain 2 without decay: the condition number is the number of tokens, so
      // the
      // bound is T 2^-21; with squares that are exact it is that of float32.
      {.name = "reflection_identical",
       .gate = none,
       .keys = Keys::identical,
       .gains = Gains::two,
       .time = 501,
       .d_k = 64,
       .d_v = 16,
       .bound = 501 * 0x1p-21},
      {.name = "reflection_squares",
       .gate = none,
       .keys = Keys::squares,
       .gains = Gains::two,
       .time = 501,
       .d_k = 64,
       .d_v = 16,
       .bound = 2e-5},
  };
  // Around the chunk length, and primes.
  for (const std::int64_t time : {1, 2, 3, 4, 5, 15, 16, 17, 63, 64, 65, 113, 127, 191}) {
    for (const GateShape gate : {scalar, channel}) {
      list.push_back(
          {.name = "length_" + std::to_string(time) + (gate == channel ? "_channel" : ""),
           .gate = gate,
           .time = time,
           .d_k = 20,
           .d_v = 24});
    }
  }
  return list;
}

}  // namespace

const std::vector<Case>& cases() {
  static const std::vector<Case> list = make_cases();
  return list;
}

}  // namespace rankone::test
