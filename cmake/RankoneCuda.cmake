# CUDA, behind RANKONE_CUDA. The sources of a layer's cuda/ folder belong to its library.
include(CheckLanguage)
check_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER)
  message(FATAL_ERROR "RANKONE_CUDA needs nvcc, found none (put it on PATH or set CUDACXX)")
endif()
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  # Machine code for Ampere and Hopper, with Hopper's own instructions, and PTX for what comes after. A
  # GPU takes the nearest: an H200 the code of 90a.
  set(CMAKE_CUDA_ARCHITECTURES 80-real 90a-real 80-virtual)
endif()
enable_language(CUDA)
# CMake 3.25 does not know how to ask this compiler for C++20.
set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
find_package(CUDAToolkit REQUIRED)
