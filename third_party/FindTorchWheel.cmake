# LibTorch, from the pinned torch wheel or from a LibTorch folder.
#
#   DFLASH_VENV       virtual environment with the wheels of third_party/requirements.txt (default: .venv)
#   DFLASH_TORCH_DIR  a LibTorch folder to use instead, with include/ and lib/
#
# Defines dflash::torch. Torch's own CMake package is not used: with CUDA 13 it enables the CUDA language and asks
# for CUDA::nvToolsExt, which that toolkit no longer has.
set(DFLASH_TORCH_DIR "" CACHE PATH "LibTorch folder to use instead of the torch wheel")
if(DFLASH_TORCH_DIR)
  set(_torch "${DFLASH_TORCH_DIR}")
else()
  set(_torch "${DFLASH_SITE_PACKAGES}/torch")
endif()
# What was found in another folder does not count once DFLASH_VENV or DFLASH_TORCH_DIR has changed.
if(NOT "${_torch}" STREQUAL "${TorchWheel_FOLDER}")
  unset(TorchWheel_INCLUDE_DIR CACHE)
  unset(TorchWheel_CPU CACHE)
  unset(TorchWheel_CUDA CACHE)
  set(TorchWheel_FOLDER "${_torch}" CACHE INTERNAL "")
endif()
find_path(TorchWheel_INCLUDE_DIR ATen/ATen.h PATHS ${_torch}/include NO_DEFAULT_PATH)
find_file(TorchWheel_CPU libtorch_cpu.so PATHS ${_torch}/lib NO_DEFAULT_PATH)
find_file(TorchWheel_CUDA libtorch_cuda.so PATHS ${_torch}/lib NO_DEFAULT_PATH)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(TorchWheel
  REQUIRED_VARS TorchWheel_INCLUDE_DIR TorchWheel_CPU
  REASON_FAILURE_MESSAGE "run tools/setup, or give -DDFLASH_VENV=DIR or -DDFLASH_TORCH_DIR=DIR")
if(TorchWheel_FOUND AND NOT TARGET dflash::torch)
  add_library(dflash::torch INTERFACE IMPORTED)
  # Searched last: the folder also holds headers of fmt and others in versions of its own, and where both have a file
  # ours is meant. Folders of -idirafter are system folders, so their headers give no warnings.
  target_compile_options(dflash::torch INTERFACE
    "SHELL:-idirafter ${TorchWheel_INCLUDE_DIR}"
    "SHELL:-idirafter ${TorchWheel_INCLUDE_DIR}/torch/csrc/api/include")
  set(_libs ${_torch}/lib/libtorch.so ${TorchWheel_CPU} ${_torch}/lib/libc10.so)
  if(TorchWheel_CUDA)
    list(APPEND _libs ${TorchWheel_CUDA} ${_torch}/lib/libc10_cuda.so)
  endif()
  # libstdc++ goes first: libtorch.so exports parts of a std::filesystem of its own, and a program that is bound to those
  # crashes in remove_all (seen with torch 2.11.0).
  # libtorch_cuda registers its kernels when it is loaded; no symbol of it is used directly.
  target_link_libraries(dflash::torch INTERFACE -Wl,--no-as-needed -lstdc++ ${_libs} -Wl,--as-needed)
  target_link_options(dflash::torch INTERFACE -Wl,--disable-new-dtags -Wl,-rpath,${_torch}/lib)
  target_compile_definitions(dflash::torch INTERFACE _GLIBCXX_USE_CXX11_ABI=1)
  target_link_libraries(dflash::torch INTERFACE dflash::cudart)
endif()
