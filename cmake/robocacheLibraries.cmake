# The libraries that robocache is linked with: ZLIB::ZLIB, robocache_zstd and robocache_lz4. The build includes this file, and
# so does the installed package, because a static library leaves its libraries to whoever links it. What is not found is noted
# in robocache_missing; the file that includes this one then says so (robocache_describe_missing).
set(robocache_missing)
set(robocache_missing_packages)

# robocache_check(NAME PACKAGE VARIABLE...): NAME, of Debian's PACKAGE, is missing unless every VARIABLE is true.
macro(robocache_check name package)
  foreach(robocache_variable ${ARGN})
    if(NOT ${robocache_variable} AND NOT "${name}" IN_LIST robocache_missing)
      list(APPEND robocache_missing "${name}")
      list(APPEND robocache_missing_packages "${package}")
    endif()
  endforeach()
endmacro()

# Says what is missing, and which packages of this distribution have it.
function(robocache_describe_missing result)
  list(JOIN robocache_missing ", " names)
  list(JOIN robocache_missing_packages " " packages)
  cmake_host_system_information(RESULT distribution QUERY DISTRIB_INFO)
  if("${distribution_ID} ${distribution_ID_LIKE}" MATCHES "debian|ubuntu")
    set(advice "On ${distribution_PRETTY_NAME}: apt install ${packages}")
  else()
    set(advice "On Debian and Ubuntu: apt install ${packages}; other distributions have packages of similar names. "
               "For libraries in a folder of their own, set CMAKE_PREFIX_PATH to it")
    list(JOIN advice "" advice)
  endif()
  set(${result} "RoboCache needs libraries that were not found: ${names}. ${advice}" PARENT_SCOPE)
endfunction()

find_package(ZLIB QUIET)
robocache_check(zlib zlib1g-dev ZLIB_FOUND)

# Not every distribution has CMake packages of zstd and lz4. Static libraries are preferred: the wheel carries no shared one.
foreach(name zstd lz4)
  if(NOT TARGET robocache_${name})
    find_path(ROBOCACHE_${name}_INCLUDE_DIR ${name}.h)
    find_library(ROBOCACHE_${name}_LIBRARY NAMES lib${name}.a ${name})
    robocache_check(${name} lib${name}-dev ROBOCACHE_${name}_INCLUDE_DIR ROBOCACHE_${name}_LIBRARY)
    add_library(robocache_${name} UNKNOWN IMPORTED)
    set_target_properties(robocache_${name} PROPERTIES
      IMPORTED_LOCATION ${ROBOCACHE_${name}_LIBRARY} INTERFACE_INCLUDE_DIRECTORIES ${ROBOCACHE_${name}_INCLUDE_DIR})
  endif()
endforeach()

# Debian's liblz4.a from 1.10 on calls libxxhash.a.
find_library(ROBOCACHE_xxhash_LIBRARY NAMES libxxhash.a)
if(ROBOCACHE_xxhash_LIBRARY AND ROBOCACHE_lz4_LIBRARY MATCHES "\\.a$")
  set_target_properties(robocache_lz4 PROPERTIES INTERFACE_LINK_LIBRARIES ${ROBOCACHE_xxhash_LIBRARY})
endif()
