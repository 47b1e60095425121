#pragma once

// RANKONE_CUDA_PATH=mma|sm90a forces one family of kernels where both run, for tests and
// comparisons: mma are those of compute capability 8.0, sm90a those of Hopper.

namespace rankone::recurrence::cuda {

enum class Path { best, mma, sm90a };

// What the environment asks for, read once; best where it says nothing. Fails with
// invalid_argument for any other word.
Path requested_path();

// Whether the current GPU runs the kernels of sm90a and this build has them (90a is among its
// CMAKE_CUDA_ARCHITECTURES). The emulation does.
bool has_sm90a();

// The family to use where both can do a call: the requested one, else the best. Fails with
// Status::unsupported where sm90a is asked for and has_sm90a() is false.
Path chosen_path();

}  // namespace rankone::recurrence::cuda
