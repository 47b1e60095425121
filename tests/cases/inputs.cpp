#include <algorithm>
#include <cmath>

#include "tests/cases/cases.hpp"
#include "tests/cases/tensors.hpp"

namespace rankone::test {
namespace {

using recurrence::TwoKey;

class Maker {
 public:
  explicit Maker(const Case& c) : c_(c), random_(c.seed), rows_(sequences_of(c).rows()) {}

  Tensor keys() {
    const std::int64_t size = c_.d_k;
    Tensor keys = filled({rows_, c_.heads, size}, [&] { return random_.normal(); });
    const bool repeated = c_.keys == Keys::identical || c_.keys == Keys::squares;
    const std::int64_t width = c_.heads * size;
    float* data = keys.data<float>();
    if (c_.keys == Keys::squares) {
      const double entry = 1.0 / std::sqrt(static_cast<double>(size));
      for (float& x : keys.span<float>()) x = static_cast<float>(x < 0 ? -entry : entry);
    } else if (c_.keys == Keys::correlated) {
      for (std::int64_t i = width; i < keys.count(); ++i)
        data[i] = 3.0F * data[i % width] + data[i];
    }
    if (c_.keys != Keys::raw && c_.keys != Keys::squares) normalise_rows(keys, size);
    for (std::int64_t r = 0; r < rows_; ++r) {
      const std::int64_t from = repeated                                   ? 0
                                : c_.keys == Keys::rounded && r % 200 < 64 ? r / 200 * 200
                                                                           : r;
      std::copy_n(data + from * width, width, data + r * width);
      const double norm =
          c_.keys == Keys::wild ? (r % 11 == 5 ? 0.0 : std::exp(random_.normal())) : 1.0;
      for (std::int64_t i = r * width; i < (r + 1) * width; ++i) {
        if (c_.keys == Keys::rounded) data[i] = to_float(to_bf16(data[i]));
        if (c_.keys == Keys::wild) data[i] = static_cast<float>(data[i] * norm);
      }
    }
    return keys;
  }

  double gate(std::int64_t row, std::int64_t channel) {
    switch (c_.gates) {
      case GateValues::weak:
        return logsigmoid(random_.normal()) / 16;
      case GateValues::typical:
        return logsigmoid(random_.normal());
      case GateValues::zero:
        return 0;
      case GateValues::minus_3:
        return -3;
      case GateValues::minus_5:
        return -5;
      case GateValues::minus_30:
        return random_.uniform(-32, -28);
      case GateValues::mixed:
        return random_.uniform() < 0.5 ? -30 : -0.01;
      case GateValues::alternating:
        return (row + channel) % 2 == 0 ? 0 : -5;
      case GateValues::heavy:
        return std::max(-2661.0, -std::exp(-2 + 3 * random_.normal()));
      case GateValues::harsh:
        return logsigmoid(random_.uniform()) / 0.01;
      case GateValues::jump:
        return row == 0 ? 176 : row == 1 ? 0 : logsigmoid(random_.normal());
      case GateValues::lost:
        return row % 5 == 3 ? -1e30 : logsigmoid(random_.normal()) / 16;
    }
    return 0;
  }

  double gain() {
    switch (c_.gains) {
      case Gains::none:
        return 1;
      case Gains::uniform:
        return random_.uniform();
      case Gains::up_to_two:
        return random_.uniform(0, 2);
      case Gains::near_two:
        return 1.99;
      case Gains::two:
        return 2;
      case Gains::some_zero:
        return random_.uniform() < 0.3 ? 0 : random_.uniform();
    }
    return 0;
  }

  TwoKey two_key() {
    TwoKey in;
    const auto normal = [&] { return random_.normal(); };
    in.q = filled({rows_, c_.heads, c_.d_k}, normal);
    if (c_.keys != Keys::raw) normalise_rows(in.q, c_.d_k);
    in.e = keys();
    in.w = in.e;
    if (c_.two_keys) {
      in.w = in.e.clone();
      for (float& x : in.w.span<float>()) {
        x *= static_cast<float>(std::pow(1.5, random_.uniform(-1, 1)));
      }
    }
    if (!c_.delta) in.e = Tensor();
    in.v = filled({rows_, c_.value_heads, c_.d_v}, normal);
    const std::int64_t channels = c_.gate == GateShape::channel ? c_.d_k : 1;
    if (c_.gate != GateShape::none) {
      std::int64_t i = 0;
      in.g = filled({rows_, c_.value_heads, channels}, [&] {
        const std::int64_t at = i++;
        return gate(at / (c_.value_heads * channels), at % channels);
      });
      if (c_.gate == GateShape::scalar) in.g = in.g.reshape({rows_, c_.value_heads});
    }
    if (c_.gains != Gains::none) in.b = filled({rows_, c_.value_heads}, [&] { return gain(); });
    if (c_.initial) in.initial_state = states(normal);
    in.scale = 1.0 / std::sqrt(static_cast<double>(c_.d_k));
    return in;
  }

  template <class Next>
  Tensor states(Next&& next) const {
    return filled({sequences_of(c_).count(), c_.value_heads, c_.d_k, c_.d_v}, next);
  }

  Inputs make() {
    Inputs inputs{sequences_of(c_), two_key(), {}};
    const auto normal = [&] { return random_.normal(); };
    inputs.cotangents.o = filled({rows_, c_.value_heads, c_.d_v}, normal);
    inputs.cotangents.final_state = states(normal);
    return inputs;
  }

 private:
  const Case& c_;
  Random random_;
  std::int64_t rows_;
};

}  // namespace

Sequences sequences_of(const Case& c) {
  return c.cu_seqlens.empty() ? Sequences::dense(c.batch, c.time) : Sequences::packed(c.cu_seqlens);
}

Inputs make_inputs(const Case& c) { return Maker(c).make(); }

Inputs widened(const Inputs& inputs) {
  const TwoKey& in = inputs.two_key;
  Inputs result{inputs.sequences, {}, {}};
  result.two_key = {wide(in.q),
                    wide(in.e),
                    wide(in.w),
                    wide(in.v),
                    wide(in.g),
                    wide(in.b),
                    wide(in.initial_state),
                    in.scale};
  result.cotangents = {wide(inputs.cotangents.o), wide(inputs.cotangents.final_state)};
  return result;
}

recurrence::TwoKeyOut make_out(const Inputs& inputs) {
  return {nan_like(inputs.cotangents.o), nan_like(inputs.cotangents.final_state)};
}

recurrence::TwoKeyGrads make_grads(const Inputs& inputs) {
  const TwoKey& in = inputs.two_key;
  return {nan_like(in.q),
          nan_like(in.e),
          nan_like(in.w),
          nan_like(in.v),
          nan_like(in.g),
          nan_like(in.b),
          nan_like(in.initial_state)};
}

}  // namespace rankone::test
