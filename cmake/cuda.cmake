# The CUDA kernels. nvcc is CMAKE_CUDA_COMPILER, the system's, or the one that `make cuda-toolkit`
# puts into the build folder.
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 80-real 90a-real)
endif()
if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  find_program(CMAKE_CUDA_COMPILER nvcc
    PATHS ${PROJECT_SOURCE_DIR}/build/cuda-toolkit/nvidia/cu13/bin /usr/local/cuda/bin REQUIRED)
endif()
enable_language(CUDA)

# The wgmma instructions of the tiles that the kernels use.
set(FLASHWOK_WGMMA ${PROJECT_BINARY_DIR}/generated/cuda/ptx/wgmma.cuh)
find_package(Python3 REQUIRED COMPONENTS Interpreter)
add_custom_command(
  OUTPUT ${FLASHWOK_WGMMA}
  COMMAND ${CMAKE_COMMAND} -E make_directory ${PROJECT_BINARY_DIR}/generated/cuda/ptx
  COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tools/generate_wgmma.py ${FLASHWOK_WGMMA}
          64 80 96 112 128 144 160 176 192 256
  DEPENDS ${PROJECT_SOURCE_DIR}/tools/generate_wgmma.py)

file(GLOB FLASHWOK_CUDA_SOURCES CONFIGURE_DEPENDS cuda/*.cc cuda/instances/*.cu)
list(APPEND FLASHWOK_SOURCES ${FLASHWOK_CUDA_SOURCES} ${FLASHWOK_WGMMA})
set_source_files_properties(${FLASHWOK_CUDA_SOURCES} PROPERTIES
  INCLUDE_DIRECTORIES "${PROJECT_BINARY_DIR}/generated;${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES}")
# Registers, shared memory and spills of each kernel stand in the build's log and in the objects.
add_compile_options($<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr>)
