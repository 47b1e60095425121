# Installs the C interface below WORK, moves the tree, and builds and runs the example with what
# find_package and what pkg-config say.

function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT status EQUAL 0)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "${command}\nstatus ${status}\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

file(REMOVE_RECURSE ${WORK})
run(${CMAKE_COMMAND} --install ${BUILD} --component capi --prefix ${WORK}/first)
file(RENAME ${WORK}/first ${WORK}/prefix)

run(${CMAKE_COMMAND} -S ${SOURCE}/examples -B ${WORK}/cmake -DCMAKE_PREFIX_PATH=${WORK}/prefix
  -DCMAKE_C_COMPILER=${CC} -G ${GENERATOR} -DCMAKE_MAKE_PROGRAM=${MAKE_PROGRAM})
run(${CMAKE_COMMAND} --build ${WORK}/cmake)
run(${WORK}/cmake/kla_step)
message("${output}")

file(GLOB_RECURSE pc ${WORK}/prefix/rankone.pc)
get_filename_component(pc_dir ${pc} DIRECTORY)
set(ENV{PKG_CONFIG_PATH} ${pc_dir})
run(pkg-config --cflags --libs rankone)
separate_arguments(flags UNIX_COMMAND "${output}")
run(pkg-config --variable=libdir rankone)
string(STRIP "${output}" libdir)
run(${CC} -std=c11 ${SOURCE}/examples/kla_step.c ${flags} -lm -Wl,-rpath,${libdir} -o ${WORK}/kla_step)
run(${WORK}/kla_step)
message("${output}")
