# Run by ctest (see install.cmake). Any command that fails ends it.
function(run)
  execute_process(COMMAND ${ARGV} COMMAND_ECHO STDOUT COMMAND_ERROR_IS_FATAL ANY)
endfunction()

set(PREFIX "${WORK_DIR}/prefix")
file(REMOVE_RECURSE "${WORK_DIR}")
run("${CMAKE_COMMAND}" --install "${BUILD_DIR}" --config "${CONFIG}" --prefix "${PREFIX}")

# Nothing installed leads back to this checkout.
file(GLOB_RECURSE packages "${PREFIX}/${LIBDIR}/*.cmake" "${PREFIX}/${LIBDIR}/*.pc")
foreach(package ${packages})
  file(STRINGS "${package}" lines)
  foreach(line ${lines})
    string(FIND "${line}" "${SOURCE_DIR}" at)
    if(NOT at EQUAL -1)
      message(FATAL_ERROR "${package} names the checkout: ${line}")
    endif()
  endforeach()
endforeach()

# CMake's find_package, in C++ and in C.
run("${CMAKE_COMMAND}" -S "${EXAMPLES}" -B "${WORK_DIR}/examples" -G "${GENERATOR}"
  "-DCMAKE_BUILD_TYPE=${CONFIG}" "-DCMAKE_PREFIX_PATH=${PREFIX}"
  "-DCMAKE_C_COMPILER=${C_COMPILER}" "-DCMAKE_CXX_COMPILER=${CXX_COMPILER}"
  "-DCMAKE_C_FLAGS=${C_FLAGS}" "-DCMAKE_CXX_FLAGS=${CXX_FLAGS}")
run("${CMAKE_COMMAND}" --build "${WORK_DIR}/examples" --config "${CONFIG}" -j 1)
run("${WORK_DIR}/examples/attention_cpp")
run("${WORK_DIR}/examples/attention_c")

# pkg-config, with the C compiler alone.
set(static --static)
set(rpath "")
if(SHARED)
  set(static "")
  set(rpath "-Wl,-rpath,${PREFIX}/${LIBDIR}")
endif()
set(ENV{PKG_CONFIG_PATH} "${PREFIX}/${LIBDIR}/pkgconfig:$ENV{PKG_CONFIG_PATH}")
execute_process(COMMAND "${PKG_CONFIG}" ${static} --cflags --libs flashwok
  OUTPUT_VARIABLE flags OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
separate_arguments(flags UNIX_COMMAND "${flags}")
separate_arguments(c_flags UNIX_COMMAND "${C_FLAGS}")
run("${C_COMPILER}" -std=c11 ${c_flags} "${EXAMPLES}/attention.c" ${flags} -lm ${rpath}
  -o "${WORK_DIR}/attention_pkg_config")
run("${WORK_DIR}/attention_pkg_config")

if(CLI)
  run("${PREFIX}/${BINDIR}/flashwok" info)
endif()
