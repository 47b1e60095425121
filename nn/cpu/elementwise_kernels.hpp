#pragma once

// The vector kernels of the element-wise operators, compiled once per instruction set (nn/cpu/isa).
// All pointers are to contiguous float32; a kernel does one block of the work on one thread.

#include <cstdint>

#include "nn/choices.hpp"

namespace rankone::nn {

struct MapKernels {
  void (*activate[kActivations])(std::int64_t count, const float* x, float* y);
  void (*activate_vjp[kActivations])(std::int64_t count, const float* x, const float* dy,
                                     float* dx);
  // dgate or dup may be null.
  void (*swiglu)(std::int64_t count, const float* gate, const float* up, float* y);
  void (*swiglu_vjp)(std::int64_t count, const float* gate, const float* up, const float* dy,
                     float* dgate, float* dup);
  void (*multiply)(std::int64_t count, const float* a, const float* b, float* y);
  void (*add)(std::int64_t count, const float* a, const float* b, float* y);
  void (*scale)(std::int64_t count, const float* a, float factor, float* y);
  // y = c + a * b; y may be c.
  void (*multiply_add)(std::int64_t count, const float* a, const float* b, const float* c,
                       float* y);
};

// Rows of RmsNorm: row r of x, gate and y starts at r * width, and uses the piece r mod pieces of
// weight.
struct RmsRows {
  const float* x;
  const float* weight;
  const float* gate;  // or null
  std::int64_t width;
  std::int64_t pieces;
  Activation activation;
  bool gate_first;
  float eps;
};
struct RmsRowGrads {
  float* x;       // or null
  float* gate;    // or null
  float* weight;  // += of the block, [pieces * width], or null
};

struct NormKernels {
  void (*rms_norm)(const RmsRows& rows, std::int64_t begin, std::int64_t end, float* y);
  // scratch: 2 * width.
  void (*rms_norm_vjp)(const RmsRows& rows, std::int64_t begin, std::int64_t end, const float* dy,
                       const RmsRowGrads& grads, float* scratch);
  void (*vector_norm)(VectorNormForm form, float eps, std::int64_t rows, std::int64_t width,
                      const float* x, float* y);
  void (*vector_norm_vjp)(VectorNormForm form, float eps, std::int64_t rows, std::int64_t width,
                          const float* x, const float* dy, float* dx);
};

struct FeatureKernels {
  void (*hedgehog)(std::int64_t rows, std::int64_t width, const float* x, float* y);
  // scratch: 2 * width.
  void (*hedgehog_vjp)(std::int64_t rows, std::int64_t width, const float* x, const float* dy,
                       float* dx, float* scratch);
  // scratch: 2 * width + kDpfpRolls; twice that for the vjp.
  void (*dpfp)(std::int64_t rows, std::int64_t width, const float* x, float* y, float* scratch);
  void (*dpfp_vjp)(std::int64_t rows, std::int64_t width, const float* x, const float* dy,
                   float* dx, float* scratch);
};
inline constexpr int kDpfpRolls = 4;

inline constexpr int kMaxWindow = 8;

// One row of the convolution, over channels. taps[j] is the row that weight[j] multiplies; weight
// is [window, channels].
struct ConvRow {
  std::int64_t channels;
  std::int64_t window;
  const float* taps[kMaxWindow];
  const float* weight;
  const float* start;  // what the sum starts from (bias), or null: 0
};

struct ConvKernels {
  void (*forward)(const ConvRow& row, bool silu, float* y);
  // da = dy act'(sum of the taps).
  void (*slope)(const ConvRow& row, bool silu, const float* dy, float* da);
  // dweight[j] += da * taps[j] and dbias += da.
  void (*parameters)(const ConvRow& row, const float* da, float* dweight, float* dbias);
};

// Of best_isa().
const MapKernels& map_kernels();
const NormKernels& norm_kernels();
const FeatureKernels& feature_kernels();
const ConvKernels& conv_kernels();

}  // namespace rankone::nn
