# The CUDA runtime's headers and library: from the pinned wheels, or from an installed CUDA toolkit.
#
# Wheels of CUDA 13 share one folder, nvidia/cu13; those of CUDA 12 have one each (nvidia/cuda_runtime,
# nvidia/cuda_nvrtc, nvidia/cublas), and all of their folders are searched and passed on.
#
#   DFLASH_VENV       virtual environment with the wheels of third_party/requirements.txt (default: .venv)
#   DFLASH_CUDA_ROOT  a CUDA toolkit to use instead, with include/ and lib64/
#
# Defines dflash::cudart and CudaWheel_VERSION. The program starts without a driver: libcuda is never linked.
set(DFLASH_VENV "${PROJECT_SOURCE_DIR}/.venv" CACHE PATH "Virtual environment with the pinned wheels")
set(DFLASH_CUDA_ROOT "" CACHE PATH "CUDA toolkit to use instead of the wheels")

file(GLOB _site_packages LIST_DIRECTORIES true "${DFLASH_VENV}/lib/python3*/site-packages")
list(LENGTH _site_packages _n)
if(_n GREATER 0)
  list(GET _site_packages 0 _site_packages)
endif()
set(DFLASH_SITE_PACKAGES "${_site_packages}" CACHE INTERNAL "")

if(DFLASH_CUDA_ROOT)
  set(_hints_include "${DFLASH_CUDA_ROOT}/include")
  set(_hints_lib "${DFLASH_CUDA_ROOT}/lib64" "${DFLASH_CUDA_ROOT}/lib")
else()
  set(_nvidia "${DFLASH_SITE_PACKAGES}/nvidia")
  set(_hints_include ${_nvidia}/cu13/include ${_nvidia}/cuda_runtime/include)
  set(_hints_lib ${_nvidia}/cu13/lib ${_nvidia}/cuda_runtime/lib)
endif()
find_path(CudaWheel_INCLUDE_DIR cuda_runtime_api.h PATHS ${_hints_include} NO_DEFAULT_PATH)
find_file(CudaWheel_CUDART NAMES libcudart.so.13 libcudart.so.12 libcudart.so PATHS ${_hints_lib} NO_DEFAULT_PATH)
set(_include_dirs ${CudaWheel_INCLUDE_DIR})
set(_lib_dirs)
if(_nvidia AND CudaWheel_INCLUDE_DIR MATCHES "/nvidia/cuda_runtime/include$")
  foreach(_part cuda_nvrtc cublas)
    if(EXISTS ${_nvidia}/${_part}/include)
      list(APPEND _include_dirs ${_nvidia}/${_part}/include)
      list(APPEND _lib_dirs ${_nvidia}/${_part}/lib)
    endif()
  endforeach()
endif()

set(CudaWheel_VERSION "")
if(CudaWheel_INCLUDE_DIR)
  file(STRINGS "${CudaWheel_INCLUDE_DIR}/cuda_runtime_api.h" _version REGEX "^#define CUDART_VERSION +[0-9]+")
  if(_version MATCHES "([0-9]+)$")  # 1000 * major + 10 * minor
    math(EXPR _major "${CMAKE_MATCH_1} / 1000")
    math(EXPR _minor "${CMAKE_MATCH_1} % 1000 / 10")
    set(CudaWheel_VERSION "${_major}.${_minor}")
  endif()
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(CudaWheel
  REQUIRED_VARS CudaWheel_INCLUDE_DIR CudaWheel_CUDART
  VERSION_VAR CudaWheel_VERSION
  REASON_FAILURE_MESSAGE "run tools/setup, or give -DDFLASH_VENV=DIR or -DDFLASH_CUDA_ROOT=DIR")
if(CudaWheel_FOUND AND NOT TARGET dflash::cudart)
  add_library(dflash::cudart INTERFACE IMPORTED)
  target_include_directories(dflash::cudart SYSTEM INTERFACE ${_include_dirs})
  target_link_libraries(dflash::cudart INTERFACE ${CudaWheel_CUDART})
  get_filename_component(_dir ${CudaWheel_CUDART} DIRECTORY)
  # RPATH, not RUNPATH: what is loaded does not depend on LD_LIBRARY_PATH.
  list(TRANSFORM _lib_dirs PREPEND "-Wl,-rpath,")
  target_link_options(dflash::cudart INTERFACE -Wl,--disable-new-dtags -Wl,-rpath,${_dir} ${_lib_dirs})
endif()
