#pragma once

// The enumerations of operators.hpp, apart from it for the vector kernels, which include no header
// of the standard library that has inline functions.

namespace rankone::nn {

enum class Activation { none, silu, sigmoid, relu, elu1 /* elu(x) + 1 */ };
inline constexpr int kActivations = 5;

// Norm of q or k over the last axis.
//   rsqrt: x * rsqrt(|x|^2 + eps) (models)     clamp: x / max(|x|, eps) (golden/ops)
//   sum:   x / (sum(x) + eps)
enum class VectorNormForm { rsqrt, clamp, sum };

// hedgehog: softmax over the last axis of [2 x, -2 x], width 2 D.
// dpfp:     z = [relu(x), -relu(x)]; y = [z,z,z,z] * [roll1 z, roll2 z, roll3 z, roll4 z], width 8
// D.
enum class FeatureMap { hedgehog, dpfp };

}  // namespace rankone::nn
