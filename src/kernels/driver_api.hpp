// SPDX-License-Identifier: Apache-2.0
// Functions of libcuda, found at run time.
#pragma once

#include <cuda.h>
#include <string>

namespace dflash::kernels {

/// The functions this module calls. Immutable after it was made; any thread.
struct DriverApi {
    decltype(cuGetErrorName)* error_name = nullptr;
    decltype(cuGetErrorString)* error_string = nullptr;
    decltype(cuDeviceGet)* device_get = nullptr;
    decltype(cuLibraryLoadData)* library_load_data = nullptr;
    decltype(cuLibraryUnload)* library_unload = nullptr;
    decltype(cuLibraryGetKernel)* library_get_kernel = nullptr;
    decltype(cuKernelSetAttribute)* kernel_set_attribute = nullptr;
    decltype(cuKernelGetFunction)* kernel_get_function = nullptr;
    decltype(cuFuncLoad)* func_load = nullptr;
    decltype(cuLaunchKernel)* launch_kernel = nullptr;

    /// The functions of this process. Throws Error{Device} if there is no driver, or one that lacks
    /// any of them.
    static const DriverApi& get();

    /// "CUDA_ERROR_INVALID_VALUE: invalid argument".
    std::string describe(CUresult result) const;
};

}  // namespace dflash::kernels
