// The command line: one verb a file, registered by itself (apps/verb.hpp).

#include <algorithm>
#include <cstdio>
#include <exception>
#include <new>

#include "apps/verb.hpp"
#include "core/status.hpp"

namespace rankone::apps {

std::vector<Verb>& verbs() {
  static std::vector<Verb> list;
  return list;
}

namespace {

// 1: the work failed. 2: wrong usage or bad input.
int exit_status(Status status) { return status == Status::failed ? 1 : 2; }

int run(int argc, char** argv) {
  CLI::App app("rankone: delta-rule sequence models, from equation to served text", "rankone");
  app.require_subcommand(1);
  app.set_version_flag("--version", RANKONE_VERSION);
  std::stable_sort(verbs().begin(), verbs().end(),
                   [](const Verb& a, const Verb& b) { return a.order < b.order; });
  for (const Verb& verb : verbs()) verb.add(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& request) {  // --help, --version
    return app.exit(request);
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "rankone: %s (see rankone --help)\n", error.what());
    return 2;
  } catch (const Error& error) {
    std::fprintf(stderr, "rankone: %s\n", error.what());
    return exit_status(error.status());
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "rankone: out of memory\n");
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rankone: %s\n", error.what());
    return 2;
  }
  return 0;
}

}  // namespace
}  // namespace rankone::apps

int main(int argc, char** argv) { return rankone::apps::run(argc, argv); }
