// Attention over a cache: a prefill, pieces and single tokens give the same rows.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/status.hpp"
#include "nn/operators.hpp"
#include "operator_case.hpp"

namespace rankone::nn::test {
namespace {

constexpr std::int64_t kHeads = 4;
constexpr std::int64_t kKeyHeads = 2;
constexpr std::int64_t kWidth = 24;
constexpr std::int64_t kSequences = 2;
constexpr std::int64_t kCapacity = 300;

struct Cache {
  Tensor k, v, positions;

  explicit Cache(Dtype dtype)
      : k(Tensor::empty({kSequences, kKeyHeads, kCapacity, kWidth}, dtype)),
        v(Tensor::empty({kSequences, kKeyHeads, kCapacity, kWidth}, dtype)),
        positions(Tensor::zeros({kSequences}, Dtype::i64)) {
    // What was never written must never be read.
    k.fill(std::nan(""));
    v.fill(std::nan(""));
  }
};

// Rows [begin, end) of every sequence of a dense tensor [kSequences, T, heads, kWidth].
Tensor piece(const Tensor& whole, std::int64_t begin, std::int64_t end) {
  return whole.slice(1, begin, end).clone();
}

struct Inputs {
  Tensor q, k, v;
  std::int64_t time;

  Inputs(std::int64_t time_, Dtype dtype) : time(time_) {
    Random random(31);
    q = normals(random, {kSequences, time, kHeads, kWidth}).to(dtype);
    k = normals(random, {kSequences, time, kKeyHeads, kWidth}).to(dtype);
    v = normals(random, {kSequences, time, kKeyHeads, kWidth}).to(dtype);
  }
};

// Attends in pieces of these lengths, one call a piece.
Tensor in_pieces(Context& context, const Inputs& in, const std::vector<std::int64_t>& lengths,
                 std::int64_t window) {
  Cache cache(in.q.dtype());
  const Tensor o = Tensor::empty(in.q.shape(), in.q.dtype());
  std::int64_t begin = 0;
  for (const std::int64_t length : lengths) {
    const std::int64_t end = begin + length;
    const Tensor part = Tensor::empty({kSequences, length, kHeads, kWidth}, in.q.dtype());
    for (auto& position : cache.positions.span<std::int64_t>()) position = begin;
    attention(context, Sequences::dense(kSequences, length),
              {piece(in.q, begin, end), piece(in.k, begin, end), piece(in.v, begin, end), window,
               0.2, cache.k, cache.v, cache.positions},
              part);
    o.slice(1, begin, end).copy_from(part);
    begin = end;
  }
  EXPECT_EQ(begin, in.time);
  return o;
}

Tensor at_once(Context& context, const Inputs& in, std::int64_t window) {
  const Tensor o = Tensor::empty(in.q.shape(), in.q.dtype());
  attention(context, Sequences::dense(kSequences, in.time), {in.q, in.k, in.v, window, 0.2}, o);
  return o;
}

TEST(AttentionCache, PiecesAndTokensGiveTheBitsOfAPrefill) {
  for (const std::int64_t window : {0L, 70L}) {
    for (const bool reference : {false, true}) {
      Context context = reference ? reference_context() : cpu_context();
      const Inputs in(261, reference ? Dtype::f64 : Dtype::f32);
      const Tensor whole = at_once(context, in, window);
      for (const std::vector<std::int64_t>& lengths : {std::vector<std::int64_t>{261},
                                                       {130, 1, 130},
                                                       {3, 64, 128, 66},
                                                       std::vector<std::int64_t>(261, 1)}) {
        EXPECT_TRUE(same_bits(in_pieces(context, in, lengths, window), whole))
            << (reference ? "reference" : "cpu") << ", " << lengths.size() << " pieces, window "
            << window;
      }
    }
  }
}

TEST(AttentionCache, OnlyTheNewRowsAreWritten) {
  Context context = cpu_context();
  const Inputs in(5, Dtype::f32);
  Cache cache(Dtype::f32);
  cache.k.fill(0);
  cache.v.fill(0);
  cache.positions.data<std::int64_t>()[0] = 7;
  cache.positions.data<std::int64_t>()[1] = 0;
  const Tensor o = Tensor::empty(in.q.shape(), Dtype::f32);
  attention(context, Sequences::dense(kSequences, 5),
            {in.q, in.k, in.v, 0, 0.2, cache.k, cache.v, cache.positions}, o);
  for (std::int64_t i = 0; i < cache.k.count(); ++i) {
    const std::int64_t row = i / kWidth % kCapacity;
    const std::int64_t sequence = i / (kKeyHeads * kCapacity * kWidth);
    const std::int64_t time = row - cache.positions.data<std::int64_t>()[sequence];
    const std::int64_t head = i / (kCapacity * kWidth) % kKeyHeads;
    const bool written = time >= 0 && time < 5;
    const std::int64_t from = ((sequence * 5 + time) * kKeyHeads + head) * kWidth + i % kWidth;
    ASSERT_EQ(cache.k.data<float>()[i], written ? in.k.data<float>()[from] : 0.0F) << i;
    ASSERT_EQ(cache.v.data<float>()[i], written ? in.v.data<float>()[from] : 0.0F) << i;
  }
}

TEST(AttentionCache, OverflowIsRefused) {
  for (const bool reference : {false, true}) {
    const Dtype dtype = reference ? Dtype::f64 : Dtype::f32;
    Context context = reference ? reference_context() : cpu_context();
    const Inputs in(2, dtype);
    Cache cache(dtype);
    const Tensor o = Tensor::empty(in.q.shape(), dtype);
    for (const std::int64_t position : {kCapacity - 1, std::int64_t{-1}}) {
      cache.positions.data<std::int64_t>()[1] = position;
      EXPECT_THROW(attention(context, Sequences::dense(kSequences, 2),
                             {in.q, in.k, in.v, 0, 0.2, cache.k, cache.v, cache.positions}, o),
                   Error)
          << position;
    }
  }
}

}  // namespace
}  // namespace rankone::nn::test
