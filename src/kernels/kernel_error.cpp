// SPDX-License-Identifier: Apache-2.0
#include <dflash/kernels/kernel_error.hpp>

namespace dflash::kernels {

std::string_view to_string(KernelFault fault) {
    switch (fault) {
        case KernelFault::NoCompiler:
            return "no compiler";
        case KernelFault::CompilerTooOld:
            return "compiler too old";
        case KernelFault::Source:
            return "compile error";
        case KernelFault::Spill:
            return "spill";
        case KernelFault::WrongArchitecture:
            return "wrong architecture";
        case KernelFault::SharedMemory:
            return "not enough shared memory";
        case KernelFault::Forbidden:
            return "compilation forbidden";
        case KernelFault::Load:
            return "binary refused";
    }
    return "unknown";
}

}  // namespace dflash::kernels
