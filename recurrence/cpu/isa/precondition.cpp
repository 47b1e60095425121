// The diagonal preconditioner, one lane a channel: A = exp(g) A + b k^2, out = factor(A) target.
//
// Rows are taken one by one, so that memory is read in its order: only A depends on the row before,
// and the processor overlaps the factors of many rows.

#include "recurrence/cpu/isa/tile.hpp"

namespace rankone::recurrence::cpu::RANKONE_ISA {
namespace {

struct Whole {
  Vec get(const float* from) const { return load(from); }
  void put(float* to, Vec value) const { store(to, value); }
  Vec keep(Vec value) const { return value; }
};

struct Part {
  int count;
  Vec get(const float* from) const { return load_part(from, count); }
  void put(float* to, Vec value) const { store_part(to, value, count); }
  // Zero behind the last channel, where a factor has no meaning.
  Vec keep(Vec value) const {
    IntVec lane{};
    for (int i = 0; i < kLanes; ++i) lane[i] = i;
    return select(lane < count, value, Vec{});
  }
};

// Calls each(Access, c) for the vectors of one row.
template <class Each>
RANKONE_INLINE void over_channels(int channels, Each&& each) {
  int c = 0;
  for (; c + kLanes <= channels; c += kLanes) each(Whole{}, c);
  if (c < channels) each(Part{channels - c}, c);
}

Vec magnitude(Vec x) { return reinterpret_cast<Vec>(reinterpret_cast<IntVec>(x) & 0x7fffffff); }

#if defined(__AVX512F__)
// The forms with a mask of all lanes: GCC 12 warns of the others' undefined operand.
constexpr __mmask16 kAll = 0xffff;
#endif

// 1 / x for x in [1, 2^100]: at most 1 ulp from exact. Infinite x gives NaN.
inline Vec reciprocal(Vec x) {
#if defined(__AVX512F__)
  const Vec y =
      _mm512_maskz_rcp14_ps(kAll, x);  // within 2^-14, so within 2^-28 after one step of Newton's
  return y * (splat(1.0F) - x * y) + y;
#else
  return splat(1.0F) / x;
#endif
}

// log(x) - center for x > 0, absolute error at most 1.5e-7 (1 + |log x|): the factor, which is
// x^(-r / (1 + |r|)), does not see more.
class ShiftedLog {
 public:
#if defined(__AVX512F__)
  explicit ShiftedLog(float center) {
    // x = 2^n m with m in [1, 2); a sixteenth of that interval has its middle c and log m =
    // log c + log(1 + r), |r| = |m / c - 1| < 1/32.
    for (int i = 0; i < kLanes; ++i) {
      inverse_[i] = 1.0F / (1.0F + (static_cast<float>(i) + 0.5F) / static_cast<float>(kLanes));
    }
    shifted_ = -vlog(inverse_) - splat(center);
  }
  Vec operator()(Vec x) const {
    const Vec m = _mm512_maskz_getmant_ps(kAll, x, _MM_MANT_NORM_1_2, _MM_MANT_SIGN_nan);
    const __m512i interval =
        _mm512_maskz_srli_epi32(kAll, _mm512_castps_si512(m), 19);  // its low four bits
    const Vec r = m * Vec(_mm512_maskz_permutexvar_ps(kAll, interval, inverse_)) - splat(1.0F);
    const Vec base = Vec(_mm512_maskz_getexp_ps(kAll, x)) * splat(0.693147181F) +
                     Vec(_mm512_maskz_permutexvar_ps(kAll, interval, shifted_));
    // log(1 + r) on |r| < 1/32 within 3.7e-8 |r|.
    return ((splat(3.335931443e-1F) * r + splat(-5.001902330e-1F)) * r + splat(9.999999302e-1F)) *
               r +
           base;
  }

 private:
  Vec inverse_{}, shifted_{};
#else
  explicit ShiftedLog(float center) : center_(splat(center)) {}
  Vec operator()(Vec x) const { return vlog(x) - center_; }

 private:
  Vec center_;
#endif
};

// e^y target for |y| <= kSmall, within 1.2 ulp; the exponential of y = rate s.
inline constexpr float kSmall = 0.5F;
class SmallExp {
 public:
  explicit SmallExp(float rate) {
    const float terms[kTerms] = {1.000000332e+00F, 5.000001219e-01F, 1.666558740e-01F,
                                 4.166431418e-02F, 8.420179790e-03F, 1.402565564e-03F};
    float power = rate;
    for (int i = 0; i < kTerms; ++i, power *= rate) terms_[i] = splat(terms[i] * power);
  }
  Vec times(Vec s, Vec target) const {
    Vec p = terms_[kTerms - 1];
    for (int i = kTerms - 2; i >= 0; --i) p = p * s + terms_[i];
    return (s * target) * p + target;
  }

 private:
  static constexpr int kTerms = 6;
  Vec terms_[kTerms];
};

class AnyExp {
 public:
  explicit AnyExp(float rate) : rate_(splat(rate)) {}
  Vec times(Vec s, Vec target) const { return vexp(rate_ * s) * target; }

 private:
  Vec rate_;
};

struct Factor {
  Vec value;
  Vec d_state;
  Vec d_parameter;
};

// r = log(A + eps) - center, factor = x^(-r / (1 + |r|)).
template <class Exp>
class Atk {
 public:
  explicit Atk(const PreconditionScan& s)
      : log_(s.center), exp_(-s.log_x), eps_(splat(s.eps)), rate_(splat(-s.log_x)) {}
  Vec apply(Vec state, Vec target, Vec /*ridge*/) const {
    const Vec r = log_(state + eps_);
    return exp_.times(r * reciprocal(splat(1.0F) + magnitude(r)), target);
  }
  Factor derivative(Vec state, Vec /*ridge*/) const {
    const Vec shifted = state + eps_;
    const Vec r = log_(shifted);
    const Vec inverse = reciprocal(splat(1.0F) + magnitude(r));
    const Vec value = exp_.times(r * inverse, splat(1.0F));
    const Vec d_r = rate_ * value * (inverse * inverse);
    return {value, d_r / shifted, -d_r};
  }

 private:
  ShiftedLog log_;
  Exp exp_;
  Vec eps_, rate_;
};

// factor = 1 / (A + ridge).
struct Atq {
  explicit Atq(const PreconditionScan& /*s*/) {}
  Vec apply(Vec state, Vec target, Vec ridge) const { return target / (state + ridge); }
  Factor derivative(Vec state, Vec ridge) const {
    const Vec value = splat(1.0F) / (state + ridge);
    return {value, -value * value, -value * value};
  }
};

template <class Call>
RANKONE_INLINE void with_factor(const PreconditionScan& s, Call&& call) {
  if (s.ridge != nullptr) {
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

// Calls each(access, t, c, before, A): A behind row t and before it, for every vector of channels.
template <class Each>
RANKONE_INLINE void scan(const PreconditionScan& s, Each&& each) {
  for (int t = 0; t < s.n; ++t) {
    const float* k = s.k + t * s.k_row;
    const Vec decay = splat(s.decay[t]), gain = splat(s.gain[t]);
    over_channels(s.channels, [&](auto access, int c) {
      const Vec key = access.get(k + c);
      const Vec before = load(s.state + c);
      const Vec state = decay * before + (gain * key) * key;
      store(s.state + c, state);
      each(access, t, c, before, state);
    });
  }
}

// Row t of the way back: the gradient of A behind it becomes that of A before it.
template <class AnyFactor>
RANKONE_INLINE void row_back(const PreconditionScanBack& b, const AnyFactor& factor, int t) {
  const PreconditionScan& s = b.scan;
  const float* k = s.k + t * s.k_row;
  const float* before = b.history + t * b.history_row;
  const float* after = before + b.history_row;
  Vec gain_terms{}, decay_terms{};
  over_channels(s.channels, [&](auto access, int c) {
    const Vec d_out = access.get(b.d_out + t * b.d_out_row + c);
    const Vec key = access.get(k + c);
    const Vec ridge = s.ridge == nullptr ? Vec{} : load(s.ridge + c);
    const Factor at = factor.derivative(load(after + c), ridge);
    const Vec through = d_out * access.get(s.target + t * s.target_row + c);
    access.put(b.d_target + t * b.d_target_row + c, d_out * at.value);
    store(b.d_parameter + c, load(b.d_parameter + c) + through * at.d_parameter);
    const Vec d_state = access.keep(load(b.d_state + c) + through * at.d_state);
    store(b.d_state + c, d_state);
    gain_terms += d_state * (key * key);
    decay_terms += d_state * load(before + c);
  });
  const bool normalised = s.inverse_square != nullptr;
  const float d_gain = sum(gain_terms) * (normalised ? s.inverse_square[t] : 1.0F);
  b.d_gain[t] = d_gain;
  b.d_decay[t] = s.decay[t] * sum(decay_terms);
  // Through the norm: b k / |k|^2 (dA - sum(dA k^2) / |k|^2), twice.
  const Vec along = splat(normalised ? d_gain : 0.0F);
  const Vec decay = splat(s.decay[t]), twice = splat(2.0F * s.gain[t]);
  over_channels(s.channels, [&](auto access, int c) {
    const Vec d_state = load(b.d_state + c);
    access.put(b.d_k + t * b.d_k_row + c, twice * access.get(k + c) * (d_state - along));
    store(b.d_state + c, decay * d_state);
  });
}

}  // namespace

void precondition(const PreconditionScan& s) {
  gates(s);
  if (s.out == nullptr) return scan(s, [](auto, int, int, Vec, Vec) {});
  with_factor(s, [&](const auto factor) {
    scan(s, [&](auto access, int t, int c, Vec, Vec state) {
      const Vec target = access.get(s.target + t * s.target_row + c);
      const Vec ridge = s.ridge == nullptr ? Vec{} : load(s.ridge + c);
      access.put(s.out + t * s.out_row + c, factor.apply(state, target, ridge));
    });
  });
}

void precondition_back(const PreconditionScanBack& b) {
  const PreconditionScan& s = b.scan;
  gates(s);
  scan(s, [&](auto, int t, int c, Vec before, Vec state) {
    float* row = b.history + t * b.history_row + c;
    store(row, before);
    if (t == s.n - 1) store(row + b.history_row, state);
  });
  with_factor(s, [&](const auto factor) {
    for (int t = s.n - 1; t >= 0; --t) row_back(b, factor, t);
  });
}

}  // namespace rankone::recurrence::cpu::RANKONE_ISA
