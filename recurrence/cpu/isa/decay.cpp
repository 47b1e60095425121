// Decay factors of a chunk and the interactions under per-channel decay.

#include "recurrence/cpu/isa/declarations.hpp"

namespace rankone::recurrence::cpu::RANKONE_ISA {
namespace {

constexpr int kMostVectors = 256 / kLanes;

// A factor above 1 (g > 0 is legal) stays finite, so that it leaves a zero state zero. With room
// for a key that multiplies it.
constexpr float kMostDecay = 1e37F;

inline Vec factor_of(Vec log_decay) {
  const Vec factor = vexp(log_decay);
  return select(factor > splat(kMostDecay), splat(kMostDecay), factor);
}

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
      const Vec start = factor_of(before);
      Vec sum{};
      for (int i = first; i < end; ++i) {
        const Vec g = load(d.g + i * d.g_row + c);
        sum += g;
        const Vec prefix = factor_of(sum);
        store(d.step + i * d.row + c, factor_of(g));
        store(d.prefix + i * d.row + c, prefix);
        store(d.from_start + i * d.row + c, start * prefix);
      }
      before += sum;
    }
    Vec behind{};
    for (int first = (d.n - 1) / kBlock * kBlock; first >= 0; first -= kBlock) {
      const int end = first + kBlock < d.n ? first + kBlock : d.n;
      const Vec rest = factor_of(behind);
      Vec sum{};
      for (int i = end - 1; i >= first; --i) {
        const Vec suffix = factor_of(sum);
        store(d.suffix + i * d.row + c, suffix);
        store(d.to_end + i * d.row + c, suffix * rest);
        sum += load(d.g + i * d.g_row + c);
      }
      behind += sum;
    }
  }
}

void block_interaction(const BlockInteraction& b) {
  const int vectors = (b.channels + kLanes - 1) / kLanes;
  Vec decayed[kMostVectors];
  for (int j = 0; j < b.n; ++j) {
    for (int d = 0; d < vectors; ++d) decayed[d] = load(b.write + j * b.write_row + d * kLanes);
    for (int i = j; i < b.n; ++i) {
      const float* step = b.step + i * b.step_row;
      const float* query = b.query == nullptr ? nullptr : b.query + i * b.query_row;
      if (i > j) {
        for (int d = 0; d < vectors; ++d) decayed[d] *= load(step + d * kLanes);
        if (b.erase != nullptr) {
          const float* erase = b.erase + i * b.erase_row;
          Vec read{};
          for (int d = 0; d < vectors; ++d) read += load(erase + d * kLanes) * decayed[d];
          b.read[i * b.read_row + j] = sum(read);
        }
      }
      if (query == nullptr) continue;
      Vec seen{};
      for (int d = 0; d < vectors; ++d) seen += load(query + d * kLanes) * decayed[d];
      b.seen[i * b.seen_row + j] = sum(seen);
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
