// The matrix product of the CPU backend, kernel by kernel, against float64 and against the plain
// float32 loop.

#include "nn/cpu/gemm.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "core/random.hpp"

namespace rankone::nn {
namespace {

std::vector<Isa> isas() {
  std::vector<Isa> result = {Isa::baseline};
  if (best_isa() >= Isa::avx2) result.push_back(Isa::avx2);
  if (best_isa() >= Isa::avx512) result.push_back(Isa::avx512);
  return result;
}

struct Case {
  GemmShape shape;
  bool transpose_a = false;
  bool transpose_b = false;
  bool accumulate = false;
  Dtype a_dtype = Dtype::f32;
  Dtype b_dtype = Dtype::f32;
  std::int64_t gap = 0;  // elements between the rows of every matrix

  std::string str() const {
    return fmt::format("{}x{}x{} transpose {}{} accumulate {} dtypes {} {} gap {}", shape.m,
                       shape.n, shape.k, transpose_a ? "a" : "", transpose_b ? "b" : "", accumulate,
                       name(a_dtype), name(b_dtype), gap);
  }
};

constexpr float kCanary = -12345.0F;

// A matrix in rows with a gap behind each, whose elements are canaries (NaN where it is read).
Tensor random_matrix(std::int64_t rows, std::int64_t columns, std::int64_t gap, Dtype dtype,
                     std::uint64_t seed, float between) {
  Tensor wide = Tensor::empty({rows, columns + gap}, Dtype::f32);
  Random random(seed);
  for (std::int64_t i = 0; i < wide.count(); ++i) {
    const bool inside = i % (columns + gap) < columns;
    wide.data<float>()[i] = inside ? static_cast<float>(random.normal()) : between;
  }
  if (dtype != Dtype::f32) wide = wide.to(dtype);
  return wide.slice(1, 0, columns);
}

struct Problem {
  Tensor a, b, c;

  explicit Problem(const Case& test) {
    const auto [m, n, k] = test.shape;
    const float nan = std::nanf("");
    a = random_matrix(test.transpose_a ? k : m, test.transpose_a ? m : k, test.gap, test.a_dtype, 1,
                      nan);
    b = random_matrix(test.transpose_b ? n : k, test.transpose_b ? k : n, test.gap, test.b_dtype, 2,
                      nan);
    c = random_matrix(m, n, test.gap, Dtype::f32, 3, kCanary);
  }
};

// The whole memory of c, gaps included.
std::vector<float> run(const GemmKernels& kernels, const Case& test, const Problem& problem,
                       int threads) {
  const std::int64_t stride = test.shape.n + test.gap;
  const auto* from = problem.c.data<float>();
  std::vector<float> c(from, from + test.shape.m * stride);
  ContextOptions options;
  options.threads = threads;
  Context context(options);
  cpu_gemm(context, kernels, test.shape, gemm_matrix(problem.a, test.transpose_a),
           gemm_matrix(problem.b, test.transpose_b), c.data(), stride, test.accumulate);
  return c;
}

// The same product in any type, one sum after the other.
template <class Sum>
std::vector<Sum> plain(const Case& test, const Problem& problem) {
  const Tensor a = problem.a.to(Dtype::f64);
  const Tensor b = problem.b.to(Dtype::f64);
  const auto [m, n, k] = test.shape;
  std::vector<Sum> c;
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < n; ++j) {
      Sum sum = 0;
      for (std::int64_t p = 0; p < k; ++p) {
        const double left = a.data<double>()[test.transpose_a ? p * m + i : i * k + p];
        const double right = b.data<double>()[test.transpose_b ? j * k + p : p * n + j];
        sum += static_cast<Sum>(left) * static_cast<Sum>(right);
      }
      if (test.accumulate) {
        sum += static_cast<Sum>(problem.c.data<float>()[i * (n + test.gap) + j]);
      }
      c.push_back(sum);
    }
  }
  return c;
}

struct Expected {
  std::vector<double> exact;
  std::vector<float> single;

  Expected(const Case& test, const Problem& problem)
      : exact(plain<double>(test, problem)), single(plain<float>(test, problem)) {}
};

void expect_accurate(const Case& test, const Expected& expected, const std::vector<float>& c) {
  const auto& [exact, single] = expected;
  double error = 0;
  double plain_error = 0;
  double size = 0;
  for (std::int64_t i = 0; i < test.shape.m; ++i) {
    for (std::int64_t j = 0; j < test.shape.n + test.gap; ++j) {
      const float got = c[static_cast<std::size_t>(i * (test.shape.n + test.gap) + j)];
      if (j >= test.shape.n) {
        ASSERT_EQ(got, kCanary) << "gap behind row " << i;
        continue;
      }
      const auto at = static_cast<std::size_t>(i * test.shape.n + j);
      error += std::pow(got - exact[at], 2);
      plain_error += std::pow(single[at] - exact[at], 2);
      size += std::pow(exact[at], 2);
    }
  }
  // Where the plain sum happens to be exact, one rounding of the result remains.
  EXPECT_LE(std::sqrt(error), 2 * std::sqrt(plain_error) + 0x1p-24 * std::sqrt(size));
}

void check(const Case& test) {
  const Problem problem(test);
  const Expected expected(test, problem);
  for (const Isa isa : isas()) {
    SCOPED_TRACE(test.str() + " " + std::string(name(isa)));
    const GemmKernels& kernels = gemm_kernels(isa);
    const std::vector<float> c = run(kernels, test, problem, 1);
    expect_accurate(test, expected, c);
    for (const int threads : {2, 3, 5}) {
      const std::vector<float> other = run(kernels, test, problem, threads);
      EXPECT_TRUE(c.empty() || std::memcmp(c.data(), other.data(), c.size() * sizeof(float)) == 0)
          << threads << " threads";
    }
  }
}

TEST(CpuGemm, OddSizesInEveryLayout) {
  const std::int64_t sizes[] = {1, 2, 5, 7, 13, 37};
  for (const std::int64_t m : sizes) {
    for (const std::int64_t n : {1L, 15L, 33L, 64L, 70L}) {
      for (const std::int64_t k : {1L, 7L, 16L, 45L}) {
        for (int layout = 0; layout < 4; ++layout) {
          Case test{{m, n, k}};
          test.transpose_a = (layout & 1) != 0;
          test.transpose_b = (layout & 2) != 0;
          test.accumulate = (m + n + k) % 2 == 0;
          test.gap = (m + n) % 3;
          check(test);
        }
      }
    }
  }
}

TEST(CpuGemm, LongSumsAreCutIntoBlocksAndPieces) {
  for (const std::int64_t k : {256L, 257L, 2048L, 2049L, 5000L}) {
    for (const std::int64_t m : {1L, 3L, 8L, 9L, 64L}) {
      for (const bool accumulate : {false, true}) {
        Case test{{m, 48, k}};
        test.transpose_a = m != 1;
        test.transpose_b = m != 64;
        test.accumulate = accumulate;
        check(test);
      }
    }
  }
}

// The last tile has so few rows that they are streamed, each of its pieces by a task of its own.
TEST(CpuGemm, FewRowsAreLeft) {
  for (const std::int64_t m : {84L, 963L}) {
    Case test{{m, 40, 2500}};
    test.transpose_b = true;
    check(test);
  }
}

TEST(CpuGemm, SeveralTiles) {
  for (int layout = 0; layout < 4; ++layout) {
    Case test{{501, 311, 70}};
    test.transpose_a = (layout & 1) != 0;
    test.transpose_b = (layout & 2) != 0;
    test.gap = 3;
    check(test);
  }
}

TEST(CpuGemm, HalfStorageIsWidenedExactly) {
  for (const Dtype dtype : {Dtype::bf16, Dtype::f16}) {
    for (const std::int64_t m : {1L, 3L, 6L, 30L}) {
      for (int layout = 0; layout < 4; ++layout) {
        Case test{{m, 53, 75}};
        test.transpose_a = (layout & 1) != 0;
        test.transpose_b = (layout & 2) != 0;
        test.b_dtype = dtype;
        if (m == 30) test.a_dtype = dtype;
        test.gap = 1;
        check(test);
      }
    }
  }
}

// Every half, subnormals and infinities included, comes through a product with one unchanged.
TEST(CpuGemm, EveryHalfSurvives) {
  for (const Dtype dtype : {Dtype::bf16, Dtype::f16}) {
    Tensor halves = Tensor::empty({1024, 64}, dtype);
    auto* bits = static_cast<std::uint16_t*>(halves.raw());
    for (std::int64_t i = 0; i < halves.count(); ++i) bits[i] = static_cast<std::uint16_t>(i);
    const float one = 1.0F;
    for (const Isa isa : isas()) {
      for (const bool transposed : {false, true}) {
        const std::int64_t n = transposed ? 1 : halves.count();
        const GemmShape shape = {1, halves.count(), 1};
        const GemmMatrix b = {halves.raw(), n, transposed,
                              dtype == Dtype::bf16 ? Storage::bf16 : Storage::f16};
        std::vector<float> c(static_cast<std::size_t>(halves.count()));
        Context context;
        cpu_gemm(context, gemm_kernels(isa), shape, {&one, 1, false, Storage::f32}, b, c.data(),
                 shape.n, false);
        for (std::size_t i = 0; i < c.size(); ++i) {
          const float right =
              dtype == Dtype::bf16 ? to_float(bf16{bits[i]}) : to_float(f16{bits[i]});
          ASSERT_TRUE(c[i] == right || (std::isnan(c[i]) && std::isnan(right)))
              << name(dtype) << " " << i << " gives " << c[i] << ", not " << right;
        }
      }
    }
  }
}

TEST(CpuGemm, EmptySizes) {
  check({{0, 5, 7}});
  check({{5, 0, 7}});
  check({{5, 7, 0}});
  Case test{{5, 7, 0}};
  test.accumulate = true;
  check(test);
}

// The row of a result has the same bits whatever other rows and columns are computed with it:
// a batch changes nothing, and one token at a time gives what all at once give.
TEST(CpuGemm, BitsOfAnElementDependOnItsRowAndColumnAlone) {
  for (const bool transpose_b : {false, true}) {
    Case test{{41, 75, 2500}};
    test.transpose_b = transpose_b;
    const Problem whole(test);
    for (const Isa isa : isas()) {
      const GemmKernels& kernels = gemm_kernels(isa);
      const std::vector<float> c = run(kernels, test, whole, 2);
      for (const std::int64_t rows : {1L, 2L, 4L, 5L, 8L, 17L}) {
        for (const std::int64_t columns : {1L, 31L, 64L}) {
          Case part = test;
          part.shape.m = rows;
          part.shape.n = columns;
          Problem problem = whole;
          problem.a = whole.a.slice(0, 3, 3 + rows);
          problem.b = whole.b.slice(transpose_b ? 0 : 1, 7, 7 + columns);
          const std::vector<float> got = run(kernels, part, problem, 1);
          for (std::int64_t i = 0; i < rows; ++i) {
            for (std::int64_t j = 0; j < columns; ++j) {
              ASSERT_EQ(got[static_cast<std::size_t>(i * columns + j)],
                        c[static_cast<std::size_t>((i + 3) * 75 + j + 7)])
                  << name(isa) << " " << rows << "x" << columns << " at " << i << ", " << j;
            }
          }
        }
      }
    }
  }
}

TEST(CpuGemm, PlanningTakesTheScratchAndComputesNothing) {
  const Case test{{100, 60, 5000}};
  const Problem problem(test);
  ContextOptions options;
  options.threads = 2;
  Context context(options);
  context.arena().set_planning(true);
  std::vector<float> c(6000, kCanary);
  const auto multiply = [&] {
    cpu_gemm(context, gemm_kernels(), test.shape, gemm_matrix(problem.a, false),
             gemm_matrix(problem.b, false), c.data(), 60, false);
  };
  multiply();
  EXPECT_EQ(c, std::vector<float>(6000, kCanary));
  const std::size_t peak = context.arena().peak();
  context.arena().set_planning(false);
  // Memory that can not grow: an allocation the plan did not see would fail.
  std::vector<float> memory((peak + 64) / sizeof(float) + 16);
  void* aligned = memory.data();
  std::size_t space = memory.size() * sizeof(float);
  ASSERT_NE(std::align(64, peak, aligned, space), nullptr);
  context.arena().adopt(aligned, peak);
  EXPECT_NO_THROW(multiply());
  expect_accurate(test, Expected(test, problem), c);
}

}  // namespace
}  // namespace rankone::nn
