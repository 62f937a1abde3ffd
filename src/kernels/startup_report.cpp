// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/text.hpp>
#include <dflash/kernels/startup_report.hpp>

#include <algorithm>
#include <fmt/format.h>

namespace dflash::kernels {
namespace {

std::string describe_origin(const KernelStart& kernel) {
    switch (kernel.origin) {
        case KernelOrigin::Compiled:
            return fmt::format(
                "compiled by {} in {}", kernel.source, format_seconds(kernel.seconds));
        case KernelOrigin::Cache:
            return fmt::format("from the cache, {}", kernel.source);
        case KernelOrigin::Pack:
            return fmt::format("from a pack, {}", kernel.source);
    }
    return {};
}

}  // namespace

int StartupReport::num_of(KernelOrigin origin) const {
    return static_cast<int>(
        std::count_if(kernels.begin(), kernels.end(), [&](const KernelStart& kernel) {
            return kernel.origin == origin;
        }));
}

std::vector<std::string> StartupReport::to_lines() const {
    if (kernels.empty()) {
        return {};
    }
    std::vector<std::string> lines;
    lines.push_back(
        fmt::format("{} on {} GPUs: {} compiled, {} from the cache, {} from packs, in {} "
                    "by {}; loaded in {}",
                    kernels.size(),
                    num_devices,
                    num_of(KernelOrigin::Compiled),
                    num_of(KernelOrigin::Cache),
                    num_of(KernelOrigin::Pack),
                    format_seconds(build_s),
                    elected,
                    format_seconds(load_s)));
    for (const KernelStart& kernel : kernels) {
        const KernelResources& resources = kernel.resources;
        lines.push_back(
            fmt::format("{} {}: {} registers, {} bytes spilled, {} shared; {}",
                        kernel.kernel,
                        kernel.architecture,
                        resources.registers,
                        resources.spill_store_bytes,
                        format_bytes(kernel.dynamic_shared_bytes + resources.static_shared_bytes),
                        describe_origin(kernel)));
    }
    return lines;
}

}  // namespace dflash::kernels
