#pragma once

// A folder for one test, empty at its start and gone at its end.

#include "core/temporary_folder.hpp"

namespace rankone::test {

class Scratch : public TemporaryFolder {
 public:
  Scratch() : TemporaryFolder("test") {}
};

}  // namespace rankone::test
