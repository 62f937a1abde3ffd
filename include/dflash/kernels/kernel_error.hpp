// SPDX-License-Identifier: Apache-2.0
// Why a kernel could not be had.
#pragma once

#include <dflash/core/error.hpp>

#include <string_view>
#include <utility>

namespace dflash::kernels {

enum class KernelFault {
    NoCompiler,         ///< there is no libnvrtc, and neither cache nor packs have the kernel
    CompilerTooOld,     ///< NVRTC does not know the GPU's architecture
    Source,             ///< the compiler refused the source
    Spill,              ///< registers are spilled that no allowance lists
    WrongArchitecture,  ///< the binary does not run on this GPU, or the GPU is too old
    SharedMemory,       ///< a block needs more than the GPU has
    Forbidden,          ///< DFLASH_NO_JIT forbids to compile what is missing
    Load,               ///< the driver refused the binary for another reason
};

/// "no compiler", "compiler too old", ...: for messages and tests.
std::string_view to_string(KernelFault fault);

/// An Error{Compile} (exit 4) with the fault as a value.
class KernelError : public Error {
  public:
    KernelError(KernelFault fault, ErrorParts parts)
        : Error(ErrorKind::Compile, std::move(parts)), fault_(fault) {}

    KernelFault fault() const noexcept { return fault_; }

  private:
    KernelFault fault_;
};

}  // namespace dflash::kernels
