#pragma once

// Dense solve by Gaussian elimination with partial pivoting: an oracle that shares nothing with the
// library.

#include <cmath>
#include <utility>
#include <vector>

namespace rankone::test {

// X with A X = B; A [n, n], B and X [n, m], row-major.
inline std::vector<double> dense_solve(std::vector<double> A, std::vector<double> B, int n, int m) {
  const auto at = [](int i, int j, int width) { return static_cast<std::size_t>(i * width + j); };
  for (int column = 0; column < n; ++column) {
    int pivot = column;
    for (int i = column + 1; i < n; ++i) {
      if (std::abs(A[at(i, column, n)]) > std::abs(A[at(pivot, column, n)])) pivot = i;
    }
    for (int j = 0; j < n; ++j) std::swap(A[at(column, j, n)], A[at(pivot, j, n)]);
    for (int j = 0; j < m; ++j) std::swap(B[at(column, j, m)], B[at(pivot, j, m)]);
    for (int i = 0; i < n; ++i) {
      if (i == column) continue;
      const double factor = A[at(i, column, n)] / A[at(column, column, n)];
      for (int j = column; j < n; ++j) A[at(i, j, n)] -= factor * A[at(column, j, n)];
      for (int j = 0; j < m; ++j) B[at(i, j, m)] -= factor * B[at(column, j, m)];
    }
  }
  for (int i = 0; i < n; ++i) {
    for (int j = 0; j < m; ++j) B[at(i, j, m)] /= A[at(i, i, n)];
  }
  return B;
}

}  // namespace rankone::test
