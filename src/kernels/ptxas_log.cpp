// SPDX-License-Identifier: Apache-2.0
// The lines look like this (CUDA 12 and 13):
//     ptxas info    : Compiling entry function 'name' for 'sm_90a'
//     ptxas info    : Function properties for name
//         0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
//     ptxas info    : Used 168 registers, used 1 barriers, 16 bytes smem, 400 bytes cmem[0]
#include "ptxas_log.hpp"

#include <algorithm>
#include <charconv>
#include <string_view>

namespace dflash::kernels {
namespace {

// The number right before `unit`: 168 of "Used 168 registers" for " registers".
std::optional<int> number_before(std::string_view line, std::string_view unit) {
    const std::size_t end = line.find(unit);
    if (end == std::string_view::npos) {
        return std::nullopt;
    }
    std::size_t begin = end;
    while (begin > 0 && line[begin - 1] >= '0' && line[begin - 1] <= '9') {
        --begin;
    }
    int number = 0;
    if (begin == end ||
        std::from_chars(line.data() + begin, line.data() + end, number).ec != std::errc()) {
        return std::nullopt;
    }
    return number;
}

}  // namespace

std::optional<KernelResources> parse_ptxas_log(const std::string& log, const std::string& entry) {
    KernelResources resources;
    bool in_entry = false;
    bool has_registers = false;
    bool has_spills = false;
    std::string_view rest = log;
    while (!rest.empty()) {
        const std::size_t end = std::min(rest.find('\n'), rest.size());
        const std::string_view line = rest.substr(0, end);
        rest.remove_prefix(std::min(end + 1, rest.size()));
        if (line.find("Compiling entry function") != std::string_view::npos) {
            in_entry = line.find("'" + entry + "'") != std::string_view::npos;
        }
        if (const auto stores = number_before(line, " bytes spill stores")) {
            has_spills = true;
            resources.spill_store_bytes += *stores;
            resources.spill_load_bytes += number_before(line, " bytes spill loads").value_or(0);
            resources.stack_bytes = std::max(resources.stack_bytes,
                                             number_before(line, " bytes stack frame").value_or(0));
        }
        const auto registers = number_before(line, " registers");
        if (in_entry && registers) {
            has_registers = true;
            resources.registers = *registers;
            resources.static_shared_bytes = number_before(line, " bytes smem").value_or(0);
        }
    }
    return has_registers && has_spills ? std::optional(resources) : std::nullopt;
}

}  // namespace dflash::kernels
