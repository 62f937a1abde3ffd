// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/error.hpp>
#include <dflash/tensor/failure.hpp>

#include <algorithm>
#include <array>
#include <c10/util/Exception.h>
#include <span>
#include <string>
#include <string_view>

namespace dflash::tensor {
namespace {

bool has_one_of(std::string_view text, std::span<const std::string_view> parts) {
    return std::ranges::any_of(parts,
                               [&](std::string_view part) { return text.find(part) != text.npos; });
}

}  // namespace

std::exception_ptr as_failure(std::exception_ptr error) noexcept {
    // Texts, since most failures of CUDA have no type of their own (torch 2.11, c10/cuda).
    static constexpr std::array<std::string_view, 5> kDevice{
        "CUDA error", "CUBLAS_STATUS", "cuBLAS", "CUDA driver", "cudaError"};
    static constexpr std::array<std::string_view, 2> kSetting{"CachingAllocator option",
                                                              "ALLOC_CONF"};
    try {
        std::rethrow_exception(error);
    } catch (const c10::OutOfMemoryError& failure) {
        return std::make_exception_ptr(
            Error(ErrorKind::Device,
                  {.what = "a GPU has not enough memory",
                   .where = {},
                   .cause = failure.what_without_backtrace(),
                   .hint = "See with nvidia-smi who else uses it; smaller rows (data.row_tokens, "
                           "data.row_anchors) need less, dflash plan says how much"}));
    } catch (const c10::Error& failure) {
        const std::string text = failure.what_without_backtrace();
        if (has_one_of(text, kSetting)) {
            return std::make_exception_ptr(
                Error(ErrorKind::Config,
                      {.what = "LibTorch refuses an environment variable",
                       .where = "PYTORCH_ALLOC_CONF or PYTORCH_CUDA_ALLOC_CONF",
                       .cause = text,
                       .hint = "Unset it, or correct its value"}));
        }
        if (has_one_of(text, kDevice)) {
            return std::make_exception_ptr(
                Error(ErrorKind::Device,
                      {.what = "a call of CUDA failed",
                       .where = {},
                       .cause = text,
                       .hint = "Look into the kernel log (dmesg) for messages of the driver, and "
                               "for CUDA_ and PYTORCH_ variables in the environment"}));
        }
        return error;
    } catch (...) {
        return error;
    }
}

}  // namespace dflash::tensor
