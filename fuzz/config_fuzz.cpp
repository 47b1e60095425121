#include "fuzz/fuzz.hpp"
#include "model/config.hpp"
#include "model/model.hpp"

using namespace rankone;

// What is accepted is written so that it reads back as the same, and can be summed up without
// allocating the model.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  for (const bool strict : {false, true}) {
    model::ModelConfig config;
    const bool accepted = fuzz::accepts(
        [&] { config = model::parse_config(fuzz::text_of(data, size), "x", strict); });
    if (!accepted) continue;
    const Json written = model::format_config(config);
    fuzz::expect(model::config_from_json(written, "x", true) == config,
                 "a written configuration is read back");
    if (config.layers.size() <= 8) {
      fuzz::expect(model::summarise(config).parameters > 0, "a model has parameters");
    }
  }
  return 0;
}
