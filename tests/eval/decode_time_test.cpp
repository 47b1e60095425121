#include "eval/decode_time.hpp"

#include <gtest/gtest.h>

#include <array>

#include "model/config.hpp"

namespace rankone::eval {
namespace {

model::Model tiny(const char* type) {
  return model::Model::create(model::config_from_json(Json{{"model_type", type},
                                                           {"hidden_size", 32},
                                                           {"num_heads", 2},
                                                           {"head_dim", 16},
                                                           {"expand_v", 1.0},
                                                           {"num_hidden_layers", 2},
                                                           {"intermediate_size", 64},
                                                           {"vocab_size", 64}},
                                                      "test", true),
                              Dtype::f32, 1);
}

constexpr std::array<std::int64_t, 2> kContexts = {50, 3000};

TEST(DecodeTime, ARecurrentModelNeedsNoMoreForALongContext) {
  for (const char* type : {"kla", "gated_deltanet"}) {
    Context context;
    const auto times = time_decode(context, tiny(type), kContexts, 32, 3);
    ASSERT_EQ(times.size(), 2U);
    EXPECT_EQ(times[1].context, 3000);
    EXPECT_EQ(times[1].run_ms.size(), 3U);
    EXPECT_GT(times[0].median_ms(), 0.0);
    EXPECT_EQ(times[0].state_bytes, times[1].state_bytes);
    EXPECT_EQ(times[0].workspace_bytes, times[1].workspace_bytes);
  }
}

TEST(DecodeTime, TheMedianIsThatOfTheRuns) {
  EXPECT_EQ((DecodeTime{.run_ms = {5.0, 1.0, 2.0}}.median_ms()), 2.0);
}

}  // namespace
}  // namespace rankone::eval
