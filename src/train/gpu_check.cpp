// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/error.hpp>
#include <dflash/core/log.hpp>
#include <dflash/core/text.hpp>
#include <dflash/gpu/sensors.hpp>
#include <dflash/train/gpu_check.hpp>
#include <dflash/train/library_check.hpp>

#include <algorithm>
#include <fmt/format.h>
#include <fstream>
#include <set>

namespace dflash::train {
namespace {

/// The command of a process; empty where /proc does not show it, as from another container.
std::string command_of(std::int64_t pid) {
    std::ifstream file(fmt::format("/proc/{}/comm", pid));
    std::string name;
    std::getline(file, name);
    return name;
}

std::string describe(const ForeignProcess& process) {
    return fmt::format("process {}{}{}",
                       process.pid,
                       process.name.empty() ? " (its name is not to be seen from here)"
                                            : fmt::format(" ({})", quote(process.name)),
                       process.memory ? " with " + format_bytes(*process.memory) : "");
}

}  // namespace

void check_gpu_use(const std::vector<GpuUse>& gpus) {
    std::string busy;
    std::string where;
    std::set<std::int64_t> pids;
    for (const GpuUse& gpu : gpus) {
        Bytes known = 0;
        bool all_known = true;
        for (const ForeignProcess& process : gpu.processes) {
            known += process.memory.value_or(0);
            all_known = all_known && process.memory.has_value();
        }
        // Processes whose share is not told hold what is in use.
        const Bytes foreign = all_known ? known : gpu.used;
        if (!gpu.processes.empty() && foreign > kForeignMemory) {
            busy += fmt::format("{}{} has {} in use by ",
                                busy.empty() ? "" : "; ",
                                gpu.device,
                                format_bytes(foreign));
            for (std::size_t i = 0; i < gpu.processes.size(); ++i) {
                busy += (i == 0 ? "" : ", ") + describe(gpu.processes[i]);
                pids.insert(gpu.processes[i].pid);
            }
            where += (where.empty() ? "" : ", ") + gpu.what;
        } else if (gpu.used - known > kForeignMemory) {
            log_warning(
                "{} ({}) has {} of {} in use, and no process that could be named holds it; "
                "look with nvidia-smi",
                gpu.device,
                gpu.what,
                format_bytes(gpu.used),
                format_bytes(gpu.total));
        }
    }
    if (!busy.empty()) {
        throw Error(
            ErrorKind::Device,
            {.what = fmt::format("{}, expected at most {}", busy, format_bytes(kForeignMemory)),
             .where = where,
             .cause = {},
             .hint = fmt::format("End {}, or choose other GPUs with --gpus",
                                 pids.size() == 1 ? "that process" : "those processes")});
    }
}

std::vector<GpuUse> read_gpu_use(const std::vector<gpu::Device>& devices) {
    const gpu::GpuSensors sensors;
    std::vector<GpuUse> result;
    std::set<int> seen;
    for (const gpu::Device& device : devices) {
        if (!device.is_cuda() || !seen.insert(device.ordinal).second) {
            continue;
        }
        GpuUse use{.device = device.name, .what = gpu::describe(device), .processes = {}};
        const std::string bus = gpu::pci_bus_id(device.ordinal);
        const gpu::GpuFigures figures = sensors.read(bus);
        if (figures.memory_used_bytes && figures.memory_total_bytes) {
            use.used = *figures.memory_used_bytes;
            use.total = *figures.memory_total_bytes;
        } else {
            const gpu::DeviceMemory memory = gpu::memory_of(device);
            use.used = memory.total_bytes - memory.free_bytes;
            use.total = memory.total_bytes;
        }
        for (const gpu::GpuProcess& process : sensors.processes(bus)) {
            use.processes.push_back({process.pid, command_of(process.pid), process.memory_bytes});
        }
        result.push_back(std::move(use));
    }
    return result;
}

void check_gpus(const std::vector<gpu::Device>& devices) {
    if (devices.front().is_cuda()) {  // GPUs and CPU devices are never mixed
        check_libraries(loaded_libraries(/*with_gpu=*/true));
        check_gpu_use(read_gpu_use(devices));
    }
}

}  // namespace dflash::train
