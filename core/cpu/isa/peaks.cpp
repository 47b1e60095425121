// The inner loops of measure_peaks().

#include "core/simd.hpp"

namespace rankone::RANKONE_ISA {

namespace {

// Independent chains: enough for the latency of two ports, and not too many for 16 registers.
constexpr int kChains = 12;

}  // namespace

float multiply_adds(std::int64_t rounds) {
  Vec chain[kChains];
  for (int i = 0; i < kChains; ++i) chain[i] = splat(static_cast<float>(i));
  const Vec factor = splat(0.5F);
  const Vec term = splat(1.0F);
  for (std::int64_t round = 0; round < rounds; ++round) {
    for (int i = 0; i < kChains; ++i) chain[i] = chain[i] * factor + term;
  }
  Vec total{};
  for (int i = 0; i < kChains; ++i) total += chain[i];
  return sum(total);
}

std::int64_t multiply_add_operations() { return std::int64_t{kChains} * kLanes * 2; }

float read_all(const float* data, std::int64_t count) {
  Vec total[8] = {};
  for (std::int64_t at = 0; at + 8 * kLanes <= count; at += 8 * kLanes) {
    for (int i = 0; i < 8; ++i) total[i] += load(data + at + i * kLanes);
  }
  Vec all{};
  for (int i = 0; i < 8; ++i) all += total[i];
  return sum(all);
}

void update_all(float* data, std::int64_t count) {
  const Vec term = splat(1.0F);
  for (std::int64_t at = 0; at + 8 * kLanes <= count; at += 8 * kLanes) {
    for (int i = 0; i < 8; ++i) {
      float* const here = data + at + i * kLanes;
      store(here, load(here) + term);
    }
  }
}

}  // namespace rankone::RANKONE_ISA
