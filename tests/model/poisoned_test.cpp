// A training step on backends whose tensors the host can not touch: whoever reads or writes tensor
// data outside of a backend dies here. So a step can run on a device, or be captured in a graph, as
// it is.

#include "tests/model/support.hpp"
#include "tests/support/poisoned_backends.hpp"

namespace rankone::test {
namespace {

struct Step {
  Step(Model& model_, const Sequences& sequences_) : model(model_), sequences(sequences_) {}

  // Loss, gradients, their norm, clipping and AdamW, as tensors throughout.
  void run(Context& context, bool recompute) {
    const ArenaScope scope(context.arena());
    nn::Tape tape(context, nn::Tape::Mode::training);
    const nn::Var hidden = model.hidden(tape, sequences, ids, nullptr, recompute);
    const Tensor losses = context.empty({sequences.rows()}, Dtype::f32);
    const Tensor dx = context.empty(tape.value(hidden).shape(), Dtype::f32);
    nn::cross_entropy_vjp(context, {tape.value(hidden), model.output_weight().value, targets},
                          1.0 / static_cast<double>(sequences.rows()), losses,
                          {dx, model.output_weight().grad});
    tape.backward(hidden, dx);
    nn::fill(context, sum, 0.0);
    nn::add_sum(context, losses, 1.0, loss);
    for (nn::Parameter* parameter : model.parameters()) {
      nn::add_sum_of_squares(context, parameter->grad, sum);
    }
    nn::clip_factor(context, sum, 1.0, factor, ok);
    std::size_t i = 0;
    for (nn::Parameter* parameter : model.parameters()) {
      nn::AdamW args;
      args.parameter = parameter->value;
      args.grad = parameter->grad;
      args.m = moments[i];
      args.v = moments[i + 1];
      args.factor = factor;
      args.ok = ok;
      args.lr = 1e-3;
      args.weight_decay = parameter->decays ? 0.1 : 0.0;
      nn::adamw(context, args);
      i += 2;
    }
  }

  Model& model;
  const Sequences& sequences;
  Tensor ids, targets, loss, sum, factor, ok;
  std::vector<Tensor> moments;
};

// Hands out pieces of the poisoned memory.
class Pieces {
 public:
  explicit Pieces(PoisonedMemory& memory) : memory_(memory) {}
  Tensor move(const Tensor& tensor) {
    const Tensor view = take(tensor.shape(), tensor.dtype());
    std::copy_n(static_cast<const char*>(tensor.raw()), tensor.bytes(),
                static_cast<char*>(view.raw()));
    return view;
  }
  Tensor take(const Shape& shape, Dtype dtype) {
    const Tensor view = Tensor::view(memory_.data() + used_, shape, dtype);
    used_ += (view.bytes() + 63) / 64 * 64;
    EXPECT_LE(used_, memory_.bytes());
    return view;
  }
  void rest(Arena& arena) { arena.adopt(memory_.data() + used_, memory_.bytes() - used_); }

 private:
  PoisonedMemory& memory_;
  std::size_t used_ = 0;
};

class PoisonedStep : public testing::TestWithParam<NamedConfig> {};

TEST_P(PoisonedStep, ReadsNoTensorDataOnTheHost) {
  for (const bool recompute : {false, true}) {
    PoisonedMemory memory(std::size_t{64} << 20);
    Pieces pieces(memory);
    Model model = Model::create(GetParam().config, Dtype::f32, 3);
    model.enable_gradients();
    const std::vector<std::int64_t> boundaries{0, 5, 6, 12};
    const Sequences sequences = Sequences::packed(boundaries);
    Step step(model, sequences);
    for (nn::Parameter* parameter : model.parameters()) {
      parameter->value = pieces.move(parameter->value);
      parameter->grad = pieces.move(parameter->grad);
      step.moments.push_back(pieces.take(parameter->value.shape(), Dtype::f32));
      step.moments.push_back(pieces.take(parameter->value.shape(), Dtype::f32));
    }
    step.ids = pieces.move(random_ids(sequences.rows(), 13, 1));
    step.targets = pieces.move(random_ids(sequences.rows(), 13, 2));
    step.loss = pieces.take({1}, Dtype::f64);
    step.sum = pieces.take({1}, Dtype::f64);
    step.factor = pieces.take({1}, Dtype::f32);
    step.ok = pieces.take({1}, Dtype::i32);

    const nn::Poisoned nn_cpu(nn::cpu_backend(), memory),
        nn_reference(nn::reference_backend(), memory);
    const recurrence::Poisoned cpu(recurrence::cpu_backend(), memory),
        reference(recurrence::reference_backend(), memory);
    // The latest registered one is asked first: float32 is the cpu's, the rest the reference's.
    const nn::RegisteredBackend first(nn_reference), second(nn_cpu);
    const recurrence::RegisteredBackend third(reference), fourth(cpu);
    Context context({.threads = 1, .backends = {"poisoned"}});
    pieces.rest(context.arena());

    memory.close();
    step.run(context, recompute);
    memory.open();
    EXPECT_GT(memory.calls(), 100);
    EXPECT_NEAR(step.loss.data<double>()[0] / 12, std::log(13.0), 2.5);
    EXPECT_EQ(step.ok.data<std::int32_t>()[0], 1);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, PoisonedStep, testing::ValuesIn(tiny_models()),
                         [](const auto& information) {
                           std::string name = information.param.name;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(PoisonedStepDeathTest, TheTestCanFail) {
  PoisonedMemory memory(4096);
  memory.close();
  EXPECT_DEATH(
      {
        volatile std::byte* data = memory.data();
        data[0] = std::byte{1};
      },
      "");
}

}  // namespace
}  // namespace rankone::test
