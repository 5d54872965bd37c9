# What `cmake --install` puts where: the library, its headers, and the packages by which CMake
# (find_package(flashwok)) and pkg-config (flashwok.pc) find them. Both can be moved as a whole.
include(CMakePackageConfigHelpers)
set(FLASHWOK_CMAKE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/flashwok)
set(FLASHWOK_PC_DIR ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

install(TARGETS flashwok EXPORT flashwok
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
  RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/flashwok
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(EXPORT flashwok NAMESPACE flashwok:: FILE flashwokTargets.cmake
  DESTINATION ${FLASHWOK_CMAKE_DIR})

configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/flashwokConfig.cmake.in
  ${PROJECT_BINARY_DIR}/flashwokConfig.cmake INSTALL_DESTINATION ${FLASHWOK_CMAKE_DIR}
  NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/flashwokConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/flashwokConfig.cmake
              ${PROJECT_BINARY_DIR}/flashwokConfigVersion.cmake
  DESTINATION ${FLASHWOK_CMAKE_DIR})

# flashwok.pc. A static library leaves to its user what it needs itself: Highway, the threads and
# the C++ runtime, which a C linker does not add.
set(PC_REQUIRES_PRIVATE "")
set(PC_LIBS_PRIVATE "")
set(PC_CFLAGS "")
if(BUILD_SHARED_LIBS)
  set(PC_CFLAGS " -DFLASHWOK_SHARED")
else()
  set(PC_REQUIRES_PRIVATE "libhwy")
  set(needs ${CMAKE_CXX_IMPLICIT_LINK_LIBRARIES})
  list(REMOVE_ITEM needs ${CMAKE_C_IMPLICIT_LINK_LIBRARIES})
  if(FLASHWOK_THREADS STREQUAL "openmp")
    list(APPEND needs ${OpenMP_CXX_LIB_NAMES})
  elseif(FLASHWOK_THREADS STREQUAL "std")
    list(APPEND needs pthread)
  endif()
  list(REMOVE_DUPLICATES needs)
  list(TRANSFORM needs PREPEND "-l")
  list(JOIN needs " " PC_LIBS_PRIVATE)
endif()
file(RELATIVE_PATH PC_PREFIX "${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig" "${CMAKE_INSTALL_PREFIX}")
string(REGEX REPLACE "/$" "" PC_PREFIX "${PC_PREFIX}")
set(PC_LIBDIR "\${prefix}")
set(PC_INCLUDEDIR "\${prefix}")
cmake_path(APPEND PC_LIBDIR "${CMAKE_INSTALL_LIBDIR}")
cmake_path(APPEND PC_INCLUDEDIR "${CMAKE_INSTALL_INCLUDEDIR}")
configure_file(${PROJECT_SOURCE_DIR}/cmake/flashwok.pc.in ${PROJECT_BINARY_DIR}/flashwok.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/flashwok.pc DESTINATION ${FLASHWOK_PC_DIR})
