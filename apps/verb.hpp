#pragma once

// A verb of the command line. A file verb_NAME.cpp defines one or more and registers each with a
// namespace-scope `const RegisterVerb`; main() asks every verb to add its subcommand.

#include <CLI/CLI.hpp>
#include <functional>
#include <vector>

namespace rankone::apps {

struct Verb {
  int order;  // position in the help
  // Adds the subcommand with its options to `app`. Its callback does the work and throws Error for
  // bad input (status 2) or Error{Status::failed} where the work itself failed (status 1).
  std::function<void(CLI::App& app)> add;
};

std::vector<Verb>& verbs();

struct RegisterVerb {
  RegisterVerb(int order, std::function<void(CLI::App&)> add) {
    verbs().push_back(Verb{order, std::move(add)});
  }
};

}  // namespace rankone::apps
