# Compiles through ccache where it is installed.
find_program(DFLASH_CCACHE ccache)
if(DFLASH_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${DFLASH_CCACHE})
endif()
