# zstd and lz4, whose CMake packages not every distribution has: static, since the wheel carries no shared library.
foreach(name zstd lz4)
  if(NOT TARGET robocache_${name})
    find_path(ROBOCACHE_${name}_INCLUDE_DIR ${name}.h)
    find_library(ROBOCACHE_${name}_LIBRARY NAMES lib${name}.a ${name})
    if(NOT ROBOCACHE_${name}_INCLUDE_DIR OR NOT ROBOCACHE_${name}_LIBRARY)
      message(FATAL_ERROR "${name} was not found. On Debian and Ubuntu: apt install lib${name}-dev")
    endif()
    add_library(robocache_${name} UNKNOWN IMPORTED)
    set_target_properties(robocache_${name} PROPERTIES
      IMPORTED_LOCATION ${ROBOCACHE_${name}_LIBRARY} INTERFACE_INCLUDE_DIRECTORIES ${ROBOCACHE_${name}_INCLUDE_DIR})
  endif()
endforeach()
