// The diagonal preconditioner, one lane a channel: A = exp(g) A + b k^2, out = factor(A) target.
//
// Rows are taken one by one, so that memory is read in its order: only A depends on the row before,
// and the processor overlaps the factors of many rows.

#include "recurrence/cpu/isa/tile.hpp"

namespace rankone::recurrence::cpu::RANKONE_ISA {
namespace {

// Zero behind the last channel, where a factor has no meaning.
inline Vec keep(Whole, Vec value) { return value; }
inline Vec keep(Part access, Vec value) {
  IntVec lane{};
  for (int i = 0; i < kLanes; ++i) lane[i] = i;
  return select(lane < access.count, value, Vec{});
}

// Several vectors that take every step together: a chain of thirty operations leaves the units idle
// where the processor sees no further than a few vectors ahead.
template <int N>
struct Pack {
  Vec v[N];
};
template <int N>
constexpr Int<N> size_of(const Pack<N>& /*like*/) {
  return {};
}
template <int N, class Operation>
RANKONE_INLINE Pack<N> each_of(const Pack<N>& a, const Operation operation) {
  Pack<N> result;
  for (int i = 0; i < N; ++i) result.v[i] = operation(a.v[i]);
  return result;
}
template <int N, class Operation>
RANKONE_INLINE Pack<N> each_of(const Pack<N>& a, const Pack<N>& b, const Operation operation) {
  Pack<N> result;
  for (int i = 0; i < N; ++i) result.v[i] = operation(a.v[i], b.v[i]);
  return result;
}
template <int N>
RANKONE_INLINE Pack<N> operator*(const Pack<N>& a, const Pack<N>& b) {
  return each_of(a, b, [](Vec x, Vec y) { return x * y; });
}
// a * b + c
template <int N>
RANKONE_INLINE Pack<N> multiply_add(const Pack<N>& a, const Pack<N>& b, Vec c) {
  return each_of(a, b, [c](Vec x, Vec y) { return x * y + c; });
}
template <int N>
RANKONE_INLINE Pack<N> multiply_add(const Pack<N>& a, const Pack<N>& b, const Pack<N>& c) {
  Pack<N> result;
  for (int i = 0; i < N; ++i) result.v[i] = a.v[i] * b.v[i] + c.v[i];
  return result;
}

#if defined(__AVX512F__)
// The forms with a mask of all lanes: GCC 12 warns of the others' undefined operand.
constexpr __mmask16 kAll = 0xffff;
#endif

// log(x) - center for x > 0 in two steps, in units of 1 / kUnit; absolute error at most
// 1.5e-7 (1 + |log x|): the factor, which is x^(-r / (1 + |r|)), does not see more.
class ShiftedLog {
 public:
#if defined(__AVX512F__)
  static constexpr float kUnit = 1.44269504F;  // binary logarithms: exponents come as they are
  template <int N>
  struct Parts {
    Pack<N> mantissa, exponent;
  };

  // x = 2^n m with m in [1, 2); a sixteenth of that interval has its middle c and log m =
  // log c + log(1 + r), |r| = |m / c - 1| < 1/32.
  explicit ShiftedLog(float center) {
    constexpr float kLogs[kLanes] = {0.0443941194F, 0.129283017F, 0.209453366F, 0.285402219F,
                                     0.357552005F,  0.426264755F, 0.491853096F, 0.554588852F,
                                     0.614709844F,  0.672425342F, 0.727920455F, 0.781359714F,
                                     0.832890014F,  0.882643049F, 0.930737338F, 0.977279923F};
    for (int i = 0; i < kLanes; ++i) {
      inverse_[i] = 1.0F / (1.0F + (static_cast<float>(i) + 0.5F) / static_cast<float>(kLanes));
      shifted_[i] = kLogs[i];
    }
    shifted_ -= splat(kUnit * center);
  }
  template <int N>
  RANKONE_INLINE Parts<N> split(const Pack<N>& x) const {
    return {each_of(x,
                    [](Vec value) {
                      return Vec(_mm512_maskz_getmant_ps(kAll, value, _MM_MANT_NORM_1_2,
                                                         _MM_MANT_SIGN_nan));
                    }),
            each_of(x, [](Vec value) { return Vec(_mm512_maskz_getexp_ps(kAll, value)); })};
  }
  template <int N>
  RANKONE_INLINE Pack<N> join(const Parts<N>& x) const {
    // The low four bits of an index count.
    const auto entry = [](Vec mantissa, Vec table) {
      const __m512i at = _mm512_maskz_srli_epi32(kAll, _mm512_castps_si512(mantissa), 19);
      return Vec(_mm512_maskz_permutexvar_ps(kAll, at, table));
    };
    const Pack<N> r =
        each_of(x.mantissa, [&](Vec m) { return m * entry(m, inverse_) - splat(1.0F); });
    const Pack<N> base =
        each_of(x.exponent, x.mantissa, [&](Vec n, Vec m) { return n + entry(m, shifted_); });
    // log(1 + r) on |r| < 1/32 within 3.7e-8 |r|.
    const Pack<N> p = each_of(r, [](Vec y) {
      return splat(kUnit * 3.335931443e-1F) * y + splat(kUnit * -5.001902330e-1F);
    });
    return multiply_add(multiply_add(p, r, splat(kUnit * 9.999999302e-1F)), r, base);
  }

 private:
  Vec inverse_{}, shifted_{};
#else
  static constexpr float kUnit = 1.0F;
  template <int N>
  using Parts = Pack<N>;

  explicit ShiftedLog(float center) : center_(splat(center)) {}
  template <int N>
  RANKONE_INLINE Parts<N> split(const Pack<N>& x) const {
    return x;
  }
  template <int N>
  RANKONE_INLINE Pack<N> join(const Parts<N>& x) const {
    return each_of(x, [this](Vec value) { return vlog(value) - center_; });
  }

 private:
  Vec center_;
#endif
};

// 1 + |r| in the units of the logarithm.
template <int N>
RANKONE_INLINE Pack<N> range_of(const Pack<N>& r) {
  return each_of(r, [](Vec x) {
    return splat(ShiftedLog::kUnit) +
           reinterpret_cast<Vec>(reinterpret_cast<IntVec>(x) & 0x7fffffff);
  });
}

// e^y target for y = rate s, |y| <= kSmall, within 1.2 ulp.
inline constexpr float kSmall = 0.5F;
class SmallExp {
 public:
  explicit SmallExp(float rate) {
    const float terms[kTerms] = {1.000000332e+00F, 5.000001219e-01F, 1.666558740e-01F,
                                 4.166431418e-02F, 8.420179790e-03F, 1.402565564e-03F};
    float power = rate;
    for (int i = 0; i < kTerms; ++i, power *= rate) terms_[i] = splat(terms[i] * power);
  }
  template <int N>
  RANKONE_INLINE Pack<N> times(const Pack<N>& s, const Pack<N>& target) const {
    Pack<N> p = each_of(s, [this](Vec x) { return x * terms_[kTerms - 1] + terms_[kTerms - 2]; });
    for (int i = kTerms - 3; i >= 0; --i) p = multiply_add(p, s, terms_[i]);
    return multiply_add(s * target, p, target);
  }

 private:
  static constexpr int kTerms = 6;
  Vec terms_[kTerms];
};

class AnyExp {
 public:
  explicit AnyExp(float rate) : rate_(splat(rate)) {}
  template <int N>
  RANKONE_INLINE Pack<N> times(const Pack<N>& s, const Pack<N>& target) const {
    return each_of(s, target, [this](Vec x, Vec y) { return vexp(rate_ * x) * y; });
  }

 private:
  Vec rate_;
};

template <int N>
struct Factor {
  Pack<N> value;
  Pack<N> d_state;
  Pack<N> d_parameter;
};

// r = log(A + eps) - center, factor = x^(-r / (1 + |r|)), in three steps.
template <class Exp>
class Atk {
 public:
  explicit Atk(const PreconditionScan& s)
      : log_(s.center),
        exp_(-s.log_x),
        eps_(splat(s.eps)),
        rate_(splat(-s.log_x * ShiftedLog::kUnit * ShiftedLog::kUnit)) {}
  template <int N>
  RANKONE_INLINE auto begin(const Pack<N>& state) const {
    return log_.split(shifted(state));
  }
  template <class Parts>
  RANKONE_INLINE auto middle(const Parts& parts) const {
    return log_.join(parts);
  }
  template <int N>
  RANKONE_INLINE Pack<N> end(const Pack<N>& r, const Pack<N>& target,
                             const float* /*ridge*/) const {
    // The divider works while the multipliers, which a reciprocal by Newton's steps would load
    // further, do the rest.
    return exp_.times(each_of(r, range_of(r), [](Vec x, Vec y) { return x / y; }), target);
  }
  template <int N>
  RANKONE_INLINE Factor<N> derivative(const Pack<N>& state, const float* /*ridge*/) const {
    const Pack<N> x = shifted(state);
    const Pack<N> r = log_.join(log_.split(x));
    const Pack<N> range = range_of(r);
    // 1 / x and 1 / range from one division.
    const Pack<N> both = each_of(x, range, [](Vec a, Vec b) { return splat(1.0F) / (a * b); });
    const Pack<N> inverse = both * x;
    Factor<N> result;
    result.value = exp_.times(r * inverse, each_of(x, [](Vec) { return splat(1.0F); }));
    const Pack<N> d_r = each_of(result.value, inverse,
                                [this](Vec value, Vec y) { return (rate_ * value) * (y * y); });
    result.d_state = d_r * (both * range);
    result.d_parameter = each_of(d_r, [](Vec d) { return -d; });
    return result;
  }

 private:
  template <int N>
  RANKONE_INLINE Pack<N> shifted(const Pack<N>& state) const {
    return each_of(state, [this](Vec a) { return a + eps_; });
  }

  ShiftedLog log_;
  Exp exp_;
  Vec eps_, rate_;  // the rate of d_r: a derivative by r / (1 + |r|) brings 1 / (1 + |r|)^2
};

// factor = 1 / (A + ridge).
struct Atq {
  explicit Atq(const PreconditionScan& /*s*/) {}
  template <int N>
  RANKONE_INLINE Pack<N> begin(const Pack<N>& state) const {
    return state;
  }
  template <int N>
  RANKONE_INLINE Pack<N> middle(const Pack<N>& state) const {
    return state;
  }
  template <int N>
  RANKONE_INLINE Pack<N> end(const Pack<N>& state, const Pack<N>& target,
                             const float* ridge) const {
    Pack<N> result;
    for (int i = 0; i < N; ++i) result.v[i] = target.v[i] / (state.v[i] + load(ridge + i * kLanes));
    return result;
  }
  template <int N>
  RANKONE_INLINE Factor<N> derivative(const Pack<N>& state, const float* ridge) const {
    Factor<N> result;
    for (int i = 0; i < N; ++i) {
      const Vec value = splat(1.0F) / (state.v[i] + load(ridge + i * kLanes));
      result.value.v[i] = value;
      result.d_state.v[i] = result.d_parameter.v[i] = -value * value;
    }
    return result;
  }
};

template <class Call>
RANKONE_INLINE void with_factor(const PreconditionScan& s, Call&& call) {
  if (!s.atk) {
    call(Atq(s));
  } else if (s.log_x <= kSmall) {
    call(Atk<SmallExp>(s));
  } else {
    call(Atk<AnyExp>(s));
  }
}

// decay = exp(g) and gain = b; of normalised keys the gain is b / |k|^2: the key enters A as k^2
// alone.
void gates(const PreconditionScan& s) {
  const int covered = round_up(s.n, kLanes);
  for (int t = 0; t < covered; ++t) {
    s.decay[t] = t < s.n && s.g != nullptr ? s.g[t * s.gate_row] : 0.0F;
    s.gain[t] = t < s.n && s.b != nullptr ? s.b[t * s.gate_row] : 1.0F;
  }
  for (int t = 0; t < covered; t += kLanes) store(s.decay + t, vexp(load(s.decay + t)));
  if (s.inverse_square == nullptr) return;
  for (int t = 0; t < covered; ++t) {
    const float* k = s.k + t * s.k_row;
    s.inverse_square[t] = t < s.n ? dot(k, k, s.channels) : 1.0F;
  }
  for (int t = 0; t < covered; t += kLanes) {
    const Vec inverse = splat(1.0F) / (load(s.inverse_square + t) + splat(1e-6F));
    store(s.inverse_square + t, inverse);
    store(s.gain + t, load(s.gain + t) * inverse);
  }
}

// Vectors of channels that go through the rows together, their states in registers.
#if defined(__AVX512F__)
inline constexpr int kStates = 4;
#else
inline constexpr int kStates = 2;
#endif

// Calls each(pack, access, c) for the vectors of one row from channel c on; of the pack only its
// size counts.
template <class Each>
RANKONE_INLINE void over_channels(int channels, Each&& each) {
  int c = 0;
  for (; c + kStates * kLanes <= channels; c += kStates * kLanes) {
    each(Pack<kStates>{}, Whole{}, c);
  }
  for (; c + kLanes <= channels; c += kLanes) each(Pack<1>{}, Whole{}, c);
  if (c < channels) each(Pack<1>{}, Part{channels - c}, c);
}

// total + sum over i of a_i b_i
template <int N>
RANKONE_INLINE Vec add_terms(const Pack<N>& a, const Pack<N>& b, Vec total) {
  for (int i = 0; i < N; ++i) total = a.v[i] * b.v[i] + total;
  return total;
}

template <int N, class Access>
RANKONE_INLINE Pack<N> get(const Access access, const float* from, const Pack<N>& /*like*/) {
  Pack<N> result;
  for (int i = 0; i < N; ++i) result.v[i] = access.get(from + i * kLanes);
  return result;
}
template <int N, class Access>
RANKONE_INLINE void put(const Access access, float* to, const Pack<N>& values) {
  for (int i = 0; i < N; ++i) access.put(to + i * kLanes, values.v[i]);
}

// A behind the next row, of N vectors in registers; rows are taken in order.
template <int N, class Access>
class RunningState {
 public:
  RANKONE_INLINE RunningState(const PreconditionScan& s, Access access, int first)
      : access_(access), k_(s.k + first), k_row_(s.k_row), decays_(s.decay), gains_(s.gain) {
    for (int i = 0; i < N; ++i) state_.v[i] = load(s.state + first + i * kLanes);
  }
  RANKONE_INLINE const Pack<N>& now() const { return state_; }
  RANKONE_INLINE const Pack<N>& next(int t) {
    const Vec decay = splat(decays_[t]), gain = splat(gains_[t]);
    for (int i = 0; i < N; ++i) {
      const Vec key = access_.get(k_ + i * kLanes);
      state_.v[i] = decay * state_.v[i] + (gain * key) * key;
    }
    k_ += k_row_;
    return state_;
  }

 private:
  Pack<N> state_;
  Access access_;
  const float* k_;
  Index k_row_;
  const float *decays_, *gains_;
};

// All rows of N vectors from channel c on. Three of them are on the way at once: a row is a chain
// of some eighty cycles, and the processor does not see far enough to begin the next by itself.
template <int N, bool kCopies, class Access, class AnyFactor>
RANKONE_INLINE void make_rows(const PreconditionScan& s, const AnyFactor factor, Access access,
                              int c) {
  RunningState<N, Access> state(s, access, c);
  const float *target = s.target + c, *ridge = s.ridge + c;
  float *out = s.out + c, *copy = kCopies ? s.copy + c : nullptr;
  const Index target_row = s.target_row, out_row = s.out_row, copy_row = s.copy_row;
  const int rows = s.n;
  auto begun = factor.begin(state.next(0));
  if (rows > 1) {
    auto middle = factor.middle(begun);
    begun = factor.begin(state.next(1));
    for (int t = 2; t < rows; ++t, target += target_row, out += out_row) {
      const auto begun_next = factor.begin(state.next(t));
      const auto middle_next = factor.middle(begun);
      put(access, out, factor.end(middle, get(access, target, middle), ridge));
      if constexpr (kCopies) {
        put(access, copy, get(access, target, middle));
        copy += (t - 1) % kBlock == 0 ? (kBlock + 1) * copy_row : copy_row;
      }
      begun = begun_next;
      middle = middle_next;
    }
    put(access, out, factor.end(middle, get(access, target, middle), ridge));
    if constexpr (kCopies) {
      put(access, copy, get(access, target, middle));
      copy += (rows - 1) % kBlock == 0 ? (kBlock + 1) * copy_row : copy_row;
    }
    target += target_row;
    out += out_row;
  }
  const auto middle = factor.middle(begun);
  put(access, out, factor.end(middle, get(access, target, middle), ridge));
  if constexpr (kCopies) put(access, copy, get(access, target, middle));
  put(Whole{}, s.state + c, state.now());
}

// Not inline: what several loops keep in registers would leave none of them enough.
template <bool kCopies, class AnyFactor>
__attribute__((noinline)) void make_all(const PreconditionScan& s, const AnyFactor factor) {
  over_channels(
      s.channels, [&](const auto& like, auto access, int c) __attribute__((always_inline)) {
        make_rows<decltype(size_of(like))::kValue, kCopies>(s, factor, access, c);
      });
}

// The state behind all rows; to(t, A) before each.
template <int N, class Access, class To>
RANKONE_INLINE void run_states(const PreconditionScan& s, Access access, int c, const To to) {
  RunningState<N, Access> state(s, access, c);
  const int rows = s.n;
  for (int t = 0; t < rows; ++t) {
    to(t, state.now());
    state.next(t);
  }
  to(rows, state.now());
  put(Whole{}, s.state + c, state.now());
}

// Row t of the way back: the gradient of A behind it becomes that of A before it.
template <class AnyFactor>
RANKONE_INLINE void row_back(const PreconditionScanBack& b, const AnyFactor& factor, int t) {
  const PreconditionScan& s = b.scan;
  const float *k = s.k + t * s.k_row, *target = s.target + t * s.target_row;
  const float* before = b.history + t * b.history_row;
  const float* after = before + b.history_row;
  const float* d_out = b.d_out + t * b.d_out_row;
  float *d_target = b.d_target + t * b.d_target_row, *d_k = b.d_k + t * b.d_k_row;
  const float* other = b.other != nullptr ? b.other + t * b.other_row : nullptr;
  // To the gradient through the product or, where that has it already, to that through the state.
  const float *early = b.joined ? other : nullptr, *late = b.joined ? d_k : other;
  float *d_states = b.d_state, *d_parameters = b.d_parameter;
  const float* ridge = s.ridge;
  // Rows of one head are far apart, and nothing else fetches them early.
  constexpr int kEarly = 4;
  for (int c = 0; c < s.channels && t >= kEarly; c += kLine) {
    __builtin_prefetch(d_out - kEarly * b.d_out_row + c);
    __builtin_prefetch(d_target - kEarly * b.d_target_row + c, 1);
    __builtin_prefetch(d_k - kEarly * b.d_k_row + c, 1);
  }
  Vec gain_terms{}, decay_terms{};
  over_channels(s.channels, [&](const auto& like, auto access, int c) {
    const auto at = factor.derivative(get(Whole{}, after + c, like), ridge + c);
    const auto d = get(access, d_out + c, like);
    if (early == nullptr) {
      put(access, d_target + c, d * at.value);
    } else {
      put(access, d_target + c, multiply_add(d, at.value, get(access, early + c, like)));
    }
    const auto through = d * get(access, target + c, like);
    put(Whole{}, d_parameters + c,
        multiply_add(through, at.d_parameter, get(Whole{}, d_parameters + c, like)));
    const auto d_state =
        each_of(multiply_add(through, at.d_state, get(Whole{}, d_states + c, like)),
                [&](Vec value) { return keep(access, value); });
    put(Whole{}, d_states + c, d_state);
    const auto key = get(access, k + c, like);
    gain_terms = add_terms(d_state, key * key, gain_terms);
    decay_terms = add_terms(d_state, get(Whole{}, before + c, like), decay_terms);
  });
  const bool normalised = s.inverse_square != nullptr;
  const float d_gain = sum(gain_terms) * (normalised ? s.inverse_square[t] : 1.0F);
  b.d_gain[t] = d_gain;
  b.d_decay[t] = s.decay[t] * sum(decay_terms);
  // Through the norm: b k / |k|^2 (dA - sum(dA k^2) / |k|^2), twice.
  const Vec along = splat(normalised ? d_gain : 0.0F);
  const Vec decay = splat(s.decay[t]), twice = splat(2.0F * s.gain[t]);
  over_channels(s.channels, [&](const auto& like, auto access, int c) {
    const auto d_state = get(Whole{}, d_states + c, like);
    const auto of_key = each_of(get(access, k + c, like), d_state,
                                [&](Vec key, Vec d) { return twice * key * (d - along); });
    if (late == nullptr) {
      put(access, d_k + c, of_key);
    } else {
      put(access, d_k + c,
          each_of(of_key, get(access, late + c, like), [](Vec x, Vec y) { return x + y; }));
    }
    put(Whole{}, d_states + c, each_of(d_state, [&](Vec d) { return decay * d; }));
  });
}

}  // namespace

void precondition(const PreconditionScan& s) {
  gates(s);
  if (s.out == nullptr) {
    over_channels(s.channels, [&](const auto& like, auto access, int c) {
      run_states<decltype(size_of(like))::kValue>(s, access, c, [](int, const auto&) {});
    });
    return;
  }
  with_factor(s, [&](const auto factor) {
    if (s.copy == nullptr) {
      make_all<false>(s, factor);
    } else {
      make_all<true>(s, factor);
    }
  });
}

void precondition_back(const PreconditionScanBack& b) {
  const PreconditionScan& s = b.scan;
  gates(s);
  over_channels(s.channels, [&](const auto& like, auto access, int c) {
    float* const history = b.history + c;
    const Index row = b.history_row;
    run_states<decltype(size_of(like))::kValue>(
        s, access, c, [=](int t, const auto& state) { put(Whole{}, history + t * row, state); });
  });
  with_factor(s, [&](const auto factor) {
    for (int t = s.n - 1; t >= 0; --t) row_back(b, factor, t);
  });
}

}  // namespace rankone::recurrence::cpu::RANKONE_ISA
