#pragma once

// The few pieces of linear algebra the equations use, on row-major matrices S [rows, columns].

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

namespace rankone::recurrence {

inline double dot(const double* a, const double* b, std::int64_t n) {
  double sum = 0.0;
  for (std::int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

// y += a x
inline void add_scaled(double* y, double a, const double* x, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) y[i] += a * x[i];
}

// y = S^T x
inline void read(double* y, const double* S, const double* x, std::int64_t rows,
                 std::int64_t columns) {
  std::fill(y, y + columns, 0.0);
  for (std::int64_t d = 0; d < rows; ++d) add_scaled(y, x[d], S + d * columns, columns);
}

// y += a S x
inline void add_product(double* y, double a, const double* S, const double* x, std::int64_t rows,
                        std::int64_t columns) {
  for (std::int64_t d = 0; d < rows; ++d) y[d] += a * dot(S + d * columns, x, columns);
}

// S += a x y^T
inline void add_outer(double* S, double a, const double* x, const double* y, std::int64_t rows,
                      std::int64_t columns) {
  for (std::int64_t d = 0; d < rows; ++d) add_scaled(S + d * columns, a * x[d], y, columns);
}

// S <- diag(exp g) S, where g has one element per row (stride 1) or one in all (stride 0).
inline void decay_rows(double* S, const double* g, std::int64_t stride, std::int64_t rows,
                       std::int64_t columns) {
  for (std::int64_t d = 0; d < rows; ++d) {
    const double factor = std::exp(g[d * stride]);
    for (std::int64_t j = 0; j < columns; ++j) S[d * columns + j] *= factor;
  }
}

// The lower factor L of a symmetric positive definite M = L L^T, in place (the upper part keeps
// what it held). A matrix that is not one gives NaN.
inline void cholesky(double* M, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    for (std::int64_t j = 0; j <= i; ++j) {
      const double rest = M[i * n + j] - dot(M + i * n, M + j * n, j);
      M[i * n + j] = i == j ? std::sqrt(rest) : rest / M[j * n + j];
    }
  }
}

// x <- (L L^T)^{-1} x
inline void cholesky_solve(const double* L, double* x, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) x[i] = (x[i] - dot(L + i * n, x, i)) / L[i * n + i];
  for (std::int64_t i = n - 1; i >= 0; --i) {
    for (std::int64_t j = i + 1; j < n; ++j) x[i] -= L[j * n + i] * x[j];
    x[i] /= L[i * n + i];
  }
}

// x <- about M^{-1} x, M symmetric positive definite, n <= 256: a fixed number of conjugate
// gradient steps from zero with both denominators raised by `damping`.
inline void conjugate_gradients(const double* M, double* x, std::int64_t n, int iterations,
                                double damping) {
  std::array<double, 256> r, p, image;
  std::copy(x, x + n, r.begin());
  std::copy(x, x + n, p.begin());
  std::fill(x, x + n, 0.0);
  double squares = dot(r.data(), r.data(), n);
  for (int i = 0; i < iterations; ++i) {
    std::fill(image.begin(), image.begin() + n, 0.0);
    add_product(image.data(), 1.0, M, p.data(), n, n);
    const double step = squares / (dot(p.data(), image.data(), n) + damping);
    add_scaled(x, step, p.data(), n);
    add_scaled(r.data(), -step, image.data(), n);
    const double next = dot(r.data(), r.data(), n);
    for (std::int64_t d = 0; d < n; ++d) {
      const auto at = static_cast<std::size_t>(d);
      p[at] = r[at] + next / (squares + damping) * p[at];
    }
    squares = next;
  }
}

}  // namespace rankone::recurrence
