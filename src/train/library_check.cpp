// SPDX-License-Identifier: Apache-2.0
#include <dflash/comm/nccl_group.hpp>
#include <dflash/core/error.hpp>
#include <dflash/gpu/versions.hpp>
#include <dflash/kernels/cuda_libraries.hpp>
#include <dflash/train/library_check.hpp>

#include <ATen/Version.h>
#include <algorithm>
#include <charconv>
#include <dlfcn.h>
#include <fmt/format.h>
#include <fstream>
#include <sstream>
#include <string_view>
#include <torch/version.h>

namespace dflash::train {
namespace {

/// The file that holds an exported function of a library that the program is linked with.
std::string file_of(const char* function) {
    Dl_info info{};
    void* const symbol = ::dlsym(RTLD_DEFAULT, function);
    return symbol != nullptr && ::dladdr(symbol, &info) != 0 && info.dli_fname != nullptr
               ? info.dli_fname
               : "";
}

/// What LibTorch says of itself: its build settings hold "TORCH_VERSION=2.11.0, ".
std::string torch_loaded_version() {
    constexpr std::string_view kKey = "TORCH_VERSION=";
    const std::string settings = at::show_config();
    const std::size_t at = settings.find(kKey);
    if (at == std::string::npos) {
        return {};
    }
    const std::size_t begin = at + kKey.size();
    return settings.substr(begin, settings.find_first_of(", \n", begin) - begin);
}

std::string torch_file() {
    Dl_info info{};
    return ::dladdr(reinterpret_cast<void*>(&at::show_config), &info) != 0 &&
                   info.dli_fname != nullptr
               ? info.dli_fname
               : "";
}

/// "2.11.0+cu130" as {2, 11, 0}.
std::vector<int> numbers_of(std::string_view version) {
    std::vector<int> numbers;
    const char* at = version.data();
    const char* const end = at + version.size();
    while (at != end) {
        int number = 0;
        const auto parsed = std::from_chars(at, end, number);
        if (parsed.ec != std::errc()) {
            break;
        }
        numbers.push_back(number);
        at = parsed.ptr;
        if (at == end || *at != '.') {
            break;
        }
        ++at;
    }
    numbers.resize(std::max<std::size_t>(numbers.size(), 3));
    return numbers;
}

const char* expectation(VersionRule rule) {
    switch (rule) {
        case VersionRule::Same:
            return "exactly";
        case VersionRule::SameMinor:
            return "of the same minor version as";
        case VersionRule::SameMajorNotOlder:
            return "of the same major version as, and not older than";
    }
    return "";
}

}  // namespace

std::vector<Library> loaded_libraries(bool with_gpu) {
    const gpu::CudaVersions cuda = gpu::cuda_versions();
    std::vector<Library> libraries{
        {"LibTorch", VersionRule::SameMinor, TORCH_VERSION, torch_loaded_version(), torch_file()},
        {"CUDA runtime",
         VersionRule::SameMajorNotOlder,
         gpu::format_cuda_version(cuda.built),
         cuda.loaded == 0 ? "" : gpu::format_cuda_version(cuda.loaded),
         file_of("cudaRuntimeGetVersion")},
        {"NCCL",
         VersionRule::Same,
         comm::nccl_build_version(),
         comm::nccl_loaded_version(),
         file_of("ncclGetVersion")},
    };
    const auto add = [&](const char* name,
                         const std::string& built,
                         const std::optional<kernels::LoadedLibrary>& loaded) {
        libraries.push_back({name,
                             VersionRule::SameMajorNotOlder,
                             built,
                             loaded ? loaded->version : "",
                             loaded ? loaded->file : ""});
    };
    add("cuBLASLt", kernels::cublaslt_build_version(), kernels::loaded_cublaslt());
    if (with_gpu) {
        add("NVRTC", kernels::nvrtc_build_version(), kernels::loaded_nvrtc());
    }
    return libraries;
}

bool fits(const Library& library) {
    if (library.loaded.empty() || library.built.empty()) {
        return true;
    }
    const std::vector<int> built = numbers_of(library.built);
    const std::vector<int> loaded = numbers_of(library.loaded);
    switch (library.rule) {
        case VersionRule::Same:
            return built == loaded;
        case VersionRule::SameMinor:
            return built[0] == loaded[0] && built[1] == loaded[1];
        case VersionRule::SameMajorNotOlder:
            return built[0] == loaded[0] && loaded >= built;
    }
    return false;
}

void check_libraries(const std::vector<Library>& libraries) {
    std::string what;
    std::string where;
    for (const Library& library : libraries) {
        if (!fits(library)) {
            what += fmt::format("{}{}: got {}, expected {} {}, of the build",
                                what.empty() ? "" : "; ",
                                library.name,
                                library.loaded,
                                expectation(library.rule),
                                library.built);
            where += fmt::format("{}{}", where.empty() ? "" : ", ", library.file);
        }
    }
    if (!what.empty()) {
        throw Error(ErrorKind::Device,
                    {.what = what,
                     .where = where,
                     .cause = "another library than that of the build was loaded",
                     .hint = fmt::format("Look for it in LD_PRELOAD, LD_LIBRARY_PATH and the "
                                         "environment of the build; or {}",
                                         gpu::how_to_build_for_other_cuda())});
    }
}

io::Json to_json(const std::vector<Library>& libraries) {
    io::Json object = io::Json::object();
    for (const Library& library : libraries) {
        object.set(library.name,
                   io::Json::object({{"built", io::Json::string(library.built)},
                                     {"loaded", io::Json::string(library.loaded)},
                                     {"file", io::Json::string(library.file)}}));
    }
    const gpu::CudaVersions cuda = gpu::cuda_versions();
    object.set("NVIDIA driver",
               io::Json::object(
                   {{"version", io::Json::string(driver_version().value_or("none"))},
                    {"cuda",
                     io::Json::string(cuda.driver == 0 ? "none"
                                                       : gpu::format_cuda_version(cuda.driver))}}));
    return object;
}

std::optional<std::string> driver_version() {
    // "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27 ...", or "Open Kernel
    // Module for x86_64  580.65.06": the first word that is a number with dots.
    std::ifstream file("/proc/driver/nvidia/version");
    std::string line;
    std::getline(file, line);
    std::istringstream words(line);
    for (std::string word; words >> word;) {
        if (word.find('.') != std::string::npos &&
            word.find_first_not_of("0123456789.") == std::string::npos) {
            return word;
        }
    }
    return std::nullopt;
}

}  // namespace dflash::train
