#pragma once

// The plain implementation of the loss and of attention in a number type: loops as the equations
// stand, every sum one after the other. In float it says how exact float32 is expected to be; in
// double it is a second opinion about the reference.

#include <cmath>
#include <vector>

#include "core/sequences.hpp"
#include "nn/operators.hpp"

namespace rankone::nn::test {

template <class T>
struct PlainLoss {
  std::vector<T> losses, dx, dweight;
};

template <class T>
PlainLoss<T> plain_loss(const Tensor& x, const Tensor& weight, const Tensor& targets, T factor) {
  const std::int64_t rows = targets.count();
  const std::int64_t vocabulary = weight.dim(0);
  const std::int64_t width = weight.dim(1);
  const auto x_at = [&](std::int64_t r, std::int64_t i) {
    return static_cast<T>(x.data<double>()[r * width + i]);
  };
  const auto w_at = [&](std::int64_t v, std::int64_t i) {
    return static_cast<T>(weight.data<double>()[v * width + i]);
  };
  PlainLoss<T> result{std::vector<T>(rows), std::vector<T>(rows * width),
                      std::vector<T>(vocabulary * width)};
  std::vector<T> p(vocabulary);
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int32_t target = targets.data<std::int32_t>()[r];
    if (target < 0) continue;
    T largest = -INFINITY;
    for (std::int64_t v = 0; v < vocabulary; ++v) {
      p[v] = 0;
      for (std::int64_t i = 0; i < width; ++i) p[v] += x_at(r, i) * w_at(v, i);
      largest = std::max(largest, p[v]);
    }
    const T below = largest - p[target];
    T sum = 0;
    for (T& value : p) sum += value = std::exp(value - largest);
    result.losses[r] = below + std::log(sum);
    for (std::int64_t v = 0; v < vocabulary; ++v) {
      const T d = factor * (p[v] / sum - (v == target ? T(1) : T(0)));
      for (std::int64_t i = 0; i < width; ++i) {
        result.dx[r * width + i] += d * w_at(v, i);
        result.dweight[v * width + i] += d * x_at(r, i);
      }
    }
  }
  return result;
}

template <class T>
struct PlainAttention {
  std::vector<T> o, dq, dk, dv;
};

template <class T>
PlainAttention<T> plain_attention(const Sequences& sequences, const Attention& args,
                                  const Tensor& do_) {
  const std::int64_t heads = args.q.dim(1);
  const std::int64_t key_heads = args.k.dim(1);
  const std::int64_t width = args.q.dim(2);
  const auto at = [](const Tensor& tensor, std::int64_t i) {
    return static_cast<T>(tensor.data<double>()[i]);
  };
  const T scale = static_cast<T>(args.scale);
  PlainAttention<T> result{std::vector<T>(args.q.count()), std::vector<T>(args.q.count()),
                           std::vector<T>(args.k.count()), std::vector<T>(args.k.count())};
  for (std::int64_t s = 0; s < sequences.count(); ++s) {
    for (std::int64_t r = sequences.begin(s); r < sequences.end(s); ++r) {
      for (std::int64_t h = 0; h < heads; ++h) {
        const std::int64_t q = (r * heads + h) * width;
        const auto key = [&](std::int64_t j) {
          return (j * key_heads + h / (heads / key_heads)) * width;
        };
        const std::int64_t first = args.window == 0
                                       ? sequences.begin(s)
                                       : std::max(sequences.begin(s), r - args.window + 1);
        std::vector<T> p;
        T largest = -INFINITY;
        for (std::int64_t j = first; j <= r; ++j) {
          T score = 0;
          for (std::int64_t i = 0; i < width; ++i)
            score += at(args.q, q + i) * at(args.k, key(j) + i);
          p.push_back(score * scale);
          largest = std::max(largest, p.back());
        }
        T sum = 0;
        for (T& value : p) sum += value = std::exp(value - largest);
        T mean = 0;
        std::vector<T> dp;
        for (std::int64_t j = first; j <= r; ++j) {
          p[j - first] /= sum;
          T d = 0;
          for (std::int64_t i = 0; i < width; ++i) {
            result.o[q + i] += p[j - first] * at(args.v, key(j) + i);
            d += at(do_, q + i) * at(args.v, key(j) + i);
          }
          dp.push_back(d);
          mean += p[j - first] * d;
        }
        for (std::int64_t j = first; j <= r; ++j) {
          const T ds = scale * p[j - first] * (dp[j - first] - mean);
          for (std::int64_t i = 0; i < width; ++i) {
            result.dq[q + i] += ds * at(args.k, key(j) + i);
            result.dk[key(j) + i] += ds * at(args.q, q + i);
            result.dv[key(j) + i] += p[j - first] * at(do_, q + i);
          }
        }
      }
    }
  }
  return result;
}

}  // namespace rankone::nn::test
