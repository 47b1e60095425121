// Lists that documents repeat from the code are complete.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cctype>
#include <string>

#include "layering/source_tree.hpp"
#include "recurrence/presets.hpp"
#ifndef RANKONE_PORTABLE
#include <nlohmann/json.hpp>

#include "model/config.hpp"
#include "train/config.hpp"
#endif

namespace rankone::test {
namespace {

// Surrounded by anything that is no part of a name.
bool mentions(const std::string& text, std::string_view word) {
  const auto part = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; };
  for (std::size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) {
    const std::size_t end = at + word.size();
    if ((at == 0 || !part(text[at - 1])) && (end == text.size() || !part(text[end]))) return true;
  }
  return false;
}

TEST(Lists, ReadmeHasEveryPresetWithItsAxes) {
  const std::string readme = read_text(source_dir() / "README.md");
  for (const recurrence::MixerPreset& preset : recurrence::presets()) {
    const recurrence::MixerAxes& axes = preset.axes;
    const std::string row = fmt::format(
        "\n| {} | {} | {} | {} | {} | ", preset.name, recurrence::choice_name(axes.decay),
        recurrence::choice_name(axes.gain), recurrence::choice_name(axes.preconditioner),
        recurrence::choice_name(axes.solve));
    EXPECT_NE(readme.find(row), std::string::npos) << row;
  }
}

#ifndef RANKONE_PORTABLE
TEST(Lists, FormatsHasEveryMixerKey) {
  const std::string formats = read_text(source_dir() / "docs/formats.md");
  ASSERT_GT(model::mixer_keys().size(), 30U);
  for (const std::string_view key : model::mixer_keys()) {
    EXPECT_TRUE(mentions(formats, key)) << key;
  }
  EXPECT_FALSE(mentions(formats, "no_such_key"));
}

TEST(Lists, FormatsHasEveryTrainingKey) {
  const std::string formats = read_text(source_dir() / "docs/formats.md");
  const nlohmann::json defaults = train::to_json(train::TrainConfig());
  for (const auto& item : defaults.items()) {
    EXPECT_TRUE(mentions(formats, item.key())) << item.key();
  }
}
#endif

}  // namespace
}  // namespace rankone::test
