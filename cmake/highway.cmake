# Highway as the target PkgConfig::FLASHWOK_HWY. A build for another machine takes the headers of
# this one alone, and the one instruction set that the compiler's flags name: nothing is linked.
find_package(PkgConfig REQUIRED)
if(CMAKE_CROSSCOMPILING)
  find_path(FLASHWOK_HWY_HEADERS hwy/highway.h PATHS /usr/local/include /usr/include REQUIRED
            NO_CMAKE_FIND_ROOT_PATH)
  # A folder of its own, so that no other header of this machine is found.
  file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/highway)
  file(CREATE_LINK ${FLASHWOK_HWY_HEADERS}/hwy ${CMAKE_BINARY_DIR}/highway/hwy SYMBOLIC)
  add_library(PkgConfig::FLASHWOK_HWY INTERFACE IMPORTED GLOBAL)
  target_include_directories(PkgConfig::FLASHWOK_HWY INTERFACE ${CMAKE_BINARY_DIR}/highway)
  target_compile_definitions(PkgConfig::FLASHWOK_HWY INTERFACE HWY_COMPILE_ONLY_STATIC)
else()
  pkg_check_modules(FLASHWOK_HWY REQUIRED IMPORTED_TARGET GLOBAL libhwy)
endif()
