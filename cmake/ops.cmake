# How every target here is compiled, and how an op's files become one library.

# An op's cpu/simd.cpp is compiled once for each of these, best first. All of them have a hardware fma.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(ROBOCACHE_SIMD_TARGETS avx512 avx2)
  set(simd_flags_avx512 -march=skylake-avx512)
  set(simd_flags_avx2 -march=haswell)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
  set(ROBOCACHE_SIMD_TARGETS neon)
endif()
list(TRANSFORM ROBOCACHE_SIMD_TARGETS REPLACE "(.+)" "X(\\1)" OUTPUT_VARIABLE ROBOCACHE_SIMD_LIST)
list(JOIN ROBOCACHE_SIMD_LIST " " ROBOCACHE_SIMD_LIST)

# Equal bits everywhere: nothing may contract a * b + c, on the host or on the device.
# Nobody sees exception flags (core/float_environment.h), and unless told so GCC makes no vectors of floor.
# Nobody replaces our exported functions at run time, so GCC may inline them into each other.
set(host_flags -ffp-contract=off -fno-trapping-math -fno-semantic-interposition -Wall -Wextra)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  list(APPEND host_flags -Wno-restrict)  # GCC 12 warns of every "text" + std::string (its bug 105651)
endif()
list(JOIN host_flags "," nvcc_host_flags)

function(robocache_compile_options target)
  target_compile_options(${target} PRIVATE
    "$<$<COMPILE_LANGUAGE:CXX>:${host_flags}>"
    "$<$<COMPILE_LANGUAGE:CUDA>:--fmad=false;--expt-relaxed-constexpr;-Xcompiler=${nvcc_host_flags}>")
  if(ROBOCACHE_WERROR)
    target_compile_options(${target} PRIVATE
      $<$<COMPILE_LANGUAGE:CXX>:-Werror> $<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings>)
  endif()
  target_include_directories(${target} PRIVATE
    ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src ${PROJECT_BINARY_DIR}/generated)
endfunction()

# Objects, not sources of robocache itself: so its link language stays C++, and whoever links it needs no nvcc.
function(robocache_add_objects target)
  add_library(${target} OBJECT ${ARGN})
  robocache_compile_options(${target})
  target_sources(robocache PRIVATE $<TARGET_OBJECTS:${target}>)
endfunction()

# Files in a folder named *_sm90 hold kernels that are launched on Hopper only, so they are compiled for it alone.
function(robocache_add_cuda name)
  set(files ${ARGN})
  if(NOT ROBOCACHE_WITH_CUDA OR NOT files)
    return()
  endif()
  if(CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 13.0)
    # nvcc puts a hash of the source's absolute path into the names of kernels in anonymous namespaces. With a relative path
    # the same sources give the same bytes in every checkout.
    foreach(file IN LISTS files)
      cmake_path(RELATIVE_PATH file BASE_DIRECTORY ${PROJECT_SOURCE_DIR} OUTPUT_VARIABLE relative)
      set_property(SOURCE ${file} APPEND PROPERTY COMPILE_OPTIONS -Xcudafe=--orig_src_path_name,${relative})
    endforeach()
  endif()
  set(targets robocache_${name}_cuda)
  if(name STREQUAL "attention" AND "90-real" IN_LIST CMAKE_CUDA_ARCHITECTURES)
    # wgmma exists only in code for this very GPU.
    list(TRANSFORM CMAKE_CUDA_ARCHITECTURES REPLACE "^90-real$" "90a-real" OUTPUT_VARIABLE CMAKE_CUDA_ARCHITECTURES)
    set(hopper ${files})
    list(FILTER hopper INCLUDE REGEX "_sm90/")
    list(FILTER files EXCLUDE REGEX "_sm90/")
    robocache_add_objects(robocache_${name}_sm90_cuda ${hopper})
    set_target_properties(robocache_${name}_sm90_cuda PROPERTIES CUDA_ARCHITECTURES 90a-real)
    list(APPEND targets robocache_${name}_sm90_cuda)
  endif()
  robocache_add_objects(robocache_${name}_cuda ${files})
  foreach(target IN LISTS targets)
    if("90a-real" IN_LIST CMAKE_CUDA_ARCHITECTURES)
      target_compile_definitions(${target} PRIVATE ROBOCACHE_WITH_WGMMA)
    endif()
    if(ROBOCACHE_ALL_ARCHITECTURES)
      target_compile_options(${target} PRIVATE --threads=0)
      if(CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 13.0)  # drivers for CUDA before 12.4 cannot unpack it
        target_compile_options(${target} PRIVATE --compress-mode=size)
      endif()
    endif()
  endforeach()
endfunction()

# src/ops/<op>/: cpu/simd.cpp is compiled once for each SIMD target, cuda/*.cu with CUDA, every other *.cpp once.
function(robocache_add_op op)
  set(folder ${PROJECT_SOURCE_DIR}/src/ops/${op})
  file(GLOB plain CONFIGURE_DEPENDS ${folder}/*.cpp ${folder}/cpu/*.cpp)
  file(GLOB_RECURSE cuda CONFIGURE_DEPENDS ${folder}/cuda/*.cu)
  list(REMOVE_ITEM plain ${folder}/cpu/simd.cpp)
  target_sources(robocache PRIVATE ${plain})
  robocache_add_cuda(${op} ${cuda})

  file(GLOB simd CONFIGURE_DEPENDS ${folder}/cpu/simd.cpp)
  if(simd)
    foreach(simd_target IN LISTS ROBOCACHE_SIMD_TARGETS)
      set(objects robocache_${op}_${simd_target})
      robocache_add_objects(${objects} ${simd})
      target_compile_options(${objects} PRIVATE ${simd_flags_${simd_target}})
      target_include_directories(${objects} SYSTEM PRIVATE ${HIGHWAY_INCLUDE_DIR})
      # Header-only: its debug assertions would need the library.
      target_compile_definitions(${objects} PRIVATE ROBOCACHE_SIMD_TARGET=${simd_target} HWY_COMPILE_ONLY_STATIC
                                                    HWY_IS_DEBUG_BUILD=0)
      set_property(GLOBAL APPEND PROPERTY ROBOCACHE_SIMD_OBJECTS $<TARGET_OBJECTS:${objects}>)
    endforeach()
  endif()
endfunction()
