// SPDX-License-Identifier: Apache-2.0
#include <dflash/comm/in_process_group.hpp>
#include <dflash/comm/nccl_group.hpp>
#include <dflash/comm/process_group.hpp>
#include <dflash/core/check.hpp>

#include <set>

namespace dflash::comm {

std::unique_ptr<ProcessGroup> make_process_group(const std::vector<gpu::Device>& devices,
                                                 FirstError& first_error,
                                                 std::chrono::milliseconds timeout) {
    const int num_ranks = narrow<int>(devices.size());
    std::set<int> gpus;
    for (const gpu::Device& device : devices) {
        if (device.is_cuda()) {
            gpus.insert(device.ordinal);
        }
    }
    if (num_ranks > 1 && gpus.size() == devices.size()) {
        return std::make_unique<NcclGroup>(num_ranks, first_error, timeout);
    }
    return std::make_unique<InProcessGroup>(num_ranks, first_error);
}

}  // namespace dflash::comm
