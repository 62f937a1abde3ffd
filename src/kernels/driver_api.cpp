// SPDX-License-Identifier: Apache-2.0
#include "driver_api.hpp"

#include <dflash/core/error.hpp>
#include <dflash/gpu/check.hpp>

#include <fmt/format.h>

namespace dflash::kernels {
namespace {

// cuFuncLoad, the newest of them, came with CUDA 12.4.
constexpr unsigned kDriverVersion = 12040;

template <class Function>
void find(const char* name, Function*& function) {
    void* address = nullptr;
    cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    const cudaError_t status =
        cudaGetDriverEntryPointByVersion(name, &address, kDriverVersion, cudaEnableDefault, &found);
    if (status != cudaSuccess || found != cudaDriverEntryPointSuccess || address == nullptr) {
        static_cast<void>(cudaGetLastError());
        throw Error(ErrorKind::Device,
                    {.what = fmt::format("the NVIDIA driver has no function {}, expected one for "
                                         "CUDA 12.4 or newer",
                                         name),
                     .where = "libcuda",
                     .cause = status == cudaSuccess ? "" : cudaGetErrorString(status),
                     .hint = "Install a newer driver"});
    }
    function = reinterpret_cast<Function*>(address);
}

DriverApi find_all() {
    DriverApi api;
    find("cuGetErrorName", api.error_name);
    find("cuGetErrorString", api.error_string);
    find("cuDeviceGet", api.device_get);
    find("cuLibraryLoadData", api.library_load_data);
    find("cuLibraryUnload", api.library_unload);
    find("cuLibraryGetKernel", api.library_get_kernel);
    find("cuKernelSetAttribute", api.kernel_set_attribute);
    find("cuKernelGetFunction", api.kernel_get_function);
    find("cuFuncLoad", api.func_load);
    find("cuLaunchKernel", api.launch_kernel);
    return api;
}

}  // namespace

const DriverApi& DriverApi::get() {
    static const DriverApi api = find_all();
    return api;
}

std::string DriverApi::describe(CUresult result) const {
    const char* name = nullptr;
    const char* text = nullptr;
    error_name(result, &name);
    error_string(result, &text);
    return fmt::format("{}: {}", name ? name : "unknown error", text ? text : "");
}

}  // namespace dflash::kernels
