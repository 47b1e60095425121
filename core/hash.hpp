#pragma once

// SHA-256 (FIPS 180-4) for identity, CRC-32C (Castagnoli) for damage.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace rankone {

// SHA-256 of bytes that arrive in pieces.
class Sha256 {
 public:
  void update(std::span<const std::byte> bytes);
  // The digest in hex (64 characters) of everything so far; the object is spent afterwards.
  std::string finish();

 private:
  void block(const std::byte* data);

  std::array<std::uint32_t, 8> state_{0x6a09e667U, 0xbb67ae85U, 0x3c6ef372U, 0xa54ff53aU,
                                      0x510e527fU, 0x9b05688cU, 0x1f83d9abU, 0x5be0cd19U};
  std::array<std::byte, 64> pending_{};
  std::uint64_t length_ = 0;  // bytes so far
};

std::string sha256(std::span<const std::byte> bytes);  // in hex

// TensorBoard's and our checkpoints' checksum. `seed` is the checksum of the bytes before these, so
// crc32c(ab) == crc32c(b, crc32c(a)).
std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t seed = 0);

}  // namespace rankone
