// Decays of a chunk in float32.

#include "recurrence/cpu/tiles/declarations.hpp"
#include "recurrence/cpu/tiles/layout.hpp"

namespace rankone::recurrence::cpu::RANKONE_ISA {
namespace {

constexpr int kRows = 64;
constexpr int kLine16 = 16;

// A factor above 1 (g > 0 is legal) stays finite, with room for what it multiplies.
constexpr float kMost = 1e37F;
inline float bounded(float factor) { return factor > kMost ? kMost : factor; }
inline Vec bounded(Vec factor) { return select(factor > splat(kMost), splat(kMost), factor); }

void exponentials(float* to, const float* from, int count) {
  for (int i = 0; i < count; i += kLanes) store(to + i, vexp(load(from + i)));
}

}  // namespace

// Blocks of 16 rows: inside one, running products; between two, what a row has decayed since its
// block began, what a column decays to the end of its own, and the whole blocks between.
void scalar_decay(const ScalarDecay& d) {
  constexpr int kBlocks = kRows / kLine16;
  float step[kRows] = {};     // g, then exp g
  float begun[kRows] = {};    // since the start of the block, inclusive
  float left[kRows] = {};     // to the end of the block, exclusive
  float whole[kLine16] = {};  // of a block
  for (int i = 0; i < d.n && d.g != nullptr; ++i) step[i] = d.g[i * d.g_step];
  for (int block = 0; block < kBlocks; ++block) {
    const int first = block * kLine16;
    float sum = 0.0F;
    for (int i = first; i < first + kLine16; ++i) begun[i] = sum += step[i];
    whole[block] = sum;
    sum = 0.0F;
    for (int i = first + kLine16 - 1; i >= first; --i) {
      left[i] = sum;
      sum += step[i];
    }
  }
  exponentials(step, step, kRows);
  exponentials(begun, begun, kRows);
  exponentials(left, left, kRows);
  float before[kBlocks + 1] = {};
  for (int block = 0; block < kBlocks; ++block) before[block + 1] = before[block] + whole[block];
  float behind = 0.0F;
  for (int block = kBlocks - 1; block >= 0; --block) {
    const float start = bounded(__builtin_expf(before[block]));
    const float rest = bounded(__builtin_expf(behind));
    behind += whole[block];
    for (int i = block * kLine16; i < (block + 1) * kLine16 && i < d.n; ++i) {
      d.prefix[i] = bounded(start * begun[i]);
      d.suffix[i] = bounded(rest * left[i]);
    }
  }
  for (int block = 0; block * kLine16 < d.n; ++block) {
    const int first = block * kLine16;
    float running[kLine16] = {};
    float between[kBlocks];  // the whole blocks from the end of an earlier one to this
    float sum = 0.0F;
    for (int other = block - 1; other >= 0; --other) {
      between[other] = bounded(__builtin_expf(sum));
      sum += whole[other];
    }
    for (int i = first; i < first + kLine16 && i < d.n; ++i) {
      float* row = d.between + i * d.between_row;
      for (int other = 0; other < block; ++other) {
        const Vec factor = splat(bounded(between[other] * begun[i]));
        for (int j = other * kLine16; j < (other + 1) * kLine16; j += kLanes) {
          store(row + j, bounded(factor * load(left + j)));
        }
      }
      for (int j = 0; j < kLine16; j += kLanes) {
        store(running + j, bounded(load(running + j) * splat(step[i])));
      }
      running[i - first] = 1.0F;
      for (int j = 0; j < kLine16; j += kLanes) store(row + first + j, load(running + j));
    }
  }
}

bool channel_decay(const TileChannelDecay& d) {
  Vec least = splat(1.0F);
  for (int c = 0; c < d.channels; c += kLanes) {
    const int left = d.channels - c;
    Vec sum{};
    Vec most{};
    Vec decay = splat(1.0F);
    for (int i = 0; i < d.n; ++i) {
      const float* g = d.g + i * d.g_row + c;
      const Vec gate = left < kLanes ? load_part(g, left) : load(g);
      sum += gate;
      most = vmax(most, gate);
      decay = vexp(sum);
      store(d.from_start + i * d.row + c, decay);
      store(d.back + i * d.row + c, splat(1.0F) / decay);
    }
    least = select((decay >= splat(TileChannelDecay::kLeast)) & (most <= Vec{}), least, Vec{});
  }
  for (int i = 0; i < kLanes; ++i) {
    if (least[i] == 0.0F) return false;
  }
  return true;
}

}  // namespace rankone::recurrence::cpu::RANKONE_ISA
