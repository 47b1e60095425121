// What a carried history promises: a text cut anywhere gives the same bits as the whole.

#include <gtest/gtest.h>

#include "elementwise_cases.hpp"

namespace rankone::nn {
namespace {

constexpr std::int64_t kChannels = 37;
constexpr std::int64_t kWindow = 4;

struct Conv {
  Tensor weight, bias;
  Context* context;

  // y of x, `history` advanced in place.
  Tensor piece(const Tensor& x, const Tensor& history) const {
    const Tensor y = Tensor::empty(x.shape(), x.dtype());
    short_conv(*context, Sequences::dense(1, x.dim(0)),
               {.x = x, .weight = weight, .bias = bias, .history = history}, {y, history});
    return y;
  }
};

TEST(ShortConv, PiecesWithAHistoryInPlaceGiveTheBitsOfTheWhole) {
  Context cpu = test::cpu_context();
  Context reference = test::reference_context();
  Random random(8);
  for (Context* context : {&cpu, &reference}) {
    const Dtype dtype = context == &cpu ? Dtype::f32 : Dtype::f64;
    const Conv conv{test::normals(random, {kChannels, kWindow}).to(dtype),
                    test::normals(random, {kChannels}).to(dtype), context};
    const Tensor x = test::normals(random, {23, kChannels}).to(dtype);
    const Tensor whole_history = Tensor::zeros({1, kChannels, kWindow - 1}, dtype);
    const Tensor whole = conv.piece(x, whole_history);
    for (const std::vector<std::int64_t>& lengths :
         {std::vector<std::int64_t>{1, 1, 1, 20}, {2, 0, 1, 2, 3, 15}, {22, 1}, {3, 20}}) {
      const Tensor history = Tensor::zeros({1, kChannels, kWindow - 1}, dtype);
      std::int64_t at = 0;
      for (const std::int64_t length : lengths) {
        const Tensor y = conv.piece(x.slice(0, at, at + length), history);
        EXPECT_TRUE(test::same_bits(y, whole.slice(0, at, at + length))) << at;
        at += length;
      }
      EXPECT_TRUE(test::same_bits(history, whole_history));
    }
  }
}

TEST(ShortConv, PackedSequencesDoNotSeeEachOther) {
  Context cpu = test::cpu_context();
  Context reference = test::reference_context();
  Random random(9);
  const std::vector<std::int64_t> cu{0, 2, 2, 3, 150, 150};
  const Sequences sequences = Sequences::packed(cu);
  for (Context* context : {&cpu, &reference}) {
    const Dtype dtype = context == &cpu ? Dtype::f32 : Dtype::f64;
    const Conv conv{test::normals(random, {kChannels, kWindow}).to(dtype),
                    test::normals(random, {kChannels}).to(dtype), context};
    const Tensor x = test::normals(random, {150, kChannels}).to(dtype);
    const Tensor history =
        test::normals(random, {sequences.count(), kChannels, kWindow - 1}).to(dtype);
    const Tensor after = Tensor::empty(history.shape(), dtype);
    const Tensor y = Tensor::empty(x.shape(), dtype);
    short_conv(*context, sequences,
               {.x = x, .weight = conv.weight, .bias = conv.bias, .history = history}, {y, after});
    for (std::int64_t n = 0; n < sequences.count(); ++n) {
      const Tensor own = history.slice(0, n, n + 1).clone();
      const Tensor rows = x.slice(0, sequences.begin(n), sequences.end(n));
      const Tensor alone = conv.piece(rows, own);
      EXPECT_TRUE(test::same_bits(alone, y.slice(0, sequences.begin(n), sequences.end(n))));
      EXPECT_TRUE(test::same_bits(own, after.slice(0, n, n + 1))) << "sequence " << n;
    }
    EXPECT_TRUE(test::same_bits(after.slice(0, 1, 2), history.slice(0, 1, 2)));  // empty
  }
}

}  // namespace
}  // namespace rankone::nn
