// Decay factors of a chunk and the interactions under per-channel decay.

#include "recurrence/cpu/isa/sums.hpp"

namespace rankone::recurrence::cpu::RANKONE_ISA {
namespace {

constexpr int kMostChannels = 256;

// A factor above 1 (g > 0 is legal) stays finite, so that it leaves a zero state zero. With room
// for a key that multiplies it.
constexpr float kMostDecay = 1e37F;

inline float narrow(double factor) {
  return factor > kMostDecay ? kMostDecay : static_cast<float>(factor);
}

}  // namespace

void scalar_decay(const ScalarDecay& d) {
  double running[kMaxChunk];
  double product = 1.0;
  for (int i = 0; i < d.n; ++i) {
    const double factor =
        d.g == nullptr ? 1.0 : __builtin_exp(static_cast<double>(d.g[i * d.g_step]));
    for (int j = 0; j < i; ++j) running[j] *= factor;
    running[i] = 1.0;
    product *= factor;
    d.prefix[i] = narrow(product);
    float* between = d.between + i * d.between_row;
    for (int j = 0; j <= i; ++j) between[j] = narrow(running[j]);
    for (int j = i + 1; j < d.n; ++j) between[j] = 0.0F;
  }
  for (int j = 0; j < d.n; ++j) d.suffix[j] = narrow(running[j]);
}

void channel_decay(const ChannelDecay& d) {
  for (int c = 0; c < d.channels; c += kLanes) {
    Vec before{};  // sum over the blocks before this one
    for (int first = 0; first < d.n; first += kBlock) {
      const int end = first + kBlock < d.n ? first + kBlock : d.n;
      const Vec start = vexp_finite(before);
      Vec sum{};
      for (int i = first; i < end; ++i) {
        const Vec g = load(d.g + i * d.g_row + c);
        sum += g;
        const Vec prefix = vexp_finite(sum);
        store(d.step + i * d.row + c, vexp_finite(g));
        store(d.prefix + i * d.row + c, prefix);
        store(d.from_start + i * d.row + c, start * prefix);
      }
      before += sum;
    }
    Vec behind{};
    for (int first = (d.n - 1) / kBlock * kBlock; first >= 0; first -= kBlock) {
      const int end = first + kBlock < d.n ? first + kBlock : d.n;
      const Vec rest = vexp_finite(behind);
      Vec sum{};
      for (int i = end - 1; i >= first; --i) {
        const Vec suffix = vexp_finite(sum);
        store(d.suffix + i * d.row + c, suffix);
        store(d.to_end + i * d.row + c, suffix * rest);
        sum += load(d.g + i * d.g_row + c);
      }
      behind += sum;
    }
  }
}

namespace {

// Pairs are taken in groups of one reader and kPairs writers.
constexpr int kPairs = kLanes / 2;

// Lanes [0, kPairs) of the result: erase . decayed_j for the writers j of a group, then the same
// with the query. Leaves the writers decayed by `next` (where there is one).
RANKONE_INLINE Vec read_group(const float* erase, const float* query, float* decayed,
                              const float* next, int channels) {
  Vec sums[kLanes] = {};
  for (int d = 0; d < channels; d += kLanes) {
    const Vec left = load(erase + d);
    const Vec right = load(query + d);
    const Vec step = next == nullptr ? Vec{} : load(next + d);
    for (int j = 0; j < kPairs; ++j) {
      float* const at = decayed + j * kMostChannels + d;
      const Vec write = load(at);
      sums[j] += left * write;
      sums[kPairs + j] += right * write;
      if (next != nullptr) store(at, write * step);
    }
  }
  return lane_sums(sums);
}

}  // namespace

void block_interaction(const BlockInteraction& b) {
  alignas(64) float decayed[kBlock * kMostChannels];
  const float* erase = b.erase == nullptr ? b.query : b.erase;
  const Index erase_row = b.erase == nullptr ? b.query_row : b.erase_row;
  const float* query = b.query == nullptr ? b.erase : b.query;
  const Index query_row = b.query == nullptr ? b.erase_row : b.query_row;
  for (int i = 0; i < b.n; ++i) {
    // A group starts as zeros behind its first writer.
    for (int j = i; j < (i % kPairs == 0 ? i + kPairs : i + 1); ++j) {
      for (int d = 0; d < b.channels; d += kLanes) {
        store(decayed + j * kMostChannels + d,
              j == i ? load(b.write + i * b.write_row + d) : Vec{});
      }
    }
    const float* next = i + 1 < b.n ? b.step + (i + 1) * b.step_row : nullptr;
    for (int first = 0; first <= i; first += kPairs) {
      float sums[kLanes];
      store(sums, read_group(erase + i * erase_row, query + i * query_row,
                             decayed + first * kMostChannels, next, b.channels));
      const int end = first + kPairs < i ? first + kPairs : i;
      if (b.erase != nullptr) {
        for (int j = first; j < end; ++j) b.read[i * b.read_row + j] = sums[j - first];
      }
      if (b.query == nullptr) continue;
      for (int j = first; j < end; ++j) b.seen[i * b.seen_row + j] = sums[kPairs + j - first];
      if (first + kPairs > i) b.seen[i * b.seen_row + i] = sums[kPairs + i - first];
    }
  }
}

void block_interaction_grad(const BlockInteractionGrad& b) {
  for (int c = 0; c < b.channels; c += kLanes) {
    for (int j = 0; j < b.n; ++j) {
      Vec write{};  // sum over i of gradient(i, j) read or query(i), decayed back to j
      for (int i = b.n - 1; i > j; --i) {
        write += splat(b.seen_grad[i * b.grad_row + j]) * load(b.query + i * b.query_row + c);
        if (b.erase != nullptr) {
          write += splat(b.read_grad[i * b.grad_row + j]) * load(b.erase + i * b.erase_row + c);
        }
        write *= load(b.step + i * b.step_row + c);
      }
      float* out = b.write_grad + j * b.out_row + c;
      store(out, load(out) + write);
    }
    for (int i = 1; i < b.n; ++i) {
      Vec query{};
      Vec erase{};
      for (int j = 0; j < i; ++j) {
        const Vec write = load(b.write + j * b.write_row + c);
        const Vec next = load(b.step + (j + 1) * b.step_row + c);
        query = (query + splat(b.seen_grad[i * b.grad_row + j]) * write) * next;
        if (b.erase != nullptr) {
          erase = (erase + splat(b.read_grad[i * b.grad_row + j]) * write) * next;
        }
      }
      float* query_out = b.query_grad + i * b.out_row + c;
      store(query_out, load(query_out) + query);
      if (b.erase == nullptr) continue;
      float* erase_out = b.erase_grad + i * b.out_row + c;
      store(erase_out, load(erase_out) + erase);
    }
  }
}

}  // namespace rankone::recurrence::cpu::RANKONE_ISA
