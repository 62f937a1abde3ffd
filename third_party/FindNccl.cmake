# NCCL's header and library: from the pinned wheels, or from an installed NCCL.
#
#   DFLASH_NCCL_ROOT  an NCCL to use instead, with include/ and lib/
#
# Defines dflash::nccl and Nccl_VERSION. The program starts without a GPU driver: NCCL itself opens libcuda.
set(DFLASH_NCCL_ROOT "" CACHE PATH "NCCL to use instead of the wheels")

if(DFLASH_NCCL_ROOT)
  set(_root "${DFLASH_NCCL_ROOT}")
else()
  set(_root "${DFLASH_SITE_PACKAGES}/nvidia/nccl")
endif()
find_path(Nccl_INCLUDE_DIR nccl.h PATHS ${_root}/include NO_DEFAULT_PATH)
find_file(Nccl_LIBRARY NAMES libnccl.so.2 PATHS ${_root}/lib ${_root}/lib64 NO_DEFAULT_PATH)

set(Nccl_VERSION "")
if(Nccl_INCLUDE_DIR)
  file(STRINGS "${Nccl_INCLUDE_DIR}/nccl.h" _lines REGEX "^#define NCCL_(MAJOR|MINOR|PATCH) +[0-9]+")
  string(REGEX MATCHALL "[0-9]+" _numbers "${_lines}")
  list(JOIN _numbers "." Nccl_VERSION)
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Nccl
  REQUIRED_VARS Nccl_INCLUDE_DIR Nccl_LIBRARY
  VERSION_VAR Nccl_VERSION
  REASON_FAILURE_MESSAGE "run tools/setup, or give -DDFLASH_VENV=DIR or -DDFLASH_NCCL_ROOT=DIR")
if(Nccl_FOUND AND NOT TARGET dflash::nccl)
  add_library(dflash::nccl INTERFACE IMPORTED)
  target_include_directories(dflash::nccl SYSTEM INTERFACE ${Nccl_INCLUDE_DIR})
  target_link_libraries(dflash::nccl INTERFACE ${Nccl_LIBRARY})
  get_filename_component(_dir ${Nccl_LIBRARY} DIRECTORY)
  target_link_options(dflash::nccl INTERFACE -Wl,--disable-new-dtags -Wl,-rpath,${_dir})
endif()
