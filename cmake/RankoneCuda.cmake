# CUDA, behind RANKONE_CUDA. The sources of a layer's cuda/ folder belong to its library.
include(CheckLanguage)
check_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER)
  message(FATAL_ERROR "RANKONE_CUDA needs nvcc, found none (put it on PATH or set CUDACXX)")
endif()
set(rankone_cuda_targets OFF)
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  # Machine code for Ampere and Hopper, with Hopper's own instructions, and PTX for what comes after. A
  # GPU takes the nearest: an H200 the code of 90a.
  set(CMAKE_CUDA_ARCHITECTURES 80-real 90a-real 80-virtual)
  set(rankone_cuda_targets ON)  # rankone_cuda_sources() may choose
endif()
enable_language(CUDA)
# CMake 3.25 does not know how to ask this compiler for C++20.
set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
find_package(CUDAToolkit REQUIRED)

# The CUDA sources of rankone_NAME, of which only those in HOPPER have code for Hopper's own instructions.
# The rest is compiled once, and both machine codes are made from that: half of the time.
function(rankone_cuda_sources name)
  cmake_parse_arguments(ARG "" "" "HOPPER" ${ARGN})
  if(NOT rankone_cuda_targets)
    return()
  endif()
  set(ampere arch=compute_80,code=sm_80 arch=compute_80,code=compute_80)
  get_target_property(sources rankone_${name} SOURCES)
  list(FILTER sources INCLUDE REGEX "\\.cu$")
  foreach(source ${sources})
    set(targets ${ampere} arch=compute_80,code=sm_90)
    if(source IN_LIST ARG_HOPPER)
      set(targets ${ampere} arch=compute_90a,code=sm_90a)
    endif()
    list(TRANSFORM targets PREPEND --generate-code=)
    set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "${targets}")
  endforeach()
  set_target_properties(rankone_${name} PROPERTIES CUDA_ARCHITECTURES OFF)
endfunction()
