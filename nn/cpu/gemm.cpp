#include "nn/cpu/gemm.hpp"

#include <algorithm>

#include "nn/cpu/cpu_backend.hpp"

namespace rankone::nn {
namespace {

constexpr std::int64_t kDepth = kGemmDepth;
constexpr std::int64_t kPiece = kGemmPiece;
constexpr std::int64_t kBlockPanels = 80;  // panels of a packed at a time: more packs b less often
constexpr std::int64_t kTilePanels = 24;   // panels of b in the widest tile
constexpr std::int64_t kTasksPerThread = 4;

constexpr std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
constexpr std::int64_t round_up(std::int64_t a, std::int64_t b) { return divide_up(a, b) * b; }

const char* element(const GemmMatrix& matrix, std::int64_t row, std::int64_t column) {
  const std::int64_t index =
      matrix.transposed ? column * matrix.stride + row : row * matrix.stride + column;
  return static_cast<const char*>(matrix.data) + index * (matrix.storage == Storage::f32 ? 4 : 2);
}

GemmMatrix from(const GemmMatrix& matrix, std::int64_t row, std::int64_t column) {
  GemmMatrix result = matrix;
  // A planning pass has no memory to point into.
  if (matrix.data != nullptr) result.data = element(matrix, row, column);
  return result;
}

std::int64_t block_rows(const GemmKernels& kernels) { return kBlockPanels * kernels.panel_rows; }

// One block of a (at most block_rows() by kDepth) times all columns of b.
void multiply_block(const GemmKernels& kernels, const GemmShape& shape, const GemmMatrix& a,
                    const GemmMatrix& b, float* c, std::int64_t c_stride, bool add,
                    float* scratch) {
  float* const b_panel = scratch;
  float* const a_panels = scratch + kDepth * kernels.panel_columns;
  for (std::int64_t i = 0; i < shape.m; i += kernels.panel_rows) {
    const int rows = static_cast<int>(std::min<std::int64_t>(kernels.panel_rows, shape.m - i));
    kernels.pack(element(a, i, 0), a.storage, a.stride, !a.transposed, rows, shape.k,
                 a_panels + i * shape.k, rows);
  }
  for (std::int64_t j = 0; j < shape.n; j += kernels.panel_columns) {
    const int columns =
        static_cast<int>(std::min<std::int64_t>(kernels.panel_columns, shape.n - j));
    const float* panel = b_panel;
    std::int64_t stride = kernels.panel_columns;
    // Where a panel of b is used once it is not worth a copy.
    if (!b.transposed && b.storage == Storage::f32 && columns == kernels.panel_columns &&
        shape.m <= kernels.panel_rows) {
      panel = reinterpret_cast<const float*>(element(b, 0, j));
      stride = b.stride;
    } else {
      kernels.pack(element(b, 0, j), b.storage, b.stride, b.transposed, columns, shape.k, b_panel,
                   kernels.panel_columns);
    }
    for (std::int64_t i = 0; i < shape.m; i += kernels.panel_rows) {
      const int rows = static_cast<int>(std::min<std::int64_t>(kernels.panel_rows, shape.m - i));
      kernels.multiply(shape.k, rows, a_panels + i * shape.k, panel, stride, c + i * c_stride + j,
                       c_stride, columns, add);
    }
  }
}

bool streams(const GemmKernels& kernels, const GemmShape& shape, const GemmMatrix& b) {
  return b.transposed && shape.m <= kernels.stream_rows;
}

// A few rows times b, read once from where it lies.
void stream_rows(const GemmKernels& kernels, const GemmShape& shape, const GemmMatrix& a,
                 const GemmMatrix& b, float* c, std::int64_t c_stride, bool add, float* scratch) {
  const int rows = static_cast<int>(shape.m);
  const float* packed = scratch;
  if (rows == 1 && !a.transposed && a.storage == Storage::f32) {
    packed = static_cast<const float*>(a.data);
  } else {
    kernels.pack(a.data, a.storage, a.stride, !a.transposed, rows, shape.k, scratch, rows);
  }
  kernels.stream(shape.k, rows, packed, b.data, b.storage, b.stride, shape.n, c, c_stride, add);
}

// The sum of one piece: shape.k <= kPiece.
void multiply_piece(const GemmKernels& kernels, const GemmShape& shape, const GemmMatrix& a,
                    const GemmMatrix& b, float* c, std::int64_t c_stride, bool add,
                    float* scratch) {
  const std::int64_t step = block_rows(kernels);
  for (std::int64_t i = 0; i < shape.m; i += step) {
    for (std::int64_t k = 0; k < shape.k; k += kDepth) {
      const GemmShape block = {std::min(step, shape.m - i), shape.n, std::min(kDepth, shape.k - k)};
      multiply_block(kernels, block, from(a, i, k), from(b, k, 0), c + i * c_stride, c_stride,
                     add || k > 0, scratch);
    }
  }
}

void clear(float* c, std::int64_t c_stride, const GemmShape& shape) {
  for (std::int64_t i = 0; i < shape.m; ++i) std::fill_n(c + i * c_stride, shape.n, 0.0F);
}

void add_rows(float* c, std::int64_t c_stride, const float* piece, std::int64_t m, std::int64_t n) {
  for (std::int64_t i = 0; i < m; ++i) {
    float* const to = c + i * c_stride;
    for (std::int64_t j = 0; j < n; ++j) to[j] += piece[i * n + j];
  }
}

// How the result is cut into tasks. It changes no bits, so it may look at the number of threads.
struct Tiling {
  std::int64_t rows, columns;  // of a tile
  std::int64_t row_tiles, column_tiles;
  bool split;  // every piece of k is a task of its own
};

// Too little work for another thread to be worth waking: about 15 us at 100 multiply-adds and 15
// elements read from cache a nanosecond.
bool is_small(const GemmShape& shape) {
  const std::int64_t multiplied = shape.m * shape.n * shape.k;
  const std::int64_t read = (shape.m + shape.n) * shape.k;
  return multiplied / 100 + read / 15 < 15000;
}

Tiling tile(const GemmKernels& kernels, const GemmShape& shape, int threads) {
  if (is_small(shape)) return {shape.m, shape.n, 1, 1, false};
  Tiling tiling{};
  const std::int64_t wanted = threads > 1 ? kTasksPerThread * threads : 1;
  const std::int64_t pieces = divide_up(shape.k, kPiece);
  // Tall tiles pack b less often, many tiles end together.
  std::int64_t row_panels = threads > 1 ? kBlockPanels / 4 : kBlockPanels;
  std::int64_t column_panels = kTilePanels;
  const auto count = [&] {
    tiling.rows = row_panels * kernels.panel_rows;
    tiling.columns = column_panels * kernels.panel_columns;
    tiling.row_tiles = divide_up(shape.m, tiling.rows);
    tiling.column_tiles = divide_up(shape.n, tiling.columns);
    return tiling.row_tiles * tiling.column_tiles;
  };
  tiling.split = count() < wanted && pieces > 1;
  const std::int64_t factor = tiling.split ? pieces : 1;
  // Narrow tiles pack more often: stop at a quarter of the full size.
  while (count() * factor < wanted && (row_panels > 5 || column_panels > 2)) {
    const bool cut_columns = column_panels > 2 && (shape.n > shape.m || row_panels <= 5);
    (cut_columns ? column_panels : row_panels) /= 2;
  }
  return tiling;
}

}  // namespace

const GemmKernels& gemm_kernels(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::avx512) return avx512::kGemmKernels;
  if (isa == Isa::avx2) return avx2::kGemmKernels;
#endif
  static_cast<void>(isa);
  return baseline::kGemmKernels;
}

const GemmKernels& gemm_kernels() {
  static const GemmKernels& kernels = gemm_kernels(best_isa());
  return kernels;
}

GemmMatrix gemm_matrix(const Tensor& tensor, bool transposed) {
  const Storage storage = tensor.dtype() == Dtype::bf16  ? Storage::bf16
                          : tensor.dtype() == Dtype::f16 ? Storage::f16
                                                         : Storage::f32;
  return {tensor.raw(), tensor.stride(0), transposed, storage};
}

std::int64_t gemm_scratch(const GemmKernels& kernels, const GemmShape& shape) {
  const std::int64_t rows = std::min(shape.m, block_rows(kernels));
  const std::int64_t depth = std::min(shape.k, kDepth);
  // One panel more than the block: packing writes whole vectors past its end.
  const std::int64_t block = kDepth * kernels.panel_columns + rows * depth;
  // A part of the rows may be few, too.
  const std::int64_t streamed = std::min<std::int64_t>(shape.m, kernels.stream_rows) * shape.k;
  const std::int64_t packed = std::max(block, streamed) + kernels.panel_columns;
  const std::int64_t piece = shape.k > kPiece ? shape.m * shape.n : 0;
  return round_up(packed, 16) + round_up(piece, 16);
}

void gemm_serial(const GemmKernels& kernels, const GemmShape& shape, const GemmMatrix& a,
                 const GemmMatrix& b, float* c, std::int64_t c_stride, bool accumulate,
                 float* scratch) {
  if (shape.k == 0 && !accumulate) clear(c, c_stride, shape);
  if (streams(kernels, shape, b)) {
    stream_rows(kernels, shape, a, b, c, c_stride, accumulate, scratch);
    return;
  }
  float* const piece = scratch + gemm_scratch(kernels, {shape.m, shape.n, kPiece});
  for (std::int64_t k = 0; k < shape.k; k += kPiece) {
    const GemmShape part = {shape.m, shape.n, std::min(kPiece, shape.k - k)};
    if (k == 0) {
      multiply_piece(kernels, part, a, b, c, c_stride, accumulate, scratch);
    } else {
      multiply_piece(kernels, part, from(a, 0, k), from(b, k, 0), piece, shape.n, false, scratch);
      add_rows(c, c_stride, piece, shape.m, shape.n);
    }
  }
}

void cpu_gemm(Context& context, const GemmKernels& kernels, const GemmShape& shape,
              const GemmMatrix& a, const GemmMatrix& b, float* c, std::int64_t c_stride,
              bool accumulate) {
  if (shape.m == 0 || shape.n == 0) return;
  const int threads = context.threads().size();
  const Tiling tiling = tile(kernels, shape, threads);
  const std::int64_t pieces = tiling.split ? divide_up(shape.k, kPiece) : 1;
  const std::int64_t piece_depth = tiling.split ? kPiece : shape.k;
  const ArenaScope scope(context.arena());
  const GemmShape largest = {std::min(shape.m, tiling.rows), std::min(shape.n, tiling.columns),
                             piece_depth};
  const std::int64_t scratch_size = gemm_scratch(kernels, largest);
  auto* const scratch = context.empty({threads, scratch_size}, Dtype::f32).data<float>();
  auto* const partial = context.empty({pieces - 1, shape.m, shape.n}, Dtype::f32).data<float>();
  if (context.planning()) return;

  const std::int64_t tiles = tiling.row_tiles * tiling.column_tiles;
  context.threads().run(tiles * pieces, [&](std::int64_t task, int worker) {
    const std::int64_t piece = task / tiles;
    const std::int64_t i = task % tiles % tiling.row_tiles * tiling.rows;
    const std::int64_t j = task % tiles / tiling.row_tiles * tiling.columns;
    const std::int64_t k = piece * piece_depth;
    const GemmShape part = {std::min(tiling.rows, shape.m - i),
                            std::min(tiling.columns, shape.n - j),
                            std::min(piece_depth, shape.k - k)};
    const bool first = piece == 0;
    float* const to =
        first ? c + i * c_stride + j : partial + ((piece - 1) * shape.m + i) * shape.n + j;
    gemm_serial(kernels, part, from(a, i, k), from(b, k, j), to, first ? c_stride : shape.n,
                first && accumulate, scratch + worker * scratch_size);
  });
  if (pieces == 1) return;
  const std::int64_t rows = std::max<std::int64_t>(1, 16384 / shape.n);
  context.threads().run(divide_up(shape.m, rows), [&](std::int64_t task, int) {
    const std::int64_t i = task * rows;
    for (std::int64_t piece = 1; piece < pieces; ++piece) {
      add_rows(c + i * c_stride, c_stride, partial + ((piece - 1) * shape.m + i) * shape.n,
               std::min(rows, shape.m - i), shape.n);
    }
  });
}

void CpuBackend::gemm(Context& context, const Gemm& args) const {
  const GemmShape shape = {args.c.dim(0), args.c.dim(1), args.a.dim(args.transpose_a ? 0 : 1)};
  cpu_gemm(context, gemm_kernels(), shape, gemm_matrix(args.a, args.transpose_a),
           gemm_matrix(args.b, args.transpose_b), args.c.data<float>(), args.c.stride(0),
           args.accumulate);
}

}  // namespace rankone::nn
