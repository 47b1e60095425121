# One static library per layer. Including upward is what tests/layering checks.

add_library(rankone_options INTERFACE)
target_compile_features(rankone_options INTERFACE cxx_std_20)
target_include_directories(rankone_options INTERFACE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/include)
set(rankone_host_flags
  -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion
  $<$<BOOL:${RANKONE_WERROR}>:-Werror>
  # GCC 12 warns of overlapping copies inside std::string operator+ (its bug 105651).
  $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>
  # Fixed results for every optimisation level: no contraction or reassociation behind our back. The
  # vector kernels ask for what they want, file by file.
  -ffp-contract=off)
target_compile_options(rankone_options INTERFACE "$<$<COMPILE_LANGUAGE:C,CXX>:${rankone_host_flags}>")
if(RANKONE_SANITIZE)
  target_compile_options(rankone_options INTERFACE
    "$<$<COMPILE_LANGUAGE:C,CXX>:-fsanitize=${RANKONE_SANITIZE};-fno-omit-frame-pointer;-fno-sanitize-recover=all>")
  target_link_options(rankone_options INTERFACE -fsanitize=${RANKONE_SANITIZE})
endif()
if(RANKONE_CUDA)
  target_compile_definitions(rankone_options INTERFACE RANKONE_WITH_CUDA)
endif()
# rankone_layer(NAME [DEPENDS lib...]): the library rankone_NAME from all .cpp files of the folder and of
# its subfolders axes, reference and cpu, and cuda in a build with CUDA.
function(rankone_layer name)
  cmake_parse_arguments(ARG "" "" "DEPENDS" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS *.cpp axes/*.cpp reference/*.cpp cpu/*.cpp)
  if(RANKONE_CUDA)
    file(GLOB cuda_sources CONFIGURE_DEPENDS cuda/*.cu cuda/*.cpp)
    list(APPEND sources ${cuda_sources})
  endif()
  if(NOT sources)
    add_library(rankone_${name} INTERFACE)
    target_link_libraries(rankone_${name} INTERFACE rankone_options ${ARG_DEPENDS})
    return()
  endif()
  add_library(rankone_${name} STATIC ${sources})
  set_target_properties(rankone_${name} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  target_link_libraries(rankone_${name} PUBLIC rankone_options ${ARG_DEPENDS})
  # The layers that parse files tell libFuzzer which code an input reached; the kernels need not.
  if(RANKONE_FUZZ AND name MATCHES "^(core|data|model|train)$")
    target_compile_options(rankone_${name} PRIVATE -fsanitize=fuzzer-no-link)
  endif()
endfunction()

# Compiles every source of cpu/isa/ once per instruction set into rankone_NAME, with RANKONE_ISA naming
# the namespace (core/simd.hpp). Contraction is on: a vector kernel wants fused multiply-adds.
function(rankone_isa_sources name)
  file(GLOB sources CONFIGURE_DEPENDS cpu/isa/*.cpp)
  set(flags_baseline "")
  set(flags_avx2 "-mavx2;-mfma;-mf16c")
  set(flags_avx512 "-mavx512f;-mavx512bw;-mavx512dq;-mavx512vl;-mfma;-mf16c;-mprefer-vector-width=512")
  # Both fuse a * b + c wherever it stands in one expression. Clang's `fast` fuses across statements too,
  # as its optimiser finds them, so that two loops over the same sum would differ in bits.
  set(contract fast)
  if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    set(contract on)
  endif()
  set(sets baseline)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    list(APPEND sets avx2 avx512)
  endif()
  rankone_compile_for("${sets}" "${sources}")
  # Those on tiles of a matrix unit, in cpu/tiles/ (core/tiles.hpp): for AMX, and with the tiles in
  # software, beside the same vectors and beside the plainest.
  file(GLOB sources CONFIGURE_DEPENDS cpu/tiles/*.cpp)
  set(flags_amx_baseline "")
  set(sets amx_baseline)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    set(flags_amx_emulated "${flags_avx512};-mavx512bf16")
    set(flags_amx "${flags_amx_emulated};-DRANKONE_TILES_AMX")
    list(APPEND sets amx_emulated amx)
  endif()
  rankone_compile_for("${sets}" "${sources}")
endfunction()

# Of rankone_isa_sources(): every source once for each of the sets, whose flags are in flags_SET.
macro(rankone_compile_for sets sources)
  # The unrolled kernels under -O3 and a sanitizer take minutes to compile and find nothing more.
  set(optimise -O3)
  if(RANKONE_SANITIZE)
    set(optimise -O1)
  endif()
  foreach(source ${sources})
    get_filename_component(base ${source} NAME_WE)
    foreach(isa ${sets})
      set(wrapper ${CMAKE_CURRENT_BINARY_DIR}/isa/${base}_${isa}.cpp)
      file(GENERATE OUTPUT ${wrapper} CONTENT "#include \"${source}\"\n")
      set_source_files_properties(${wrapper} PROPERTIES COMPILE_OPTIONS
        "${flags_${isa}};${optimise};-ffp-contract=${contract};-fno-trapping-math;-fno-math-errno;-DRANKONE_ISA=${isa}")
      target_sources(rankone_${name} PRIVATE ${wrapper})
    endforeach()
  endforeach()
endmacro()

# rankone_test(NAME [DEPENDS lib...]): one GoogleTest program from all .cpp files of the folder.
function(rankone_test name)
  cmake_parse_arguments(ARG "" "" "DEPENDS" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS *.cpp)
  if(NOT sources)
    return()
  endif()
  add_executable(rankone_${name}_test ${sources})
  target_include_directories(rankone_${name}_test PRIVATE ${PROJECT_BINARY_DIR}/generated ${PROJECT_SOURCE_DIR}/tests)
  target_link_libraries(rankone_${name}_test PRIVATE ${ARG_DEPENDS} GTest::gtest GTest::gtest_main)
  if(NOT name MATCHES "^(core|documents|layering|nn)$")  # the rest may run the program
    add_dependencies(rankone_${name}_test rankone)
  endif()
  gtest_discover_tests(rankone_${name}_test TEST_PREFIX ${RANKONE_TEST_PREFIX}${name}. DISCOVERY_MODE PRE_TEST
    DISCOVERY_TIMEOUT 60 NO_PRETTY_VALUES PROPERTIES TIMEOUT 600)
endfunction()

# rankone_fuzz(NAME [DEPENDS lib...]): the fuzz target NAME_fuzz from NAME_fuzz.cpp, with its seeds in
# corpus/NAME, and the test fuzz.NAME. With RANKONE_FUZZ it is a libFuzzer program that the test runs for
# RANKONE_FUZZ_SECONDS (inputs that reach new code go into the build folder). Otherwise replay_main.cpp
# runs it over the seeds, their prefixes and damaged copies, so every compiler tests the parsers.
function(rankone_fuzz name)
  cmake_parse_arguments(ARG "" "" "DEPENDS" ${ARGN})
  set(target ${name}_fuzz)
  set(test ${RANKONE_TEST_PREFIX}fuzz.${name})
  set(corpus ${CMAKE_CURRENT_SOURCE_DIR}/corpus/${name})
  add_executable(${target} ${target}.cpp)
  target_link_libraries(${target} PRIVATE ${ARG_DEPENDS})
  add_dependencies(fuzzers ${target})
  if(NOT RANKONE_FUZZ)
    target_sources(${target} PRIVATE replay_main.cpp)
    add_test(NAME ${test} COMMAND ${target} ${corpus})
    set_tests_properties(${test} PROPERTIES TIMEOUT 300 LABELS fuzz)
    return()
  endif()
  target_compile_options(${target} PRIVATE -fsanitize=fuzzer)
  target_link_options(${target} PRIVATE -fsanitize=fuzzer)
  set(found ${CMAKE_CURRENT_BINARY_DIR}/corpus/${name})
  file(MAKE_DIRECTORY ${found})
  add_test(NAME ${test} COMMAND ${target} -max_total_time=${RANKONE_FUZZ_SECONDS} -timeout=10
    -rss_limit_mb=2048 -max_len=65536 -print_final_stats=1 -artifact_prefix=${CMAKE_CURRENT_BINARY_DIR}/
    ${found} ${corpus})
  math(EXPR limit "${RANKONE_FUZZ_SECONDS} + 120")
  set_tests_properties(${test} PROPERTIES TIMEOUT ${limit} LABELS fuzz)
endfunction()
