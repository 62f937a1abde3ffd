// SPDX-License-Identifier: Apache-2.0
// What the start of a run did about kernels.
#pragma once

#include <dflash/kernels/kernel_builder.hpp>

#include <string>
#include <vector>

namespace dflash::kernels {

/// One kernel: where it came from.
struct KernelStart {
    std::string kernel;        ///< KernelSpec::id()
    std::string architecture;  ///< "sm_90a"
    KernelOrigin origin = KernelOrigin::Compiled;
    std::string source;  ///< the thread that compiled it, or the file
    double seconds = 0;  ///< to compile or to read it
    KernelResources resources{};
    int dynamic_shared_bytes = 0;
};

/// All of them, and the times that a user waits for.
struct StartupReport {
    std::string elected;  ///< device of the thread that built
    std::vector<KernelStart> kernels{};
    double build_s = 0;    ///< compile or read all of them, on the wall clock
    double load_s = 0;     ///< load all of them on all devices, on the wall clock
    double warm_up_s = 0;  ///< apart: it is the users' code that runs
    int num_devices = 0;   ///< GPUs, each once

    int num_of(KernelOrigin origin) const;

    /// One line for all, then one for each kernel; none without kernels.
    std::vector<std::string> to_lines() const;
};

}  // namespace dflash::kernels
