# rankone_cuda_races_test: kernels and tests once more, with each access to memory looked at by
# core/cuda_emulation/races.hpp. -fsanitize=thread makes the compiler call it; the compiler's own runtime is
# not linked, and the emulation itself is not looked at. A part of the tests that has every kernel, both
# paths of the chunk kernels.
if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU" OR RANKONE_SANITIZE)
  message(FATAL_ERROR "RANKONE_RACES needs GCC and no sanitizer")
endif()
set(watched -fsanitize=thread -O2 -g1)
add_library(rankone_cuda_races_runtime STATIC ${emulation})
target_link_libraries(rankone_cuda_races_runtime PUBLIC rankone_options ${CMAKE_DL_LIBS})
target_compile_definitions(rankone_cuda_races_runtime PUBLIC RANKONE_CUDA_EMULATION RANKONE_RACES)
add_library(rankone_cuda_races STATIC ${kernels} ${host_sides})
target_link_libraries(rankone_cuda_races PUBLIC rankone_recurrence rankone_cuda_races_runtime)
target_compile_options(rankone_cuda_races PRIVATE ${watched})
add_executable(rankone_cuda_races_test ${sources})
target_compile_options(rankone_cuda_races_test PRIVATE ${watched})
target_include_directories(rankone_cuda_races_test
  PRIVATE ${PROJECT_BINARY_DIR}/generated ${PROJECT_SOURCE_DIR}/tests)
target_link_libraries(rankone_cuda_races_test
  PRIVATE rankone_cuda_races rankone_cases rankone_golden GTest::gtest GTest::gtest_main)
add_dependencies(cuda rankone_cuda_races_test)

set(cases)
foreach(name packed_bf16 packed_f32 packed_channel_bf16 packed_channel_f16 packed_channel_f32
    width_128_bf16 width_128_channel_bf16 width_256_bf16 width_256_scalar_bf16 width_48_bf16
    grouped_2_f16 grouped_8_channel_bf16 none_bf16 two_keys_none_bf16 two_keys_scalar_bf16
    two_keys_channel_bf16 additive_none_bf16 additive_scalar_bf16 additive_channel_f16
    gain_up_to_two_bf16 correlated_near_two_bf16 t7_minus_5_short_f16 width_7_by_3_bf16)
  string(APPEND cases ":*CudaCases*/${name}")
endforeach()
set(others "Races.*:Step.*:ChunkSplit.*:ChunkNarrow*.*:Cluster.*:CudaRows.*:CudaMesaEdges.*:CudaLonghornEdges.*")
string(APPEND others ":CudaPreconditionEdges.*:CudaGainEdges.*")
foreach(suite CudaLonghorn CudaMesa CudaPrecondition CudaDecay CudaGain)
  string(APPEND others ":Settings/${suite}.*/0:Settings/${suite}.*/3:Settings/${suite}.*/5:Settings/${suite}.*/8")
endforeach()
foreach(path sm90a mma)
  string(SUBSTRING "${cases}" 1 -1 filter)
  if(path STREQUAL sm90a)
    string(APPEND filter ":${others}")
  endif()
  gtest_discover_tests(rankone_cuda_races_test TEST_PREFIX ${RANKONE_TEST_PREFIX}races.${path}.
    TEST_FILTER ${filter} TEST_LIST races_${path} DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60 NO_PRETTY_VALUES
    PROPERTIES TIMEOUT 600 ENVIRONMENT RANKONE_CUDA_PATH=${path})
endforeach()
