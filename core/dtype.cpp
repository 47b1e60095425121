#include "core/dtype.hpp"

#include <array>
#include <cmath>
#include <utility>

namespace rankone {
namespace {

struct DtypeRow {
  Dtype dtype;
  std::size_t size;
  std::string_view lower;
  std::string_view upper;
};

constexpr std::array<DtypeRow, 8> kDtypes{{
    {Dtype::f64, 8, "f64", "F64"},
    {Dtype::f32, 4, "f32", "F32"},
    {Dtype::bf16, 2, "bf16", "BF16"},
    {Dtype::f16, 2, "f16", "F16"},
    {Dtype::i64, 8, "i64", "I64"},
    {Dtype::i32, 4, "i32", "I32"},
    {Dtype::u32, 4, "u32", "U32"},
    {Dtype::u16, 2, "u16", "U16"},
}};

}  // namespace

std::size_t size_of(Dtype dtype) { return kDtypes[static_cast<std::size_t>(dtype)].size; }

std::string_view name(Dtype dtype) { return kDtypes[static_cast<std::size_t>(dtype)].lower; }

std::optional<Dtype> parse_dtype(std::string_view text) {
  for (const DtypeRow& row : kDtypes) {
    if (text == row.lower || text == row.upper) return row.dtype;
  }
  return std::nullopt;
}

bool is_floating(Dtype dtype) { return dtype <= Dtype::f16; }

float to_float(f16 value) {
  const std::uint32_t sign = static_cast<std::uint32_t>(value.bits & 0x8000U) << 16;
  const std::uint32_t exponent = (value.bits >> 10) & 0x1fU;
  const std::uint32_t mantissa = value.bits & 0x3ffU;
  if (exponent == 0x1fU) return std::bit_cast<float>(sign | 0x7f800000U | (mantissa << 13));
  if (exponent == 0) {
    const float magnitude = std::ldexp(static_cast<float>(mantissa), -24);
    return sign != 0 ? -magnitude : magnitude;
  }
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

f16 to_f16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000U);
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude > 0x7f800000U) return f16{static_cast<std::uint16_t>(sign | 0x7e00U)};
  if (magnitude >= 0x47800000U) return f16{static_cast<std::uint16_t>(sign | 0x7c00U)};
  if (magnitude < 0x38800000U) {
    // Subnormal: the nearest multiple of 2^-24; the default rounding mode is to even.
    const float scaled = std::ldexp(std::bit_cast<float>(magnitude), 24);
    return f16{
        static_cast<std::uint16_t>(sign | static_cast<std::uint32_t>(std::nearbyint(scaled)))};
  }
  const std::uint32_t rounded = magnitude + 0xfffU + ((magnitude >> 13) & 1U);
  return f16{static_cast<std::uint16_t>(sign | ((rounded - 0x38000000U) >> 13))};
}

}  // namespace rankone
