// What a tile unit can do at most.

#include "core/tiles.hpp"

namespace rankone::RANKONE_ISA {

// `rounds` of four products of tiles each, 4 x 16 x 16 x 32 multiply-adds; with their operands in
// registers, or from `tiles` (16 KiB) in the first cache: two of each side for four products.
void tile_products(std::int64_t rounds, const void* tiles) {
  tiles_begin();
  TileRegisters t;
  t.zero<0>();
  t.zero<1>();
  t.zero<2>();
  t.zero<3>();
  const char* at = static_cast<const char*>(tiles);
  t.load<4>(at, 64);
  t.load<5>(at + 1024, 64);
  t.load<6>(at + 2048, 64);
  t.load<7>(at + 3072, 64);
  for (std::int64_t i = 0; i < rounds; ++i) {
    t.multiply_add<0, 4, 6>();
    t.multiply_add<1, 4, 7>();
    t.multiply_add<2, 5, 6>();
    t.multiply_add<3, 5, 7>();
  }
  tiles_end();
}

void tile_products_from_cache(std::int64_t rounds, const void* tiles) {
  tiles_begin();
  TileRegisters t;
  t.zero<0>();
  t.zero<1>();
  t.zero<2>();
  t.zero<3>();
  for (std::int64_t i = 0; i < rounds; ++i) {
    const char* at = static_cast<const char*>(tiles) + i % 4 * 4096;
    t.load<4>(at, 64);
    t.load<5>(at + 1024, 64);
    t.load<6>(at + 2048, 64);
    t.load<7>(at + 3072, 64);
    t.multiply_add<0, 4, 6>();
    t.multiply_add<1, 4, 7>();
    t.multiply_add<2, 5, 6>();
    t.multiply_add<3, 5, 7>();
  }
  tiles_end();
}

}  // namespace rankone::RANKONE_ISA
