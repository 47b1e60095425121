#pragma once

// What `rankone golden` compares, and where the comparisons of the upper layers plug in.

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "core/context.hpp"
#include "core/safetensors.hpp"

namespace rankone::apps {

// The outcome for one tensor.
struct TensorCheck {
  std::string name;
  bool passed = false;
  double error = 0.0;  // the largest error in units of what is allowed: passed is error <= 1
  std::string detail;  // why it failed, in words; empty where it passed
};

bool all_passed(const std::vector<TensorCheck>& checks);

// The rules of a format ("Accuracy to expect" of the golden data).
struct GoldenBounds {
  double tensor;    // RMS error over the tensor, of the RMS of what is expected
  double floor;     // plus this
  double row;       // RMS error of every row, of (its RMS + 0.01 times the median RMS of the rows)
  double gate_row;  // the same for the gradient of a decay per channel
  double scalar;    // RMS error over the steps of a (batch, head), of its RMS
};
// f64: the reference backend; f32: float32 kernels. Other dtypes fail with unsupported.
GoldenBounds golden_bounds(Dtype dtype);
// The same for what this context computes with: wider where its products are of bf16 parts, which
// `auto` takes for no per-channel decay.
GoldenBounds golden_bounds(Dtype dtype, const Context& context, bool channel_decay);

enum class GoldenRows {
  rows,          // rows along the last axis
  channel_gate,  // the gradient of a decay per channel
  scalars,       // [B, T, H]: one number per step
  parameter      // one number per head: only the rule over the whole tensor
};

// Compares under both rules. NaN, infinity and a wrong shape fail.
TensorCheck compare_golden(std::string name, const Tensor& expected, const Tensor& got,
                           GoldenRows rows, const GoldenBounds& bounds);

// Whole layers and models need layers above the recurrence; a build without them leaves these
// empty.
struct GoldenChecks {
  // An op file of a whole layer (metadata op "kla_layer").
  std::function<std::vector<TensorCheck>(const TensorFile& file, Context& context, Dtype dtype)>
      layer_file;
  // A model directory with expected.safetensors.
  std::function<std::vector<TensorCheck>(const std::filesystem::path& directory, Context& context,
                                         Dtype dtype)>
      model_directory;
};
GoldenChecks& golden_checks();

}  // namespace rankone::apps
