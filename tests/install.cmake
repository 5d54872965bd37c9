# The test `install`: what is built, installed into an empty prefix and used from there by the
# programs of examples/cpp.
add_test(NAME install COMMAND ${CMAKE_COMMAND}
  "-DBUILD_DIR=${PROJECT_BINARY_DIR}"
  "-DCONFIG=$<CONFIG>"
  "-DEXAMPLES=${PROJECT_SOURCE_DIR}/examples/cpp"
  "-DSOURCE_DIR=${PROJECT_SOURCE_DIR}"
  "-DWORK_DIR=${CMAKE_CURRENT_BINARY_DIR}/install_test"
  "-DGENERATOR=${CMAKE_GENERATOR}"
  "-DC_COMPILER=${CMAKE_C_COMPILER}"
  "-DCXX_COMPILER=${CMAKE_CXX_COMPILER}"
  "-DC_FLAGS=${CMAKE_C_FLAGS}"
  "-DCXX_FLAGS=${CMAKE_CXX_FLAGS}"
  "-DLIBDIR=${CMAKE_INSTALL_LIBDIR}"
  "-DBINDIR=${CMAKE_INSTALL_BINDIR}"
  "-DPKG_CONFIG=${PKG_CONFIG_EXECUTABLE}"
  "-DSHARED=${BUILD_SHARED_LIBS}"
  "-DCLI=${FLASHWOK_CLI}"
  -P ${CMAKE_CURRENT_SOURCE_DIR}/install_test.cmake)
set_tests_properties(install PROPERTIES LABELS install TIMEOUT 300)
