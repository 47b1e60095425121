#pragma once

// Element types. The dtype of a tensor is a run-time property (docs/architecture.md).

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace rankone {

enum class Dtype : std::uint8_t { f64, f32, bf16, f16, i64, i32, u32, u16 };

std::size_t size_of(Dtype dtype);
std::string_view name(Dtype dtype);                       // "f32"
std::optional<Dtype> parse_dtype(std::string_view text);  // accepts "f32" and "F32"
bool is_floating(Dtype dtype);

// Brain float: the upper half of a float32, rounded to nearest even.
struct bf16 {
  std::uint16_t bits = 0;
};

// IEEE 754 half precision, rounded to nearest even.
struct f16 {
  std::uint16_t bits = 0;
};

inline float to_float(bf16 value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16);
}

inline bf16 to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  // A NaN must stay one: rounding could carry its mantissa into the exponent.
  if ((bits & 0x7fffffffU) > 0x7f800000U) {
    return bf16{static_cast<std::uint16_t>((bits >> 16) | 0x40U)};
  }
  const std::uint32_t rounded = bits + 0x7fffU + ((bits >> 16) & 1U);
  return bf16{static_cast<std::uint16_t>(rounded >> 16)};
}

float to_float(f16 value);
f16 to_f16(float value);

template <class T>
struct DtypeOf;
template <>
struct DtypeOf<double> {
  static constexpr Dtype value = Dtype::f64;
};
template <>
struct DtypeOf<float> {
  static constexpr Dtype value = Dtype::f32;
};
template <>
struct DtypeOf<bf16> {
  static constexpr Dtype value = Dtype::bf16;
};
template <>
struct DtypeOf<f16> {
  static constexpr Dtype value = Dtype::f16;
};
template <>
struct DtypeOf<std::int64_t> {
  static constexpr Dtype value = Dtype::i64;
};
template <>
struct DtypeOf<std::int32_t> {
  static constexpr Dtype value = Dtype::i32;
};
template <>
struct DtypeOf<std::uint32_t> {
  static constexpr Dtype value = Dtype::u32;
};
template <>
struct DtypeOf<std::uint16_t> {
  static constexpr Dtype value = Dtype::u16;
};

}  // namespace rankone
