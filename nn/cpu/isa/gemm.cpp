// Packing and the register tile of the float32 matrix product. Every element of the result is one
// chain of multiply-adds over increasing k, whatever the shape of the tile it falls into, so that
// its bits depend on its row of a and its column of b alone.

#include "core/simd.hpp"
#include "nn/cpu/isa/gemm_kernels.hpp"

namespace rankone::nn::RANKONE_ISA {
namespace {

// NOLINTNEXTLINE(google-build-using-namespace): the vocabulary of this instruction set
using namespace rankone::RANKONE_ISA;

// Two vectors wide and as tall as the registers allow: rows * 2 accumulators, two vectors of b and
// one broadcast element of a.
#if defined(__AVX512F__)
constexpr int kRows = 12;
#elif defined(__AVX2__)
constexpr int kRows = 6;
#else
constexpr int kRows = 4;
#endif
constexpr int kColumns = 2 * kLanes;
constexpr int kStreamRows = 4;

using Half = std::uint16_t;
// A typedef, as LooseVec of core/simd.hpp.
// NOLINTNEXTLINE(modernize-use-using)
typedef Half HalfVec __attribute__((vector_size(kLanes * 2), aligned(2), may_alias));
using UintVec = std::uint32_t __attribute__((vector_size(kLanes * 4)));

struct F32 {
  using Element = float;
  static Vec widen(const float* from) { return load(from); }
  static float widen_one(float value) { return value; }
};

struct Bf16 {
  using Element = Half;
  static Vec widen(const Half* from) {
    const HalfVec bits = *reinterpret_cast<const HalfVec*>(from);
    return reinterpret_cast<Vec>(__builtin_convertvector(bits, UintVec) << 16);
  }
  static float widen_one(Half value) {
    const std::uint32_t bits = static_cast<std::uint32_t>(value) << 16;
    float result;
    __builtin_memcpy(&result, &bits, sizeof result);
    return result;
  }
};

struct F16 {
  using Element = Half;
  // Exponent and mantissa, moved into place, are the value times 2^-112, subnormals included;
  // infinities and NaNs get the largest exponent back.
  static Vec widen(const Half* from) {
    const HalfVec half = *reinterpret_cast<const HalfVec*>(from);
    const UintVec bits = __builtin_convertvector(half, UintVec);
    const Vec magnitude = reinterpret_cast<Vec>((bits & 0x7fffU) << 13) * splat(0x1p112F);
    const UintVec special = reinterpret_cast<UintVec>((bits & 0x7c00U) == 0x7c00U);
    return reinterpret_cast<Vec>(reinterpret_cast<UintVec>(magnitude) | (special & 0x7f800000U) |
                                 ((bits & 0x8000U) << 16));
  }
  static float widen_one(Half value) {
    Half padded[kLanes] = {value};
    return widen(padded)[0];
  }
};

template <class Source>
Vec widen_part(const typename Source::Element* from, std::int64_t count) {
  Vec value{};
  for (int i = 0; i < count; ++i) value[i] = Source::widen_one(from[i]);
  return value;
}

// Transposes the kLanes by kLanes matrix in `rows`: first the 4 by 4 blocks inside each quarter of
// the vectors, then the quarters themselves.
#if defined(__AVX512F__)
#define RANKONE_UNPACK(a, b, o)                                                                \
  __builtin_shufflevector(a, b, o, o + 16, o + 1, o + 17, o + 4, o + 20, o + 5, o + 21, o + 8, \
                          o + 24, o + 9, o + 25, o + 12, o + 28, o + 13, o + 29)
#define RANKONE_PAIRS(a, b, o)                                                                 \
  __builtin_shufflevector(a, b, o, o + 1, o + 16, o + 17, o + 4, o + 5, o + 20, o + 21, o + 8, \
                          o + 9, o + 24, o + 25, o + 12, o + 13, o + 28, o + 29)
#define RANKONE_QUARTERS(a, b, o)                                                             \
  __builtin_shufflevector(a, b, o, o + 1, o + 2, o + 3, o + 8, o + 9, o + 10, o + 11, o + 16, \
                          o + 17, o + 18, o + 19, o + 24, o + 25, o + 26, o + 27)
#elif defined(__AVX2__)
#define RANKONE_UNPACK(a, b, o) \
  __builtin_shufflevector(a, b, o, o + 8, o + 1, o + 9, o + 4, o + 12, o + 5, o + 13)
#define RANKONE_PAIRS(a, b, o) \
  __builtin_shufflevector(a, b, o, o + 1, o + 8, o + 9, o + 4, o + 5, o + 12, o + 13)
#define RANKONE_QUARTERS(a, b, o) \
  __builtin_shufflevector(a, b, o, o + 1, o + 2, o + 3, o + 8, o + 9, o + 10, o + 11)
#else
#define RANKONE_UNPACK(a, b, o) __builtin_shufflevector(a, b, o, o + 4, o + 1, o + 5)
#define RANKONE_PAIRS(a, b, o) __builtin_shufflevector(a, b, o, o + 1, o + 4, o + 5)
#endif

// Collects the even quarters and the odd quarters of each pair (i, i + distance).
#if defined(__AVX2__)
inline void merge_quarters(Vec* rows, int distance) {
  Vec result[kLanes];
#pragma GCC unroll 16
  for (int i = 0; i < kLanes / 2; ++i) {
    const int low = i / distance * 2 * distance + i % distance;
    result[low] = RANKONE_QUARTERS(rows[low], rows[low + distance], 0);
    result[low + distance] = RANKONE_QUARTERS(rows[low], rows[low + distance], 4);
  }
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) rows[i] = result[i];
}
#endif

inline void transpose(Vec* rows) {
#pragma GCC unroll 4
  for (int i = 0; i < kLanes; i += 4) {
    const Vec low01 = RANKONE_UNPACK(rows[i], rows[i + 1], 0);
    const Vec high01 = RANKONE_UNPACK(rows[i], rows[i + 1], 2);
    const Vec low23 = RANKONE_UNPACK(rows[i + 2], rows[i + 3], 0);
    const Vec high23 = RANKONE_UNPACK(rows[i + 2], rows[i + 3], 2);
    rows[i] = RANKONE_PAIRS(low01, low23, 0);
    rows[i + 1] = RANKONE_PAIRS(low01, low23, 2);
    rows[i + 2] = RANKONE_PAIRS(high01, high23, 0);
    rows[i + 3] = RANKONE_PAIRS(high01, high23, 2);
  }
#if defined(__AVX512F__)
  // Vector 4g + c now holds, in quarter q, rows 4g .. 4g + 3 of column 4q + c; it is wanted in
  // quarter g of vector 4q + c.
  merge_quarters(rows, 4);
  merge_quarters(rows, 8);
#elif defined(__AVX2__)
  merge_quarters(rows, 4);
#endif
}

// Elements k .. k + kLanes - 1 of the first `width` rows (zero beyond width and depth), transposed.
template <class Source>
inline void load_transposed(const typename Source::Element* data, std::int64_t stride, int width,
                            std::int64_t left, Vec* block) {
  if (width >= kLanes && left >= kLanes) {
#pragma GCC unroll 16
    for (int p = 0; p < kLanes; ++p) block[p] = Source::widen(data + p * stride);
  } else if (left >= kLanes) {
#pragma GCC unroll 16
    for (int p = 0; p < kLanes; ++p) {
      block[p] = p < width ? Source::widen(data + p * stride) : Vec{};
    }
  } else {
    for (int p = 0; p < kLanes; ++p) {
      block[p] = p < width ? widen_part<Source>(data + p * stride, left) : Vec{};
    }
  }
  transpose(block);
}

template <class Source>
void pack_along_depth(const typename Source::Element* data, std::int64_t stride, int width,
                      std::int64_t depth, float* out, int out_stride) {
  for (int first = 0; first < out_stride; first += kLanes) {
    const auto* rows = data + first * stride;
    for (std::int64_t k = 0; k < depth; k += kLanes) {
      Vec block[kLanes];
      load_transposed<Source>(rows + k, stride, width - first, depth - k, block);
      float* to = out + k * out_stride + first;
      if (depth - k >= kLanes) {
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; ++i) store(to + i * out_stride, block[i]);
      } else {
        for (int i = 0; i < depth - k; ++i) store(to + i * out_stride, block[i]);
      }
    }
  }
}

template <class Source>
void pack_across_depth(const typename Source::Element* data, std::int64_t stride, int width,
                       std::int64_t depth, float* out, int out_stride) {
  for (std::int64_t k = 0; k < depth; ++k) {
    const auto* from = data + k * stride;
    float* to = out + k * out_stride;
    int p = 0;
    for (; p + kLanes <= width; p += kLanes) store(to + p, Source::widen(from + p));
    for (; p < width; ++p) to[p] = Source::widen_one(from[p]);
    for (; p < out_stride; ++p) to[p] = 0.0F;
  }
}

// A panel of a, of a width the compiler knows.
void copy_full_rows(const float* data, std::int64_t stride, std::int64_t depth, float* out) {
  for (std::int64_t k = 0; k < depth; ++k) {
    __builtin_memcpy(out + k * kRows, data + k * stride, kRows * sizeof(float));
  }
}

template <class Source>
void pack_from(const void* data, std::int64_t stride, bool along_depth, int width,
               std::int64_t depth, float* out, int out_stride) {
  const auto* from = static_cast<const typename Source::Element*>(data);
  if (along_depth) {
    pack_along_depth<Source>(from, stride, width, depth, out, out_stride);
  } else {
    pack_across_depth<Source>(from, stride, width, depth, out, out_stride);
  }
}

void pack(const void* data, Storage storage, std::int64_t stride, bool along_depth, int width,
          std::int64_t depth, float* out, int out_stride) {
  switch (storage) {
    case Storage::f32:
      if (!along_depth && width == kRows && out_stride == kRows) {
        return copy_full_rows(static_cast<const float*>(data), stride, depth, out);
      }
      return pack_from<F32>(data, stride, along_depth, width, depth, out, out_stride);
    case Storage::bf16:
      return pack_from<Bf16>(data, stride, along_depth, width, depth, out, out_stride);
    case Storage::f16:
      return pack_from<F16>(data, stride, along_depth, width, depth, out, out_stride);
  }
}

inline void put(float* to, Vec value, int columns, bool add) {
  if (columns >= kLanes) {
    store(to, add ? load(to) + value : value);
  } else if (columns > 0) {
    store_part(to, add ? load_part(to, columns) + value : value, columns);
  }
}

template <int Rows>
void multiply_rows(std::int64_t depth, const float* a, const float* b, std::int64_t b_stride,
                   float* c, std::int64_t c_stride, int columns, bool add) {
  Vec left[Rows] = {};
  Vec right[Rows] = {};
  for (std::int64_t k = 0; k < depth; ++k) {
    const Vec b_left = load(b);
    const Vec b_right = load(b + kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) {
      const Vec factor = splat(a[r]);
      left[r] += factor * b_left;
      right[r] += factor * b_right;
    }
    a += Rows;
    b += b_stride;
  }
#pragma GCC unroll 16
  for (int r = 0; r < Rows; ++r) {
    put(c + r * c_stride, left[r], columns, add);
    put(c + r * c_stride + kLanes, right[r], columns - kLanes, add);
  }
}

using MultiplyRows = void (*)(std::int64_t, const float*, const float*, std::int64_t, float*,
                              std::int64_t, int, bool);
constexpr MultiplyRows kMultiplyRows[] = {
    nullptr,           multiply_rows<1>, multiply_rows<2>, multiply_rows<3>,  multiply_rows<4>,
#if defined(__AVX2__)
    multiply_rows<5>,  multiply_rows<6>,
#endif
#if defined(__AVX512F__)
    multiply_rows<7>,  multiply_rows<8>, multiply_rows<9>, multiply_rows<10>, multiply_rows<11>,
    multiply_rows<12>,
#endif
};
static_assert(sizeof(kMultiplyRows) / sizeof(MultiplyRows) == kRows + 1);

void multiply(std::int64_t depth, int rows, const float* a, const float* b, std::int64_t b_stride,
              float* c, std::int64_t c_stride, int columns, bool add) {
  kMultiplyRows[rows](depth, a, b, b_stride, c, c_stride, columns, add);
}

template <class Source, int Rows>
inline void stream_block(const typename Source::Element* b, std::int64_t b_stride, int columns,
                         std::int64_t left, const float* a, Vec* sums) {
  Vec block[kLanes];
  load_transposed<Source>(b, b_stride, columns, left, block);
  const int steps = left < kLanes ? static_cast<int>(left) : kLanes;
  if (steps == kLanes) {
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) {
#pragma GCC unroll 4
      for (int r = 0; r < Rows; ++r) sums[r] += splat(a[i * Rows + r]) * block[i];
    }
  } else {
    for (int i = 0; i < steps; ++i) {
      for (int r = 0; r < Rows; ++r) sums[r] += splat(a[i * Rows + r]) * block[i];
    }
  }
}

template <class Source, int Rows>
void stream_rows(std::int64_t depth, const float* a, const void* b, std::int64_t b_stride,
                 std::int64_t columns, float* c, std::int64_t c_stride, bool add) {
  const auto* from = static_cast<const typename Source::Element*>(b);
  // Two groups of columns at a time: the chains of one hide the latency of the other.
  for (std::int64_t j = 0; j < columns; j += kColumns) {
    const int width = columns - j < kColumns ? static_cast<int>(columns - j) : kColumns;
    Vec left[Rows] = {};
    Vec right[Rows] = {};
    for (std::int64_t k = 0; k < depth; k += kLanes) {
      const auto* block = from + j * b_stride + k;
      stream_block<Source, Rows>(block, b_stride, width, depth - k, a + k * Rows, left);
      if (width > kLanes) {
        stream_block<Source, Rows>(block + kLanes * b_stride, b_stride, width - kLanes, depth - k,
                                   a + k * Rows, right);
      }
    }
    for (int r = 0; r < Rows; ++r) {
      put(c + r * c_stride + j, left[r], width, add);
      put(c + r * c_stride + j + kLanes, right[r], width - kLanes, add);
    }
  }
}

template <class Source>
void stream_from(std::int64_t depth, int rows, const float* a, const void* b, std::int64_t b_stride,
                 std::int64_t columns, float* c, std::int64_t c_stride, bool add) {
  switch (rows) {
    case 1:
      return stream_rows<Source, 1>(depth, a, b, b_stride, columns, c, c_stride, add);
    case 2:
      return stream_rows<Source, 2>(depth, a, b, b_stride, columns, c, c_stride, add);
    case 3:
      return stream_rows<Source, 3>(depth, a, b, b_stride, columns, c, c_stride, add);
    default:
      return stream_rows<Source, 4>(depth, a, b, b_stride, columns, c, c_stride, add);
  }
}

void stream(std::int64_t depth, int rows, const float* a, const void* b, Storage storage,
            std::int64_t b_stride, std::int64_t columns, float* c, std::int64_t c_stride,
            bool add) {
  switch (storage) {
    case Storage::f32:
      return stream_from<F32>(depth, rows, a, b, b_stride, columns, c, c_stride, add);
    case Storage::bf16:
      return stream_from<Bf16>(depth, rows, a, b, b_stride, columns, c, c_stride, add);
    case Storage::f16:
      return stream_from<F16>(depth, rows, a, b, b_stride, columns, c, c_stride, add);
  }
}

}  // namespace

extern const GemmKernels kGemmKernels;
const GemmKernels kGemmKernels = {kRows, kColumns, kStreamRows, pack, multiply, stream};

}  // namespace rankone::nn::RANKONE_ISA
