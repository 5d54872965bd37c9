# The CUDA kernels. nvcc is CMAKE_CUDA_COMPILER, the system's, or the one that `make cuda-toolkit`
# puts into the build folder.
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 80-real 90a-real)
endif()
if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  find_program(CMAKE_CUDA_COMPILER nvcc
    PATHS ${PROJECT_SOURCE_DIR}/build/cuda-toolkit/nvidia/cu13/bin /usr/local/cuda/bin REQUIRED)
endif()
enable_language(CUDA)
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know that nvcc has it
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
endif()

# The wgmma instructions of the tiles that the kernels use.
set(FLASHWOK_WGMMA ${PROJECT_BINARY_DIR}/generated/cuda/ptx/wgmma.cuh)
find_package(Python3 REQUIRED COMPONENTS Interpreter)
add_custom_command(
  OUTPUT ${FLASHWOK_WGMMA}
  COMMAND ${CMAKE_COMMAND} -E make_directory ${PROJECT_BINARY_DIR}/generated/cuda/ptx
  COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tools/generate_wgmma.py ${FLASHWOK_WGMMA}
          64 80 96 112 128 144 160 176 192 256
  DEPENDS ${PROJECT_SOURCE_DIR}/tools/generate_wgmma.py)

# Registers, shared memory and spills of each kernel stand in the build's log and in the objects.
add_compile_options($<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr>)

file(GLOB FLASHWOK_CUDA_SOURCES CONFIGURE_DEPENDS cuda/*.cc cuda/instances/*.cu)
set_source_files_properties(${FLASHWOK_CUDA_SOURCES} PROPERTIES
  INCLUDE_DIRECTORIES "${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES}")
# A build for developers: some instances alone. cuda/config/built.h has what the numbers mean.
if(FLASHWOK_CUDA_HEAD_DIMS)
  set(FLASHWOK_HEAD_DIM_BITS 0)
  foreach(head_dim IN LISTS FLASHWOK_CUDA_HEAD_DIMS)
    if(NOT head_dim MATCHES "^(32|64|96|128|192|256)$")
      message(FATAL_ERROR "FLASHWOK_CUDA_HEAD_DIMS: ${head_dim} is none of 32, 64, 96, 128, 192, 256")
    endif()
    math(EXPR FLASHWOK_HEAD_DIM_BITS "${FLASHWOK_HEAD_DIM_BITS} | (1 << (${head_dim} / 32))")
  endforeach()
  foreach(file IN LISTS FLASHWOK_CUDA_SOURCES)
    if(file MATCHES "forward_v[123]_([0-9]+)[0-9a-z_]*\\.cu$"
       AND NOT CMAKE_MATCH_1 IN_LIST FLASHWOK_CUDA_HEAD_DIMS)
      list(REMOVE_ITEM FLASHWOK_CUDA_SOURCES ${file})
    endif()
  endforeach()
  set_property(SOURCE ${FLASHWOK_CUDA_SOURCES} APPEND PROPERTY COMPILE_DEFINITIONS
               FLASHWOK_CUDA_HEAD_DIMS=${FLASHWOK_HEAD_DIM_BITS})
endif()
if(FLASHWOK_CUDA_DTYPES)
  set(FLASHWOK_DTYPE_BITS 0)
  foreach(dtype IN LISTS FLASHWOK_CUDA_DTYPES)
    if(dtype STREQUAL "float16")
      math(EXPR FLASHWOK_DTYPE_BITS "${FLASHWOK_DTYPE_BITS} | 2")
    elseif(dtype STREQUAL "bfloat16")
      math(EXPR FLASHWOK_DTYPE_BITS "${FLASHWOK_DTYPE_BITS} | 4")
    else()
      message(FATAL_ERROR "FLASHWOK_CUDA_DTYPES: ${dtype} is neither float16 nor bfloat16")
    endif()
  endforeach()
  set_property(SOURCE ${FLASHWOK_CUDA_SOURCES} APPEND PROPERTY COMPILE_DEFINITIONS
               FLASHWOK_CUDA_DTYPES=${FLASHWOK_DTYPE_BITS})
endif()
# V3's instructions are Hopper's alone.
set(FLASHWOK_HOPPER_SOURCES ${FLASHWOK_CUDA_SOURCES})
list(FILTER FLASHWOK_HOPPER_SOURCES INCLUDE REGEX "_v3_[0-9a-z_]+\\.cu$")
list(REMOVE_ITEM FLASHWOK_CUDA_SOURCES ${FLASHWOK_HOPPER_SOURCES})
list(APPEND FLASHWOK_SOURCES ${FLASHWOK_CUDA_SOURCES})
add_library(flashwok_hopper OBJECT ${FLASHWOK_HOPPER_SOURCES} ${FLASHWOK_WGMMA})
set_target_properties(flashwok_hopper PROPERTIES CUDA_ARCHITECTURES 90a-real)
target_include_directories(flashwok_hopper PRIVATE ${PROJECT_SOURCE_DIR}/src
  ${PROJECT_SOURCE_DIR}/include ${PROJECT_BINARY_DIR}/generated)
set(FLASHWOK_OBJECTS $<TARGET_OBJECTS:flashwok_hopper>)
if(FLASHWOK_TIMESTAMPS)
  target_compile_definitions(flashwok_hopper PRIVATE FLASHWOK_TIMESTAMPS)
  set_property(SOURCE ${CMAKE_CURRENT_SOURCE_DIR}/cuda/registry.cc APPEND PROPERTY
               COMPILE_DEFINITIONS FLASHWOK_TIMESTAMPS)
endif()
