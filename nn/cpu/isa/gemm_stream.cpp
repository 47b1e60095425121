// The product of a few rows with a matrix that is read once, from where it lies. Each column of the
// result belongs to a row of the matrix in memory, and each of its elements is one chain over
// increasing k, so blocks of the matrix are transposed in registers on their way to the chains.

#include "nn/cpu/isa/gemm_blocks.hpp"

namespace rankone::nn::RANKONE_ISA {
namespace {

#if defined(__AVX512F__)
constexpr int kMostRows = 8;
#else
constexpr int kMostRows = 4;
#endif

// A line of the cache, which is one load of 16 floats.
constexpr int kLineBytes = 64;

// Rows of the matrix travel as vectors of 32 bits, two elements each where they have 16 bits: the
// block is transposed once for both.
template <class Source>
constexpr int kPerWord = 4 / static_cast<int>(sizeof(typename Source::Element));

template <class Source>
inline Vec load_words(const typename Source::Element* from) {
  return load(reinterpret_cast<const float*>(from));
}

// The first `count` elements, the rest zero.
template <class Source>
inline Vec load_words_part(const typename Source::Element* from, std::int64_t count) {
  typename Source::Element words[kLanes * kPerWord<Source>] = {};
  for (int i = 0; i < count; ++i) words[i] = from[i];
  return load_words<Source>(words);
}

template <class Source, int Rows, bool Whole>
inline void add_block(const typename Source::Element* b, std::int64_t b_stride, int columns,
                      std::int64_t left, const float* a, Vec* sums) {
  constexpr int kTerms = kLanes * kPerWord<Source>;
  Vec block[kLanes];
  if (Whole) {
    // Four rows at a time: what is loaded is at once worked on, and the registers suffice.
#pragma GCC unroll 4
    for (int first = 0; first < kLanes; first += 4) {
#pragma GCC unroll 4
      for (int p = first; p < first + 4; ++p) block[p] = load_words<Source>(b + p * b_stride);
      transpose_quarters(block + first);
    }
    gather_quarters(block);
  } else {
    for (int p = 0; p < kLanes; ++p) {
      block[p] = p >= columns     ? Vec{}
                 : left >= kTerms ? load_words<Source>(b + p * b_stride)
                                  : load_words_part<Source>(b + p * b_stride, left);
    }
    transpose(block);
  }
  // Read again for every group of columns: kept, they would take the registers of the block.
  asm("" : "+r"(a));
  const auto add_words = [&](int i) {
#pragma GCC unroll 2
    for (int part = 0; part < kPerWord<Source>; ++part) {
      const int k = i * kPerWord<Source> + part;
      if (!Whole && k >= left) break;
      const Vec terms = Source::from_words(block[i], part);
#pragma GCC unroll 8
      for (int r = 0; r < Rows; ++r) sums[r] += splat(a[k * Rows + r]) * terms;
    }
  };
  if (Whole) {
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) add_words(i);
  } else {
    for (int i = 0; i < kLanes; ++i) add_words(i);
  }
}

// Fetches the rows that come next, in the order in which they lie in memory, while the present ones
// are multiplied: a block by itself touches a line of each of its rows, which no prefetcher
// recognises.
class Ahead {
 public:
  Ahead(const char* rows, std::int64_t row_bytes, std::int64_t stride_bytes)
      : at_(rows), left_(row_bytes), row_bytes_(row_bytes), gap_(stride_bytes - row_bytes) {}

  template <int Lines>
  inline void fetch() {
#pragma GCC unroll 32
    for (int i = 0; i < Lines; ++i) __builtin_prefetch(at_ + i * kLineBytes);
    at_ += Lines * kLineBytes;
    left_ -= Lines * kLineBytes;
    if (left_ <= 0) {
      at_ += gap_;
      left_ += row_bytes_;
    }
  }

 private:
  const char* at_;
  std::int64_t left_;  // bytes of this row
  std::int64_t row_bytes_, gap_;
};

// `Groups` times kLanes columns: where the rows are few, the chains of one group hide the latency
// of the other.
template <class Source, int Rows, int Groups>
void stream_rows(std::int64_t depth, const float* a, const void* b, std::int64_t b_stride,
                 std::int64_t columns, float* c, std::int64_t c_stride, bool add) {
  using Element = typename Source::Element;
  constexpr int kWidth = Groups * kLanes;
  constexpr std::int64_t kTerms = kLanes * kPerWord<Source>;
  constexpr int kLines = kWidth * kLanes * 4 / kLineBytes;  // of one block
  const auto* from = static_cast<const Element*>(b);
  const std::int64_t bytes = static_cast<std::int64_t>(sizeof(Element));
  for (std::int64_t j = 0; j < columns; j += kWidth) {
    const int width = columns - j < kWidth ? static_cast<int>(columns - j) : kWidth;
    const Element* const rows = from + j * b_stride;
    const bool last = columns - j < 2 * kWidth;
    Ahead ahead(reinterpret_cast<const char*>(last ? rows : rows + kWidth * b_stride),
                depth * bytes, b_stride * bytes);
    Vec piece[Groups * Rows] = {};
    for (std::int64_t start = 0; start < depth; start += kGemmDepth) {
      const std::int64_t end = depth - start < kGemmDepth ? depth : start + kGemmDepth;
      Vec sums[Groups * Rows] = {};
      std::int64_t k = start;
      if (width == kWidth) {
        for (; k + kTerms <= end; k += kTerms) {
          if (!last) ahead.template fetch<kLines>();
#pragma GCC unroll 2
          for (int group = 0; group < Groups; ++group) {
            add_block<Source, Rows, true>(rows + group * kLanes * b_stride + k, b_stride, kLanes,
                                          kTerms, a + k * Rows, sums + group * Rows);
          }
        }
      }
      for (; k < end; k += kTerms) {
        for (int group = 0; group * kLanes < width; ++group) {
          add_block<Source, Rows, false>(rows + group * kLanes * b_stride + k, b_stride,
                                         width - group * kLanes, end - k, a + k * Rows,
                                         sums + group * Rows);
        }
      }
      // The blocks of the first piece are added to c one by one, those of the others among
      // themselves first.
      const bool later = start >= kGemmPiece;
      if (later) {
        const bool first = start % kGemmPiece == 0;
        for (int i = 0; i < Groups * Rows; ++i) sums[i] = first ? sums[i] : piece[i] + sums[i];
        for (int i = 0; i < Groups * Rows; ++i) piece[i] = sums[i];
        if (end < depth && end % kGemmPiece != 0) continue;
      }
      for (int group = 0; group < Groups; ++group) {
        for (int r = 0; r < Rows; ++r) {
          put(c + r * c_stride + j + group * kLanes, sums[group * Rows + r], width - group * kLanes,
              add || start > 0);
        }
      }
    }
  }
}

template <class Source>
void stream_from(std::int64_t depth, int rows, const float* a, const void* b, std::int64_t b_stride,
                 std::int64_t columns, float* c, std::int64_t c_stride, bool add) {
#define RANKONE_STREAM(count, groups) \
  case count:                         \
    return stream_rows<Source, count, groups>(depth, a, b, b_stride, columns, c, c_stride, add);
  switch (rows) {
    RANKONE_STREAM(1, 2)
    RANKONE_STREAM(2, 1)
    RANKONE_STREAM(3, 1)
    RANKONE_STREAM(4, 1)
#if defined(__AVX512F__)
    RANKONE_STREAM(5, 1)
    RANKONE_STREAM(6, 1)
    RANKONE_STREAM(7, 1)
    RANKONE_STREAM(8, 1)
#endif
  }
#undef RANKONE_STREAM
}

}  // namespace

extern const int kStreamRows;
const int kStreamRows = kMostRows;

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

}  // namespace rankone::nn::RANKONE_ISA
