#include "recurrence/cuda/host_calls.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/device.hpp"
#include "core/status.hpp"

namespace rankone::recurrence {
namespace {

constexpr std::int64_t kGuard = 256;  // bytes before and behind a tensor
constexpr int kNan = 0xff;            // in every format

}  // namespace

// The tensors of one call on the device, each between two guards.
class HostCalls::Copies {
 public:
  explicit Copies(Context& context) : context_(context) {}

  void in(std::initializer_list<Tensor*> tensors) {
    for (Tensor* tensor : tensors) *tensor = place(*tensor, false);
  }
  void out(std::initializer_list<Tensor*> tensors) {
    for (Tensor* tensor : tensors) *tensor = place(*tensor, true);
  }

  void finish() {
    std::vector<unsigned char> guard(static_cast<std::size_t>(kGuard));
    for (const Entry& entry : entries_) {
      if (entry.output) {
        copy_bytes(context_, entry.host.raw(), entry.inner, entry.host.bytes());
      } else {
        expect_untouched(entry);
      }
      const auto bytes = static_cast<std::int64_t>(entry.host.bytes());
      for (const std::int64_t at : {std::int64_t{0}, kGuard + bytes}) {
        copy_bytes(context_, guard.data(), static_cast<const std::byte*>(entry.whole.raw()) + at,
                   guard.size());
        if (std::any_of(guard.begin(), guard.end(), [](unsigned char x) { return x != kNan; })) {
          fail(Status::failed, "[cuda] a call wrote {} a tensor of shape {}",
               at == 0 ? "before" : "behind", entry.host.shape().str());
        }
      }
    }
  }

 private:
  struct Entry {
    Tensor host, whole;
    std::byte* inner;
    bool output;
  };

  void expect_untouched(const Entry& entry) {
    std::vector<std::byte> now(entry.host.bytes());
    copy_bytes(context_, now.data(), entry.inner, now.size());
    if (!now.empty() && std::memcmp(now.data(), entry.host.raw(), now.size()) != 0) {
      fail(Status::failed, "[cuda] a call changed an input of shape {}", entry.host.shape().str());
    }
  }

  // Tensors of one place are one tensor: tied keys, a state updated in place.
  Tensor place(const Tensor& host, bool output) {
    if (!host.defined()) return host;
    for (Entry& entry : entries_) {
      if (entry.host.raw() != host.raw() || entry.host.bytes() != host.bytes()) continue;
      entry.output = entry.output || output;
      return Tensor::view(entry.inner, host.shape(), host.dtype());
    }
    const auto bytes = static_cast<std::int64_t>(host.bytes());
    Entry entry{host, empty_on(context_, {(bytes + 2 * kGuard + 1) / 2}, Dtype::u16), nullptr,
                output};
    entry.inner = static_cast<std::byte*>(entry.whole.raw()) + kGuard;
    fill_bytes(context_, entry.whole.raw(), kNan, static_cast<std::size_t>(bytes + 2 * kGuard));
    if (!output) copy_bytes(context_, entry.inner, host.raw(), host.bytes());
    entries_.push_back(entry);
    return Tensor::view(entry.inner, host.shape(), host.dtype());
  }

  Context& context_;
  std::vector<Entry> entries_;
};

HostCalls::HostCalls(std::string name, const Backend& inner, ContextOptions options)
    : name_(std::move(name)), inner_(inner), options_(std::move(options)) {}

bool HostCalls::accepts(const CallShape& call) const {
  return call.device == Device::cpu && inner_.accepts({call.dtype, options_.device, call.gram});
}

void HostCalls::run(const Context& outer, const Prepare& prepare) const {
  if (outer.planning()) return;
  Context context(options_, outer.pool());
  const DeviceScope scope(context);
  Copies copies(context);
  const std::function<void(Context&)> work = prepare(copies);
  context.arena().set_planning(true);
  work(context);
  scratch_bytes_ = context.arena().peak();
  context.arena().set_planning(false);
  if (scratch_bytes_ > 0) {
    context.arena().reserve(scratch_bytes_);
    const ArenaScope poison(context.arena());
    fill_bytes(context, context.arena().allocate(scratch_bytes_), kNan, scratch_bytes_);
  }
  const std::size_t planned = context.arena().capacity();
  work(context);
  synchronize(context);
  if (context.arena().capacity() != planned) {
    fail(Status::failed, "[cuda] a call took {} bytes of scratch where its planning pass saw {}",
         context.arena().capacity(), planned);
  }
  copies.finish();
}

void HostCalls::two_key(Context& context, const Sequences& sequences, const TwoKey& inputs,
                        const TwoKeyOut& out) const {
  run(context, [&](Copies& copies) {
    TwoKey in = inputs;
    TwoKeyOut to = out;
    copies.in({&in.q, &in.e, &in.w, &in.v, &in.g, &in.b, &in.initial_state});
    copies.out({&to.o, &to.final_state, &to.saved});
    return [=, this](Context& inner) { inner_.two_key(inner, sequences, in, to); };
  });
}

std::int64_t HostCalls::two_key_saved(Context& context, const Sequences& sequences,
                                      const TwoKey& inputs) const {
  return inner_.two_key_saved(context, sequences, inputs);
}

void HostCalls::two_key_vjp(Context& context, const Sequences& sequences, const TwoKey& inputs,
                            const TwoKeyCotangents& cotangents, const TwoKeyGrads& grads) const {
  run(context, [&](Copies& copies) {
    TwoKey in = inputs;
    TwoKeyCotangents from = cotangents;
    TwoKeyGrads to = grads;
    copies.in({&in.q, &in.e, &in.w, &in.v, &in.g, &in.b, &in.initial_state, &from.o,
               &from.final_state, &from.saved});
    copies.out({&to.q, &to.e, &to.w, &to.v, &to.g, &to.b, &to.initial_state});
    return [=, this](Context& inner) { inner_.two_key_vjp(inner, sequences, in, from, to); };
  });
}

void HostCalls::precondition(Context& context, const Sequences& sequences,
                             const Precondition& inputs, const PreconditionOut& out) const {
  run(context, [&](Copies& copies) {
    Precondition in = inputs;
    PreconditionOut to = out;
    copies.in({&in.k, &in.target, &in.g, &in.b, &in.center, &in.ridge, &in.initial});
    copies.out({&to.out, &to.final, &to.saved});
    return [=, this](Context& inner) { inner_.precondition(inner, sequences, in, to); };
  });
}

std::int64_t HostCalls::precondition_saved(Context& context, const Sequences& sequences,
                                           const Precondition& inputs) const {
  return inner_.precondition_saved(context, sequences, inputs);
}

void HostCalls::precondition_vjp(Context& context, const Sequences& sequences,
                                 const Precondition& inputs,
                                 const PreconditionCotangents& cotangents,
                                 const PreconditionGrads& grads) const {
  run(context, [&](Copies& copies) {
    Precondition in = inputs;
    PreconditionCotangents from = cotangents;
    PreconditionGrads to = grads;
    copies.in({&in.k, &in.target, &in.g, &in.b, &in.center, &in.ridge, &in.initial, &from.out,
               &from.final, &from.saved, &from.k});
    copies.out({&to.k, &to.target, &to.g, &to.b, &to.center, &to.ridge, &to.initial});
    return [=, this](Context& inner) { inner_.precondition_vjp(inner, sequences, in, from, to); };
  });
}

void HostCalls::decay(Context& context, const Decay& inputs, const DecayOut& out) const {
  run(context, [&](Copies& copies) {
    Decay in = inputs;
    DecayOut to = out;
    copies.in({&in.x, &in.a_log, &in.dt_bias});
    copies.out({&to.g, &to.dt});
    return [=, this](Context& inner) { inner_.decay(inner, in, to); };
  });
}

void HostCalls::decay_vjp(Context& context, const Decay& inputs, const DecayCotangents& cotangents,
                          const DecayGrads& grads) const {
  run(context, [&](Copies& copies) {
    Decay in = inputs;
    DecayCotangents from = cotangents;
    DecayGrads to = grads;
    copies.in({&in.x, &in.a_log, &in.dt_bias, &from.g, &from.dt});
    copies.out({&to.x, &to.a_log, &to.dt_bias});
    return [=, this](Context& inner) { inner_.decay_vjp(inner, in, from, to); };
  });
}

void HostCalls::gain(Context& context, const Sequences& sequences, const Gain& inputs,
                     const GainOut& out) const {
  run(context, [&](Copies& copies) {
    Gain in = inputs;
    GainOut to = out;
    copies.in({&in.x, &in.x_v, &in.theta, &in.e, &in.w, &in.v, &in.positions});
    copies.out({&to.b, &to.e, &to.w, &to.v});
    return [=, this](Context& inner) { inner_.gain(inner, sequences, in, to); };
  });
}

void HostCalls::gain_vjp(Context& context, const Sequences& sequences, const Gain& inputs,
                         const GainCotangents& cotangents, const GainGrads& grads) const {
  run(context, [&](Copies& copies) {
    Gain in = inputs;
    GainCotangents from = cotangents;
    GainGrads to = grads;
    copies.in({&in.x, &in.x_v, &in.theta, &in.e, &in.w, &in.v, &in.positions, &from.b, &from.e,
               &from.w, &from.v});
    copies.out({&to.x, &to.x_v, &to.theta, &to.e, &to.w, &to.v});
    return [=, this](Context& inner) { inner_.gain_vjp(inner, sequences, in, from, to); };
  });
}

void HostCalls::mesa(Context& context, const Sequences& sequences, const Mesa& inputs,
                     const MesaOut& out) const {
  run(context, [&](Copies& copies) {
    Mesa in = inputs;
    MesaOut to = out;
    copies.in({&in.q, &in.k, &in.v, &in.g, &in.b, &in.lambda, &in.initial_hkk, &in.initial_hkv});
    copies.out({&to.o, &to.final_hkk, &to.final_hkv});
    return [=, this](Context& inner) { inner_.mesa(inner, sequences, in, to); };
  });
}

void HostCalls::mesa_vjp(Context& context, const Sequences& sequences, const Mesa& inputs,
                         const MesaCotangents& cotangents, const MesaGrads& grads) const {
  run(context, [&](Copies& copies) {
    Mesa in = inputs;
    MesaCotangents from = cotangents;
    MesaGrads to = grads;
    copies.in({&in.q, &in.k, &in.v, &in.g, &in.b, &in.lambda, &in.initial_hkk, &in.initial_hkv,
               &from.o, &from.final_hkk, &from.final_hkv});
    copies.out({&to.q, &to.k, &to.v, &to.g, &to.b, &to.lambda, &to.initial_hkk, &to.initial_hkv});
    return [=, this](Context& inner) { inner_.mesa_vjp(inner, sequences, in, from, to); };
  });
}

void HostCalls::longhorn(Context& context, const Sequences& sequences, const Longhorn& inputs,
                         const LonghornOut& out) const {
  run(context, [&](Copies& copies) {
    Longhorn in = inputs;
    LonghornOut to = out;
    copies.in({&in.q, &in.k, &in.v, &in.beta, &in.initial_state});
    copies.out({&to.o, &to.final_state});
    return [=, this](Context& inner) { inner_.longhorn(inner, sequences, in, to); };
  });
}

void HostCalls::longhorn_vjp(Context& context, const Sequences& sequences, const Longhorn& inputs,
                             const LonghornCotangents& cotangents,
                             const LonghornGrads& grads) const {
  run(context, [&](Copies& copies) {
    Longhorn in = inputs;
    LonghornCotangents from = cotangents;
    LonghornGrads to = grads;
    copies.in({&in.q, &in.k, &in.v, &in.beta, &in.initial_state, &from.o, &from.final_state});
    copies.out({&to.q, &to.k, &to.v, &to.beta, &to.initial_state});
    return [=, this](Context& inner) { inner_.longhorn_vjp(inner, sequences, in, from, to); };
  });
}

}  // namespace rankone::recurrence
