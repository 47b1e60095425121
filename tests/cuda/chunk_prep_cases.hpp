#pragma once

// Inputs for the preparation kernels and the comparison of a record with float64 loops over the
// definitions of chunk.hpp. Used by the tests on the emulation and by the timing on a GPU.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "recurrence/cuda/chunk.hpp"

namespace rankone::test {

namespace kernels = recurrence::cuda;

enum class PrepGates { none, weak, strong, mixed, heavy, jump, lost };
enum class PrepKeys { independent, correlated };
enum class PrepGains { none, uniform, two, zeros };

struct PrepCase {
  Dtype format = Dtype::bf16;
  int d_k = 64;
  int heads = 1, value_heads = 1;
  kernels::GateKind kind = kernels::GateKind::none;
  PrepGates gates = PrepGates::none;
  bool wide_gates = true;  // float, else the format
  bool delta = true, same_key = true;
  bool lean = false;
  PrepKeys keys = PrepKeys::independent;
  PrepGains gains = PrepGains::uniform;
  std::vector<std::int64_t> lengths = {64};  // of the sequences; packed unless all are equal
  float scale = 0.25F;
  unsigned seed = 1;
};

struct PrepData {
  PrepCase c;
  std::vector<std::int64_t> boundaries, chunk_boundaries;
  bool packed = false;
  std::int64_t rows = 0, chunks = 0;
  std::vector<std::uint16_t> q, e, w;
  std::vector<unsigned char> g, b;

  // A call on copies of these arrays; of the host's own where `at` is the identity.
  template <class At>
  kernels::ChunkCall call(At&& at) {
    kernels::ChunkCall out;
    kernels::TwoKeyCall& call = out.call;
    call.rows.sequences = static_cast<std::int64_t>(c.lengths.size());
    call.rows.count = rows;
    call.rows.time = c.lengths[0];
    if (packed) {
      call.rows.boundaries = at(boundaries);
      call.rows.chunk_boundaries = at(chunk_boundaries);
    }
    call.rows.chunks = chunks;
    call.heads = c.heads;
    call.value_heads = c.value_heads;
    call.d_k = c.d_k;
    call.d_v = 64;
    call.scale = c.scale;
    call.format = c.format;
    call.gate = c.kind;
    call.delta = c.delta;
    call.same_key = c.same_key;
    call.q = at(q);
    call.w = at(w);
    call.e = !c.delta ? nullptr : c.same_key ? call.w : at(e);
    const Dtype gate = c.wide_gates ? Dtype::f32 : c.format;
    call.g = {g.empty() ? nullptr : at(g), gate};
    call.b = {b.empty() ? nullptr : at(b), gate};
    out.layout = layout();
    return out;
  }
  kernels::RecordLayout layout() const { return {c.d_k, c.kind, c.delta, c.lean}; }
  std::size_t record_bytes() const {
    return static_cast<std::size_t>(layout().bytes * chunks * c.value_heads);
  }

  double value(std::uint16_t bits) const {
    return c.format == Dtype::bf16 ? to_float(bf16{bits}) : to_float(f16{bits});
  }
  std::uint16_t narrow(double value) const {
    const auto single = static_cast<float>(value);
    return c.format == Dtype::bf16 ? to_bf16(single).bits : to_f16(single).bits;
  }
  double gate_value(const std::vector<unsigned char>& gate, std::size_t i) const {
    if (c.wide_gates) {
      float out;
      std::memcpy(&out, gate.data() + 4 * i, 4);
      return out;
    }
    std::uint16_t out;
    std::memcpy(&out, gate.data() + 2 * i, 2);
    return value(out);
  }
};

class PrepMaker {
 public:
  explicit PrepMaker(const PrepCase& c) : random_(c.seed) { data_.c = c; }

  PrepData make() {
    const PrepCase& c = data_.c;
    data_.boundaries = {0};
    data_.chunk_boundaries = {0};
    for (const std::int64_t length : c.lengths) {
      data_.packed = data_.packed || length != c.lengths[0];
      data_.boundaries.push_back(data_.boundaries.back() + length);
      data_.chunk_boundaries.push_back(data_.chunk_boundaries.back() + (length + 63) / 64);
    }
    data_.rows = data_.boundaries.back();
    data_.chunks = data_.chunk_boundaries.back();
    data_.q = keys(PrepKeys::independent);
    data_.w = keys(c.keys);
    if (c.delta && !c.same_key) {  // the write key with another length for each channel
      data_.e = data_.w;
      for (auto& x : data_.e) x = data_.narrow(data_.value(x) * (0.7 + 0.6 * uniform()));
    }
    if (c.kind != kernels::GateKind::none) {
      const int channels = c.kind == kernels::GateKind::channel ? c.d_k : 1;
      for (const std::int64_t length : c.lengths) {
        for (std::int64_t i = 0; i < length * c.value_heads * channels; ++i) {
          put(data_.g, gate(i / c.value_heads / channels));
        }
      }
    }
    if (c.gains != PrepGains::none) {
      for (std::int64_t i = 0; i < data_.rows * c.value_heads; ++i) put(data_.b, gain());
    }
    return std::move(data_);
  }

 private:
  double normal() { return normal_(random_); }
  double uniform() { return std::uniform_real_distribution<>(0, 1)(random_); }

  void put(std::vector<unsigned char>& to, double value) {
    const auto single = static_cast<float>(value);
    const std::uint16_t half = data_.narrow(value);
    const auto* from = data_.c.wide_gates ? reinterpret_cast<const unsigned char*>(&single)
                                          : reinterpret_cast<const unsigned char*>(&half);
    to.insert(to.end(), from, from + (data_.c.wide_gates ? 4 : 2));
  }
  std::vector<std::uint16_t> keys(PrepKeys kind) {
    const auto d_k = static_cast<std::size_t>(data_.c.d_k);
    std::vector<double> common(d_k), key(d_k);
    for (double& x : common) x = normal();
    std::vector<std::uint16_t> out;
    for (std::int64_t i = 0; i < data_.rows * data_.c.heads; ++i) {
      double square = 0;
      for (std::size_t d = 0; d < d_k; ++d) {
        key[d] = kind == PrepKeys::correlated ? common[d] + 0.1 * normal() : normal();
        square += key[d] * key[d];
      }
      for (const double x : key) out.push_back(data_.narrow(x / std::sqrt(square)));
    }
    return out;
  }
  double gate(std::int64_t row) {
    const double weak = -std::log1p(std::exp(-normal())) / 16;
    switch (data_.c.gates) {
      case PrepGates::none:
        return 0;
      case PrepGates::weak:
        return weak;
      case PrepGates::strong:
        return -30;
      case PrepGates::mixed:
        return uniform() < 0.5 ? -30 : -0.01;
      case PrepGates::heavy:
        return std::max(-2661.0, -std::exp(-2 + 3 * normal()));
      case PrepGates::jump:
        return row % 64 == 0 ? 176 : weak;
      case PrepGates::lost:
        return row % 5 == 3 ? (data_.c.wide_gates ? -1e30 : -6e4) : weak;
    }
    return 0;
  }
  double gain() {
    switch (data_.c.gains) {
      case PrepGains::none:
        return 1;
      case PrepGains::uniform:
        return uniform();
      case PrepGains::two:
        return 2;
      case PrepGains::zeros:
        return uniform() < 0.3 ? 0 : uniform();
    }
    return 1;
  }

  std::mt19937 random_;
  std::normal_distribution<> normal_;
  PrepData data_;
};

// The worst ratio of an error to what it may be, by field of the record; above 1 is a failure.
struct PrepErrors {
  double y = 0, p = 0, decays = 0, scaled = 0;
  double y_rms = 0, p_rms = 0;  // relative to the RMS of the tile
  double worst() const { return std::max({y, p, decays, scaled}); }
  void merge(const PrepErrors& other) {
    y = std::max(y, other.y);
    p = std::max(p, other.p);
    decays = std::max(decays, other.decays);
    scaled = std::max(scaled, other.scaled);
    y_rms = std::max(y_rms, other.y_rms);
    p_rms = std::max(p_rms, other.p_rms);
  }
};

class PrepCheck {
 public:
  PrepCheck(const PrepData& data, const unsigned char* records, std::int64_t chunk, int head)
      : data_(data),
        c_(data.c),
        layout_(data.layout()),
        record_(records + (chunk * c_.value_heads + head) * layout_.bytes),
        head_(head),
        unit_(c_.format == Dtype::bf16 ? 0x1p-8 : 0x1p-11),
        tiny_(c_.format == Dtype::bf16 ? 1e-37 : 0x1p-24) {
    std::size_t sequence = 0;
    while (data.chunk_boundaries[sequence + 1] <= chunk) ++sequence;
    first_ = data.boundaries[sequence] + (chunk - data.chunk_boundaries[sequence]) * 64;
    count_ = static_cast<int>(std::min<std::int64_t>(64, data.boundaries[sequence + 1] - first_));
  }

  PrepErrors run() {
    load();
    interactions();
    if (!c_.lean) check_square(layout_.square_p, p_, p_bound_, errors_.p, errors_.p_rms);
    if (c_.delta) {
      invert();
      check_square(layout_.square_y, y_, y_bound_, errors_.y, errors_.y_rms);
    }
    check_decays();
    if (c_.kind == kernels::GateKind::channel) check_scaled();
    return errors_;
  }

 private:
  using Rows = std::vector<double>;
  static constexpr double kMost = 1e37;
  double& at(Rows& rows, int i, int d) const { return rows[static_cast<std::size_t>(i * 256 + d)]; }

  void load() {
    for (Rows* rows : {&q_, &e_, &w_, &step_, &prefix_, &suffix_}) rows->assign(64 * 256, 0.0);
    gain_.assign(64, 0.0);
    const int key_head = head_ / (c_.value_heads / c_.heads);
    for (int i = 0; i < 64; ++i) {
      const std::int64_t row = first_ + i;
      for (int d = 0; d < c_.d_k; ++d) {
        at(step_, i, d) = 1.0;
        if (i >= count_) continue;
        const auto key = static_cast<std::size_t>((row * c_.heads + key_head) * c_.d_k + d);
        at(q_, i, d) = data_.value(data_.q[key]);
        at(w_, i, d) = data_.value(data_.w[key]);
        at(e_, i, d) = data_.e.empty() ? at(w_, i, d) : data_.value(data_.e[key]);
        const std::int64_t gate = row * c_.value_heads + head_;
        if (c_.kind == kernels::GateKind::scalar) {
          at(step_, i, d) = std::exp(data_.gate_value(data_.g, static_cast<std::size_t>(gate)));
        } else if (c_.kind == kernels::GateKind::channel) {
          at(step_, i, d) =
              std::exp(data_.gate_value(data_.g, static_cast<std::size_t>(gate * c_.d_k + d)));
        }
      }
      if (i < count_) {
        const double b =
            data_.b.empty()
                ? 1.0
                : data_.gate_value(data_.b, static_cast<std::size_t>(first_ + i) *
                                                    static_cast<std::size_t>(c_.value_heads) +
                                                static_cast<std::size_t>(head_));
        gain_[static_cast<std::size_t>(i)] = b;
      }
    }
    for (int d = 0; d < c_.d_k; ++d) {
      double product = 1.0;
      for (int i = 0; i < 64; ++i) {
        product *= at(step_, i, d);
        at(prefix_, i, d) = product;
      }
      product = 1.0;
      for (int i = 63; i >= 0; --i) {
        at(suffix_, i, d) = product;
        product *= at(step_, i, d);
      }
    }
  }

  void interactions() {
    for (Rows* rows : {&a_, &p_, &a_bound_, &p_bound_}) rows->assign(64 * 256, 0.0);
    const bool channel = c_.kind == kernels::GateKind::channel;
    // Operands of products are rounded once for channel decay; otherwise only sums are.
    const double operands = (channel ? 2.05 * unit_ : 0.0) + 0x1p-18;
    Rows decayed(256);
    for (int j = 0; j < 64; ++j) {
      for (int d = 0; d < c_.d_k; ++d) decayed[static_cast<std::size_t>(d)] = at(w_, j, d);
      for (int i = j; i < 64; ++i) {
        double a = 0, p = 0, a_size = 0, p_size = 0;
        for (int d = 0; d < c_.d_k; ++d) {
          double& x = decayed[static_cast<std::size_t>(d)];
          if (i > j) x *= at(step_, i, d);
          a += at(e_, i, d) * x;
          p += at(q_, i, d) * x;
          a_size += std::abs(at(e_, i, d) * x);
          p_size += std::abs(at(q_, i, d) * x);
        }
        const double below = channel && c_.format == Dtype::f16 ? 0x1p-22 : 0.0;  // subnormals
        at(p_, i, j) = c_.scale * p;
        at(p_bound_, i, j) = c_.scale * (operands * p_size + below);
        if (i == j) continue;
        at(a_, i, j) = a;
        at(a_bound_, i, j) = operands * a_size + below;
      }
    }
  }

  void invert() {
    y_.assign(64 * 256, 0.0);
    y_bound_.assign(64 * 256, 0.0);
    for (int c = 0; c < 64; ++c) {
      for (int i = c; i < 64; ++i) {
        double sum = i == c ? 1.0 : 0.0;
        for (int j = c; j < i; ++j) sum -= at(a_, i, j) * gain(j) * at(y_, j, c);
        at(y_, i, c) = sum;
      }
    }
    Rows half(64 * 256);
    for (int i = 0; i < 64; ++i) {
      for (int c = 0; c < 64; ++c) {
        for (int j = 0; j < i; ++j) {
          at(half, i, c) += at(a_bound_, i, j) * std::abs(gain(j) * at(y_, j, c));
        }
      }
    }
    for (int i = 0; i < 64; ++i) {
      for (int c = 0; c < 64; ++c) {
        for (int j = 0; j <= i; ++j) at(y_bound_, i, c) += std::abs(at(y_, i, j)) * at(half, j, c);
      }
    }
    for (int i = 0; i < 64; ++i) at(y_, i, i) = 0.0;  // the record has Y - I
  }
  double gain(int i) const { return gain_[static_cast<std::size_t>(i)]; }

  double element(std::int64_t tile, int row, int column) const {
    std::uint16_t bits;
    std::memcpy(&bits, record_ + tile + column / 8 * 1024 + row * 16 + column % 8 * 2, 2);
    return data_.value(bits);
  }
  float number(std::int64_t at, int i) const {
    float out;
    std::memcpy(&out, record_ + at + 4 * i, 4);
    return out;
  }

  // A NaN counts as a failure.
  static void raise(double& worst, double error, double allowed) {
    const double ratio = error == 0 ? 0.0 : error / allowed;
    if (!(ratio <= worst)) worst = std::isnan(ratio) ? 1e30 : ratio;
  }

  void check_square(std::int64_t tile, Rows& expected, Rows& bound, double& worst, double& rms) {
    double square = 0, size = 1e-300;
    for (int i = 0; i < 64; ++i) {
      for (int j = 0; j < 64; ++j) {
        const double right = at(expected, i, j), error = std::abs(element(tile, i, j) - right);
        square += error * error;
        size += right * right;
        raise(worst, error, at(bound, i, j) + 1.02 * unit_ * std::abs(right) + tiny_);
      }
    }
    raise(rms, std::sqrt(square / size), 1.0);
  }

  void check_decays() {
    const int last = count_ - 1;
    const bool channel = c_.kind == kernels::GateKind::channel;
    const auto compare = [&](double got, double right) {
      // An exponent is a sum in float32: its error grows with it.
      const double exponent = right > 0 ? std::abs(std::log(right)) : 0.0;
      raise(errors_.decays, std::abs(got - std::min(right, kMost)),
            (1e-6 + 0x1p-22 * exponent) * std::min(right, kMost) + 1e-37 +
                (right > kMost ? kMost : 0.0));
    };
    for (int i = 0; i < 64; ++i) {
      const int row = std::min(i, last);
      compare(number(layout_.in, i), channel ? 1.0 : at(prefix_, row, 0));
      compare(number(layout_.out, i), channel ? 1.0 : at(suffix_, row, 0));
      compare(number(layout_.gain, i), gain(i));
    }
    const int columns = c_.lean ? kernels::kLeanKeep : kernels::key_columns(c_.d_k);
    for (int d = 0; d < columns; ++d) {
      compare(number(layout_.keep, d), d < c_.d_k ? at(prefix_, last, d) : 0.0);
    }
    if (c_.lean) check_sums();
  }

  // Every decay between two rows, from the sums.
  void check_sums() {
    for (int i = 0; i <= count_ - 1; ++i) {
      double right = 1.0;
      for (int j = i; j >= 0; --j) {
        const double got = std::exp2(
            (static_cast<double>(number(layout_.sums, 2 * i)) - number(layout_.sums, 2 * j)) +
            (static_cast<double>(number(layout_.sums, 2 * i + 1)) -
             number(layout_.sums, 2 * j + 1)));
        const double exponent = right > 0 ? std::abs(std::log(right)) : 0.0;
        if (right < 1e30) {
          raise(errors_.decays, std::abs(got - right), (1e-6 + 0x1p-22 * exponent) * right + 1e-37);
        }
        right *= at(step_, j, 0);
      }
    }
  }

  void check_scaled() {
    const auto compare = [&](std::int64_t tile, Rows& keys, Rows& factors) {
      for (int i = 0; i < 64; ++i) {
        for (int d = 0; d < kernels::key_columns(c_.d_k); ++d) {
          const double factor = at(factors, i, d);
          const double right = at(keys, i, d) * std::min(factor, kMost);
          const double got = element(tile, i, d);
          if (factor > 1.0) {  // finite, and of the right sign
            if (!(std::isfinite(got) && got * right >= 0)) errors_.scaled = 1e30;
            continue;
          }
          raise(errors_.scaled, std::abs(got - right), 1.02 * unit_ * std::abs(right) + tiny_);
        }
      }
    };
    compare(layout_.query, q_, prefix_);
    if (c_.delta) compare(layout_.erase, e_, prefix_);
    compare(layout_.write, w_, suffix_);
  }

  const PrepData& data_;
  const PrepCase& c_;
  kernels::RecordLayout layout_;
  const unsigned char* record_;
  int head_;
  double unit_, tiny_;
  std::int64_t first_ = 0;
  int count_ = 0;
  Rows q_, e_, w_, step_, prefix_, suffix_, a_, p_, y_, a_bound_, p_bound_, y_bound_;
  std::vector<double> gain_;
  PrepErrors errors_;
};

}  // namespace rankone::test
