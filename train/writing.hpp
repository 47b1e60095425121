#pragma once

#include <filesystem>

#include "core/status.hpp"

namespace rankone::train {

// Runs work that writes into the folder of the run. A disk that refuses to be written fails the
// work (Status::failed); it is not the user's input that is wrong.
template <class Work>
auto writing(const Work& work) {
  try {
    return work();
  } catch (const Error& error) {
    if (error.status() == Status::io) throw Error(Status::failed, error.what());
    throw;
  } catch (const std::filesystem::filesystem_error& error) {
    throw Error(Status::failed, error.what());
  }
}

}  // namespace rankone::train
