// The decay axis and the gates of the vector gain on vectors of floats.

#include "recurrence/cpu/prologue_kernels.hpp"

#include "recurrence/cpu/isa/lanes.hpp"

namespace rankone::recurrence::cpu::RANKONE_ISA {
namespace {

using Index = std::int64_t;

// The first `count` elements from `from`, of a null array zeros.
Lanes take(const float* from, int count) {
  if (from == nullptr) return Lanes(Vec{});
  return Lanes(count == kLanes ? load(from) : load_part(from, count));
}
void put(float* to, Lanes value, int count) {
  if (to == nullptr) return;
  if (count == kLanes) {
    store(to, value.v);
  } else {
    store_part(to, value.v, count);
  }
}
template <class T>
T* shifted(T* array, Index by) {
  return array != nullptr ? array + by : nullptr;
}

// A row is cut into pieces, and those into vectors: a piece is the channels of one head, or, where
// a head has one channel, all heads.
struct Pieces {
  Index count, width;
  bool one_head;  // all channels of a piece are of one head, and have its rate

  Pieces(Index heads, Index channels)
      : count(channels > 1 ? heads : 1),
        width(channels > 1 ? channels : heads),
        one_head(channels > 1) {}
  Lanes rate(const float* rates, Index piece, Index i, int part) const {
    return one_head ? Lanes(rates[piece]) : take(rates + i, part);
  }
};

int part_of(Index width, Index i) {
  return static_cast<int>(width - i < kLanes ? width - i : kLanes);
}

void decay(const DecayBlock<float>& block) {
  with_decay<Lanes>(*block.constants, [&](auto policy) {
    const Pieces pieces(block.heads, block.channels);
    for (Index piece = 0; piece < pieces.count * block.rows; ++piece) {
      const Index head = piece % pieces.count;
      for (Index i = 0; i < pieces.width; i += kLanes) {
        const int part = part_of(pieces.width, i);
        const Index at = piece * pieces.width + i, column = head * pieces.width + i;
        const Lanes x =
            take(shifted(block.x, at), part) + take(shifted(block.dt_bias, column), part);
        const DecayValue<Lanes> value = policy.value(x, pieces.rate(block.rates, head, i, part));
        put(shifted(block.g, at), value.g, part);
        put(shifted(block.dt, at), value.dt, part);
      }
    }
  });
}

// Rows that are gone through together: enough that sums stay in registers, few enough that rows
// which fall into one cache set do not drive each other out.
constexpr Index kRows = 8;

template <class Policy>
void decay_back_rows(const DecayBlockBack<float>& block, const Policy& policy, Index begin,
                     Index end) {
  const Pieces pieces(block.heads, block.channels);
  for (Index piece = 0; piece < pieces.count; ++piece) {
    Lanes d_rate = Lanes(Vec{});
    for (Index i = 0; i < pieces.width; i += kLanes) {
      const int part = part_of(pieces.width, i);
      const Index column = piece * pieces.width + i;
      const Lanes bias = take(shifted(block.dt_bias, column), part);
      const Lanes A = pieces.rate(block.rates, piece, i, part);
      Lanes d_bias = take(block.d_dt_bias + column, part);
      if (!pieces.one_head) d_rate = take(block.d_a_log + i, part);
      for (Index row = begin; row < end; ++row) {
        const Index at = row * pieces.count * pieces.width + column;
        // Beyond `part` the cotangents are zero, and with them all that is added up.
        const DecayDerivative<Lanes> d =
            policy.vjp(take(shifted(block.x, at), part) + bias, A,
                       take(shifted(block.d_g, at), part), take(shifted(block.d_dt, at), part));
        put(shifted(block.d_x, at), d.x, part);
        d_bias = d_bias + d.x;
        d_rate = d_rate + d.a_log;
      }
      put(block.d_dt_bias + column, d_bias, part);
      if (!pieces.one_head) put(block.d_a_log + i, d_rate, part);
    }
    if (pieces.one_head) block.d_a_log[piece] += sum(d_rate.v);
  }
}

void decay_back(const DecayBlockBack<float>& block) {
  with_decay<Lanes>(*block.constants, [&](auto policy) {
    for (Index begin = 0; begin < block.rows; begin += kRows) {
      const Index end = begin + kRows < block.rows ? begin + kRows : block.rows;
      decay_back_rows(block, policy, begin, end);
    }
  });
}

void gate(float* to, const float* from, const float* x, Index count) {
  for (Index i = 0; i < count; i += kLanes) {
    const int part = part_of(count, i);
    put(to + i, take(from + i, part) * sigmoid(take(x + i, part)), part);
  }
}

void gate_back(float* d_from, float* d_x, const float* from, const float* x, const float* d,
               Index count) {
  for (Index i = 0; i < count; i += kLanes) {
    const int part = part_of(count, i);
    const Lanes logit = take(x + i, part), d_gated = take(shifted(d, i), part) * sigmoid(logit);
    put(shifted(d_from, i), d_gated, part);
    put(shifted(d_x, i), d_gated * take(from + i, part) * sigmoid(-logit), part);
  }
}

}  // namespace

const PrologueKernels kPrologueKernels = {decay, decay_back, gate, gate_back};

}  // namespace rankone::recurrence::cpu::RANKONE_ISA
