// SPDX-License-Identifier: Apache-2.0
// The form of a kernel file:
//     line 1   "dflash-kernel 1 " and the SHA-256 of everything behind this line
//     line 2   a JSON object: kernel, architecture, digest, compiler, program, resources, ...
//     the rest the cubin
#pragma once

#include <dflash/kernels/kernel_cache.hpp>

#include <string>
#include <string_view>

namespace dflash::kernels {

inline constexpr std::string_view kKernelFileSuffix = ".kernel";

struct KernelFile {
    std::string kernel;  ///< KernelSpec::id()
    std::string architecture;
    std::string digest;
    KernelBinary binary;
};

std::string encode_kernel_file(const KernelFile& file);

/// Throws Error{Storage} whose `what` says what is wrong with the bytes.
KernelFile decode_kernel_file(std::string_view bytes);

/// Name of the file of a kernel; without a compiler, what the names of all compilers begin with.
std::string kernel_file_name(const CacheKey& key);

}  // namespace dflash::kernels
