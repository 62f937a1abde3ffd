// SPDX-License-Identifier: Apache-2.0
// What ptxas says about a program when it is asked to be verbose.
#pragma once

#include <dflash/kernels/compiler.hpp>

#include <optional>
#include <string>

namespace dflash::kernels {

/// Resources of the entry point `entry`. Spills are summed over the entry and all functions that
/// were not inlined into it, the stack is the largest of them. Empty if the log does not tell.
std::optional<KernelResources> parse_ptxas_log(const std::string& log, const std::string& entry);

}  // namespace dflash::kernels
