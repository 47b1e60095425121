#include "core/tensor.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/context.hpp"
#include "core/status.hpp"

namespace rankone {
namespace {

TEST(Tensor, SliceReshapeAndConversion) {
  Tensor a = Tensor::zeros({2, 3, 4}, Dtype::f32);
  for (int i = 0; i < 24; ++i) a.data<float>()[i] = static_cast<float>(i);
  const Tensor middle = a.slice(1, 1, 2);
  EXPECT_FALSE(middle.contiguous());
  const Tensor copy = middle.to(Dtype::f64);
  EXPECT_EQ(copy.shape(), Shape({2, 1, 4}));
  EXPECT_EQ(copy.data<double>()[0], 4);
  EXPECT_EQ(copy.data<double>()[7], 19);
  EXPECT_EQ(a.reshape({6, 4}).slice(0, 5, 6).data<float>()[3], 23);
  EXPECT_THROW(middle.reshape({8}), Error);
  EXPECT_THROW(a.slice(0, 1, 3), Error);
}

TEST(Dtype, HalfPrecisionsRoundTripAndRoundToEven) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const f16 half{static_cast<std::uint16_t>(bits)};
    const float value = to_float(half);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(to_float(to_f16(value))));
    } else {
      EXPECT_EQ(to_f16(value).bits, bits);
    }
    const bf16 brain{static_cast<std::uint16_t>(bits)};
    if (!std::isnan(to_float(brain))) {
      EXPECT_EQ(to_bf16(to_float(brain)).bits, bits);
    }
  }
  EXPECT_EQ(to_float(to_bf16(1.0F + 0x1p-8F)), 1.0F);            // tie to even
  EXPECT_EQ(to_float(to_bf16(1.0F + 0x3p-8F)), 1.0F + 0x1p-6F);  // tie to even, up
  EXPECT_EQ(to_float(to_f16(65520.0F)), std::numeric_limits<float>::infinity());
  EXPECT_EQ(to_float(to_f16(65519.0F)), 65504.0F);
}

TEST(Arena, PlanIsWhatARunUses) {
  Context context({.threads = 1});
  const auto work = [&] {
    const ArenaScope outer(context.arena());
    context.empty({100}, Dtype::f32);
    {
      const ArenaScope inner(context.arena());
      context.empty({1000, 1000}, Dtype::f64);
    }
    return context.empty({3}, Dtype::f32);
  };
  context.arena().set_planning(true);
  EXPECT_EQ(work().raw(), nullptr);
  const std::size_t peak = context.arena().peak();
  context.arena().set_planning(false);
  context.arena().reserve(peak);
  const std::size_t capacity = context.arena().capacity();
  EXPECT_NE(work().raw(), nullptr);
  EXPECT_EQ(context.arena().capacity(), capacity);
}

}  // namespace
}  // namespace rankone
