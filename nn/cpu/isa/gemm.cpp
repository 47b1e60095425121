// Packing and the register tile of the float32 matrix product. Every element of the result is one
// chain of multiply-adds over increasing k, whatever the shape of the tile it falls into, so that
// its bits depend on its row of a and its column of b alone.

#include "nn/cpu/isa/gemm_blocks.hpp"

namespace rankone::nn::RANKONE_ISA {
namespace {

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
    // A step of a large stride is nothing a prefetcher follows.
    for (int line = 0; line < width; line += 64 / static_cast<int>(sizeof *data)) {
      __builtin_prefetch(from + 16 * stride + line);
    }
    int p = 0;
    for (; p + kLanes <= width; p += kLanes) store(to + p, Source::widen(from + p));
    for (; p < width; ++p) to[p] = Source::widen_one(from[p]);
    for (; p < out_stride; ++p) to[p] = 0.0F;
  }
}

// A panel of a, of a width the compiler knows.
void copy_full_rows(const float* data, std::int64_t stride, std::int64_t depth, float* out) {
  for (std::int64_t k = 0; k < depth; ++k) {
    __builtin_prefetch(data + (k + 16) * stride);
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

template <int Rows>
void multiply_rows(std::int64_t depth, const float* a, const float* b, std::int64_t b_stride,
                   float* c, std::int64_t c_stride, int columns, bool add) {
  Vec left[Rows] = {};
  Vec right[Rows] = {};
  for (std::int64_t k = 0; k < depth; ++k) {
    __builtin_prefetch(a + Rows * depth, 0, 2);  // the next panel lies behind this one
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

}  // namespace

extern const GemmKernels kGemmKernels;
const GemmKernels kGemmKernels = {kRows, kColumns, kStreamRows, pack, multiply, stream};

}  // namespace rankone::nn::RANKONE_ISA
