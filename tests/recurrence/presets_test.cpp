// The presets and the rules of the axes.

#include "recurrence/presets.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <set>

#include "core/status.hpp"

namespace rankone::recurrence {
namespace {

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), Status::invalid_argument);
    return error.what();
  }
  return "";
}

TEST(Presets, AreTheFamily) {
  const std::set<std::string_view> expected = {
      "linear", "retnet",   "mamba2", "gla",  "deltanet", "gdn",          "kda",
      "gdn2",   "longhorn", "nlms",   "efla", "comba",    "deltaproduct", "mesa",
      "kla",    "pdn",      "pgdn",   "pkda", "pla",      "p-mamba2",     "p-gla"};
  std::set<std::string_view> names;
  for (const MixerPreset& preset : presets()) {
    EXPECT_TRUE(names.insert(preset.name).second) << preset.name;
    EXPECT_EQ(refusal(preset.axes, false), "") << preset.name;
    EXPECT_FALSE(preset.source.empty());
    EXPECT_EQ(find_preset(preset.name), &recurrence::preset(preset.name));
  }
  EXPECT_EQ(names, expected);
}

TEST(Presets, AreWhatTheTablesSay) {
  const auto axes = [](std::string_view name) { return preset(name).axes; };
  using D = DecayKind;
  using G = GainKind;
  using P = PreconditionerChoice;
  constexpr TimeFactor none = TimeFactor::none;
  EXPECT_EQ(axes("kla"), (MixerAxes{D::scalar, G::kaczmarz, none, P::none, Solve::delta}));
  EXPECT_EQ(axes("gdn"), (MixerAxes{D::scalar, G::sigmoid, none, P::none, Solve::delta}));
  EXPECT_EQ(axes("pkda"), (MixerAxes{D::channel, G::sigmoid, none, P::atk, Solve::delta}));
  EXPECT_EQ(axes("p-gla"), (MixerAxes{D::channel, G::one, none, P::atq, Solve::additive}));
  EXPECT_EQ(axes("mesa"), (MixerAxes{D::scalar, G::sigmoid, none, P::none, Solve::cg}));
  // KLA differs from GDN in the gain and the raw key alone.
  const MixerPreset& kla = preset("kla");
  EXPECT_EQ(kla.q_norm, "l2");
  EXPECT_EQ(kla.k_norm, "none");
  EXPECT_EQ(kla.output_gate, "silu");
  EXPECT_EQ(preset("kda").output_gate, "sigmoid");
  EXPECT_EQ(preset("gla").decay_normalizer, 16.0);
  EXPECT_EQ(preset("gla").conv_size, 0);
  EXPECT_EQ(preset("mamba2").scale, 1.0);
  EXPECT_TRUE(preset("mamba2").gate_first);
  EXPECT_FALSE(preset("mesa").conv_value);
  EXPECT_EQ(preset("deltaproduct").writes_per_token, 2);
  EXPECT_TRUE(preset("comba").read_undecayed);
}

TEST(Choices, NamesAndValuesGoBothWays) {
  EXPECT_EQ(choice_name(GainKind::vector), "vector");
  EXPECT_EQ(choice_name(GainKind::learned_scalar), "learned_scalar");
  EXPECT_EQ(choice_name(Solve::cg), "cg");
  EXPECT_EQ(choice_name(TimeFactor::inv_log_t), "inv_log_t");
  EXPECT_EQ(choice_name(DecayForm::fixed), "fixed");
  EXPECT_EQ(choice_name(PreconditionerChoice::gram), "gram");
  for (const std::string_view name : choice_names<GainKind>()) {
    EXPECT_EQ(choice_name(parse_choice<GainKind>(name, "gain")), name);
  }
  for (const std::string_view name : choice_names<DecayKind>()) {
    EXPECT_EQ(choice_name(parse_choice<DecayKind>(name, "decay")), name);
  }
}

TEST(Choices, ErrorsNameTheNearest) {
  EXPECT_NE(message_of([] {
              parse_choice<GainKind>("kazcmarz", "gain");
            }).find("gain 'kazcmarz' is unknown (nearest: kaczmarz; one of one, sigmoid"),
            std::string::npos);
  EXPECT_NE(message_of([] { parse_choice<Solve>("detla", "solve"); }).find("nearest: delta"),
            std::string::npos);
  EXPECT_NE(message_of([] { preset("pgnd"); }).find("preset 'pgnd' is unknown (nearest: pgdn"),
            std::string::npos);
}

// Every combination: refused are exactly those the design names.
TEST(Axes, RefusesExactlyWhatHasNoMeaning) {
  int legal = 0, refused = 0;
  for (std::size_t d = 0; d < choice_names<DecayKind>().size(); ++d) {
    for (std::size_t g = 0; g < choice_names<GainKind>().size(); ++g) {
      for (std::size_t t = 0; t < choice_names<TimeFactor>().size(); ++t) {
        for (std::size_t p = 0; p < choice_names<PreconditionerChoice>().size(); ++p) {
          for (std::size_t s = 0; s < choice_names<Solve>().size(); ++s) {
            const MixerAxes axes{static_cast<DecayKind>(d), static_cast<GainKind>(g),
                                 static_cast<TimeFactor>(t), static_cast<PreconditionerChoice>(p),
                                 static_cast<Solve>(s)};
            const bool cg = axes.solve == Solve::cg;
            const bool bad =
                cg && (axes.decay == DecayKind::channel ||
                       axes.preconditioner != PreconditionerChoice::none || is_key_norm(axes.gain));
            EXPECT_EQ(!refusal(axes, true).empty(), bad);
            const bool gram = axes.preconditioner == PreconditionerChoice::gram;
            EXPECT_EQ(!refusal(axes, false).empty(), bad || gram);
            ++(bad ? refused : legal);
          }
        }
      }
    }
  }
  EXPECT_EQ(legal, 2 * 4 * 10 * 4 * 4 + 3 * 5 * 4);  // delta and additive; cg
  EXPECT_EQ(legal + refused, 4 * 10 * 4 * 4 * 3);
}

TEST(Axes, RefusalsGiveAReason) {
  MixerAxes axes;
  axes.solve = Solve::cg;
  axes.decay = DecayKind::channel;
  EXPECT_NE(
      message_of([&] { check_axes(axes, false); }).find("[mixer] solve cg with decay channel"),
      std::string::npos);
  axes.decay = DecayKind::none;
  axes.gain = GainKind::kaczmarz;
  EXPECT_NE(message_of([&] { check_axes(axes, false); }).find("solve cg with gain kaczmarz"),
            std::string::npos);
  axes.gain = GainKind::one;
  axes.preconditioner = PreconditionerChoice::atk;
  EXPECT_NE(message_of([&] { check_axes(axes, false); }).find("solve cg with preconditioner atk"),
            std::string::npos);
  axes.solve = Solve::delta;
  axes.preconditioner = PreconditionerChoice::gram;
  EXPECT_NE(message_of([&] { check_axes(axes, false); }).find("gram outside the reference"),
            std::string::npos);
  EXPECT_NO_THROW(check_axes(axes, true));
}

}  // namespace
}  // namespace rankone::recurrence
