#pragma once

// Marks what host code and kernels share: the equations of recurrence/axes. Such a function uses
// nothing but its arguments and <cmath>, and allocates, throws and prints nothing.

#if defined(__CUDACC__)
#define RANKONE_HOST_DEVICE __host__ __device__
#else
#define RANKONE_HOST_DEVICE
#endif
