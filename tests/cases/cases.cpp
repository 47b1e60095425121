#include "tests/cases/cases.hpp"

namespace rankone::test {
namespace {

using enum GateShape;
using V = GateValues;

std::vector<Case> make_cases() {
  std::vector<Case> list = {
      // The axes, at sizes that leave a ragged last chunk and a ragged last vector.
      {.name = "scalar", .gate = scalar, .batch = 2, .time = 150, .heads = 2, .value_heads = 2},
      {.name = "none", .gate = none, .time = 150, .d_k = 48, .d_v = 40},
      {.name = "channel", .gate = channel, .batch = 2, .time = 150, .heads = 2, .value_heads = 2},
      {.name = "additive_none", .gate = none, .time = 100, .delta = false},
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
  };
  return list;
}

}  // namespace

const std::vector<Case>& cases() {
  static const std::vector<Case> list = make_cases();
  return list;
}

}  // namespace rankone::test
