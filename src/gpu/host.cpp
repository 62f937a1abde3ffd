// SPDX-License-Identifier: Apache-2.0
#include "host.hpp"

#include <algorithm>
#include <fstream>
#include <optional>
#include <sstream>
#include <string_view>

namespace dflash::gpu {

namespace {

/// The number behind `key` in a file of lines "key number ...".
std::optional<long long> read_field(const char* path, std::string_view key) {
    std::ifstream file(path);
    std::string line;
    while (std::getline(file, line)) {
        std::istringstream fields(line);
        std::string name;
        long long value = 0;
        if (fields >> name >> value && name == key) {
            return value;
        }
    }
    return std::nullopt;
}

std::optional<long long> read_number(const char* path) {
    std::ifstream file(path);
    long long value = 0;
    if (file >> value) {
        return value;
    }
    return std::nullopt;  // also for "max", which is no limit
}

}  // namespace

std::string cpu_name() {
    std::ifstream file("/proc/cpuinfo");
    std::string line;
    while (std::getline(file, line)) {
        const std::size_t colon = line.find(": ");
        if (line.starts_with("model name") && colon != std::string::npos) {
            return line.substr(colon + 2);
        }
    }
    return "CPU";
}

DeviceMemory host_memory() {
    constexpr long long kKib = 1024;  // the unit of /proc/meminfo
    DeviceMemory memory{
        .free_bytes = read_field("/proc/meminfo", "MemAvailable:").value_or(0) * kKib,
        .total_bytes = read_field("/proc/meminfo", "MemTotal:").value_or(0) * kKib};
    if (const auto limit = read_number("/sys/fs/cgroup/memory.max")) {
        // Cached file pages count as used but are given up on demand.
        const long long used =
            read_number("/sys/fs/cgroup/memory.current").value_or(0) -
            read_field("/sys/fs/cgroup/memory.stat", "inactive_file").value_or(0);
        memory.total_bytes = std::min(memory.total_bytes, *limit);
        memory.free_bytes = std::clamp(*limit - used, 0LL, memory.free_bytes);
    }
    return memory;
}

}  // namespace dflash::gpu
