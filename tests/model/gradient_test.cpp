// Gradients of whole models: against finite differences in float64, and of the cpu backend against
// the reference.

#include "tests/model/support.hpp"

namespace rankone::test {
namespace {

const Sequences& packed() {
  static const std::vector<std::int64_t> boundaries{0, 5, 5, 6, 9};
  static const Sequences sequences = Sequences::packed(boundaries);
  return sequences;
}

// The relative error of the gradient along `seed`'s direction in the space of all parameters that
// the loss <hidden, cotangent> depends on. Parameters keep their values.
double directional_error(Model& model, Context& context, const Sequences& sequences,
                         const Tensor& ids, const Tensor& cotangent, std::uint64_t seed) {
  std::vector<Tensor> directions;
  double predicted = 0, scale = 0;
  for (nn::Parameter* parameter : model.parameters()) {
    if (parameter == &model.output_weight()) continue;  // the head is the loss's
    directions.push_back(random_tensor(parameter->value.shape(), Dtype::f64, ++seed));
    const double part = inner(parameter->grad, directions.back());
    predicted += part;
    scale += std::abs(part);
  }
  const auto move = [&](double step) {
    std::size_t i = 0;
    for (nn::Parameter* parameter : model.parameters()) {
      if (parameter == &model.output_weight()) continue;
      const Tensor& direction = directions[i++];
      for (std::int64_t j = 0; j < direction.count(); ++j) {
        parameter->value.data<double>()[j] += step * direction.data<double>()[j];
      }
    }
  };
  const auto loss = [&] { return inner(run_hidden(model, context, sequences, ids), cotangent); };
  // Richardson's extrapolation of two central differences: the error is of fourth order.
  const auto central = [&](double step) {
    move(step);
    const double above = loss();
    move(-2 * step);
    const double below = loss();
    move(step);
    return (above - below) / (2 * step);
  };
  const double measured = (4 * central(2e-6) - central(4e-6)) / 3;
  return std::abs(measured - predicted) / std::max(scale, 1e-12);
}

class EveryModel : public testing::TestWithParam<NamedConfig> {};

TEST_P(EveryModel, GradientsAreThoseOfFiniteDifferences) {
  Context context = reference_context();
  Model model = Model::create(GetParam().config, Dtype::f64, 3);
  const Tensor ids = random_ids(packed().rows(), 13, 1);
  const Tensor cotangent = random_tensor({packed().rows(), 8}, Dtype::f64, 2);
  run_backward(model, context, packed(), ids, cotangent);
  for (std::uint64_t seed : {1000, 2000, 3000}) {
    EXPECT_LT(directional_error(model, context, packed(), ids, cotangent, seed), 1e-7);
  }
  for (nn::Parameter* parameter : model.parameters()) {
    if (parameter == &model.output_weight()) continue;
    EXPECT_GT(largest(parameter->grad), 0) << parameter->name << " has no gradient";
  }
}

TEST_P(EveryModel, CpuAgreesWithTheReference) {
  Context reference = reference_context();
  Context cpu = cpu_context();
  Model exact = Model::create(GetParam().config, Dtype::f64, 3);
  Model fast = Model::create(GetParam().config, Dtype::f32, 3);
  const auto exact_parameters = exact.parameters();
  const auto fast_parameters = fast.parameters();
  for (std::size_t i = 0; i < exact_parameters.size(); ++i) {
    exact_parameters[i]->value = fast_parameters[i]->value.to(Dtype::f64);
  }
  const Tensor ids = random_ids(packed().rows(), 13, 1);
  const Tensor cotangent = random_tensor({packed().rows(), 8}, Dtype::f32, 2);
  const Tensor want = run_hidden(exact, reference, packed(), ids);
  EXPECT_LT(largest_difference(want, run_hidden(fast, cpu, packed(), ids)), 2e-5 * largest(want));
  run_backward(exact, reference, packed(), ids, cotangent.to(Dtype::f64));
  run_backward(fast, cpu, packed(), ids, cotangent);
  for (std::size_t i = 0; i < exact_parameters.size(); ++i) {
    if (exact_parameters[i]->grad.count() == 0) continue;
    const double size = largest(exact_parameters[i]->grad);
    EXPECT_LE(largest_difference(exact_parameters[i]->grad, fast_parameters[i]->grad),
              1e-4 * size + 1e-6)
        << exact_parameters[i]->name;
  }
}

TEST_P(EveryModel, RecomputationGivesTheSameBits) {
  Context context = cpu_context();
  Model kept = Model::create(GetParam().config, Dtype::f32, 3);
  Model again = Model::create(GetParam().config, Dtype::f32, 3);
  const Tensor ids = random_ids(packed().rows(), 13, 1);
  const Tensor cotangent = random_tensor({packed().rows(), 8}, Dtype::f32, 2);
  run_backward(kept, context, packed(), ids, cotangent, false);
  run_backward(again, context, packed(), ids, cotangent, true);
  const auto a = kept.parameters(), b = again.parameters();
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_TRUE(same_bits(a[i]->grad, b[i]->grad)) << a[i]->name;
  }
}

// A step planned on shapes alone runs in exactly the memory that the plan measured.
TEST_P(EveryModel, APlannedStepNeedsWhatThePlanSays) {
  for (const bool recompute : {false, true}) {
    Context context = cpu_context();
    Model model = Model::create(GetParam().config, Dtype::f32, 3);
    const Tensor ids = random_ids(packed().rows(), 13, 1);
    const Tensor cotangent = random_tensor({packed().rows(), 8}, Dtype::f32, 2);
    context.arena().set_planning(true);
    run_backward(model, context, packed(), ids, cotangent, recompute);
    const std::size_t planned = context.arena().peak();
    context.arena().set_planning(false);
    for (nn::Parameter* parameter : model.parameters()) {
      EXPECT_EQ(largest(parameter->grad), 0) << "planning wrote to " << parameter->name;
    }
    context.arena().reserve(planned);
    const std::size_t capacity = context.arena().capacity();
    run_backward(model, context, packed(), ids, cotangent, recompute);
    EXPECT_EQ(context.arena().capacity(), capacity) << "the arena grew inside a step";
    EXPECT_LE(context.arena().peak(), planned);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, EveryModel, testing::ValuesIn(tiny_models()),
                         [](const auto& information) {
                           std::string name = information.param.name;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// Every combination on the four axes that has a meaning: gradients, and single steps from the
// state.
TEST(EveryCombination, HasRightGradientsAndSteps) {
  using namespace recurrence;
  Context context = reference_context();
  const Sequences sequences = Sequences::dense(1, 4);
  const Tensor ids = random_ids(4, 13, 1);
  const Tensor cotangent = random_tensor({4, 8}, Dtype::f64, 2);
  int tried = 0, refused = 0;
  const auto each = [](auto count, auto&& visit) {
    for (std::size_t i = 0; i < count; ++i) visit(i);
  };
  const auto check = [&](const MixerAxes& axes) {
    MixerConfig mixer = tiny_mixer("gdn");
    mixer.num_value_heads = 2;
    mixer.axes = axes;
    if (!refusal(axes, true).empty()) {
      ++refused;
      EXPECT_THROW(model::check_mixer(mixer, "test"), Error);
      return;
    }
    ++tried;
    if (is_key_norm(axes.gain)) mixer.k_norm = model::KeyNorm::none;
    model::normalise(mixer);
    const std::string name = model::write_mixer(mixer).dump();
    Model model = Model::create(tiny_config(mixer, 1), Dtype::f64, 5);
    run_backward(model, context, sequences, ids, cotangent);
    EXPECT_LT(directional_error(model, context, sequences, ids, cotangent, 1000), 1e-6) << name;
    const Tensor full = run_hidden(model, context, sequences, ids);
    State state = model.make_state(1);
    for (std::int64_t t = 0; t < 4; ++t) {
      const Tensor step =
          run_hidden(model, context, Sequences::dense(1, 1), ids.slice(0, t, t + 1), &state);
      EXPECT_LT(largest_difference(step, full.slice(0, t, t + 1).clone()), 1e-11) << name;
    }
  };
  each(choice_names<DecayKind>().size(), [&](std::size_t decay) {
    each(choice_names<GainKind>().size(), [&](std::size_t gain) {
      each(choice_names<TimeFactor>().size(), [&](std::size_t factor) {
        each(choice_names<PreconditionerChoice>().size(), [&](std::size_t preconditioner) {
          each(choice_names<Solve>().size(), [&](std::size_t solve) {
            check({static_cast<DecayKind>(decay), static_cast<GainKind>(gain),
                   static_cast<TimeFactor>(factor),
                   static_cast<PreconditionerChoice>(preconditioner), static_cast<Solve>(solve)});
          });
        });
      });
    });
  });
  EXPECT_EQ(tried + refused, 4 * 10 * 4 * 4 * 3);
  EXPECT_GT(tried, 1200);
}

}  // namespace
}  // namespace rankone::test
