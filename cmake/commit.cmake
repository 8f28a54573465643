# cmake -DSOURCE=folder -DHEADER=file -P commit.cmake: writes a header that names the commit of the folder. Run by the
# build, not by the configuration, which is rarely repeated.
execute_process(COMMAND git rev-parse --short=12 HEAD WORKING_DIRECTORY ${SOURCE}
                OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE no_git)
if(no_git)
  set(commit unknown)
  if(EXISTS ${SOURCE}/.carry/commit)  # a copy of the tree without .git, see tools/carry
    file(STRINGS ${SOURCE}/.carry/commit commit LIMIT_COUNT 1)
  endif()
endif()
file(CONFIGURE OUTPUT ${HEADER} CONTENT "#define ROBOCACHE_COMMIT \"${commit}\"\n")
