// SPDX-License-Identifier: Apache-2.0
#include "nvrtc.hpp"

#include <dflash/gpu/versions.hpp>
#include <dflash/kernels/compiler.hpp>
#include <dflash/kernels/cuda_libraries.hpp>

#include <dlfcn.h>
#include <fmt/format.h>
#if __has_include(<cublas_api.h>)
#include <cublas_api.h>
#endif

namespace dflash::kernels {

std::string nvrtc_build_version() {
    return gpu::format_cuda_version(gpu::cuda_versions().built);
}

std::optional<LoadedLibrary> loaded_nvrtc() {
    Nvrtc nvrtc(Compiler::default_libraries());
    if (!nvrtc.open()) {
        return std::nullopt;
    }
    return LoadedLibrary{nvrtc.version_number(), nvrtc.path()};
}

std::string cublaslt_build_version() {
#ifdef CUBLAS_VERSION
    return fmt::format("{}.{}.{}", CUBLAS_VER_MAJOR, CUBLAS_VER_MINOR, CUBLAS_VER_PATCH);
#else
    return {};
#endif
}

std::optional<LoadedLibrary> loaded_cublaslt() {
    // Looked up by name: this module links no cuBLASLt, LibTorch has brought the one that is used.
    void* const symbol = ::dlsym(RTLD_DEFAULT, "cublasLtGetVersion");
    Dl_info info{};
    if (symbol == nullptr || ::dladdr(symbol, &info) == 0) {
        return std::nullopt;
    }
    const std::size_t code = reinterpret_cast<std::size_t (*)()>(symbol)();
    return LoadedLibrary{fmt::format("{}.{}.{}", code / 10000, code / 100 % 100, code % 100),
                         info.dli_fname == nullptr ? "" : info.dli_fname};
}

}  // namespace dflash::kernels
