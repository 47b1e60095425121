// What a tile unit can do at most.

#include "core/tiles.hpp"

namespace rankone::RANKONE_ISA {
namespace {

// The operands of four products: two of each side.
inline void load_operands(TileRegisters& t, const char* at) {
  t.load<4>(at, 64);
  t.load<5>(at + 1024, 64);
  t.load<6>(at + 2048, 64);
  t.load<7>(at + 3072, 64);
}

template <bool kFromCache>
void products(std::int64_t rounds, const char* tiles) {
  tiles_begin();
  TileRegisters t;
  t.zero<0>();
  t.zero<1>();
  t.zero<2>();
  t.zero<3>();
  if (!kFromCache) load_operands(t, tiles);
  for (std::int64_t i = 0; i < rounds; ++i) {
    if (kFromCache) load_operands(t, tiles + i % 4 * 4096);
    t.multiply_add<0, 4, 6>();
    t.multiply_add<1, 4, 7>();
    t.multiply_add<2, 5, 6>();
    t.multiply_add<3, 5, 7>();
  }
  tiles_end();
}

}  // namespace

// `rounds` of four products of tiles each, 4 x 16 x 16 x 32 multiply-adds; with their operands in
// registers, or from `tiles` (16 KiB) in the first cache.
void tile_products(std::int64_t rounds, const void* tiles) {
  products<false>(rounds, static_cast<const char*>(tiles));
}
void tile_products_from_cache(std::int64_t rounds, const void* tiles) {
  products<true>(rounds, static_cast<const char*>(tiles));
}

}  // namespace rankone::RANKONE_ISA
