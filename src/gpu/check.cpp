// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/error.hpp>
#include <dflash/core/log.hpp>
#include <dflash/gpu/check.hpp>

#include <fmt/format.h>
#include <string>
#include <string_view>
#include <utility>

namespace dflash::gpu {

namespace {

std::string place(const std::source_location& where) {
    const std::string_view path = where.file_name();
    return fmt::format("{}:{}", path.substr(path.rfind('/') + 1), where.line());
}

std::string describe_status(cudaError_t status) {
    std::string text = fmt::format("{}: {}", cudaGetErrorName(status), cudaGetErrorString(status));
    int ordinal = 0;
    if (cudaGetDevice(&ordinal) == cudaSuccess) {
        text += fmt::format(", on GPU {}", ordinal);
    }
    return text;
}

std::string hint_for(cudaError_t status) {
    switch (status) {
        case cudaErrorMemoryAllocation:
            return "Lower data.row_tokens or data.row_anchors, or see which other process uses the "
                   "GPU's memory";
        case cudaErrorIllegalAddress:
        case cudaErrorLaunchFailure:
        case cudaErrorHardwareStackError:
        case cudaErrorECCUncorrectable:
            return "The GPU cannot be used again by this process; resume from the last checkpoint";
        default:
            return {};
    }
}

}  // namespace

void check(cudaError_t status, std::source_location where) {
    if (status == cudaSuccess) {
        return;
    }
    ErrorParts parts{.what = "a CUDA call failed",
                     .where = place(where),
                     .cause = describe_status(status),
                     .hint = hint_for(status)};
    static_cast<void>(cudaGetLastError());
    throw Error(ErrorKind::Device, std::move(parts));
}

void report(cudaError_t status, std::source_location where) noexcept {
    if (status == cudaSuccess || status == cudaErrorCudartUnloading) {
        return;
    }
    try {
        log_warning("a CUDA call failed while resources were freed: {} ({})",
                    describe_status(status),
                    place(where));
    } catch (...) {  // no memory for a message that nobody can act upon
    }
    static_cast<void>(cudaGetLastError());
}

}  // namespace dflash::gpu
