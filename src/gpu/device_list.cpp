// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/check.hpp>
#include <dflash/core/error.hpp>
#include <dflash/core/text.hpp>
#include <dflash/gpu/device.hpp>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <numeric>
#include <optional>

namespace dflash::gpu {

namespace {

/// More than any machine has: longer lists are typing errors.
constexpr int kMaxDevices = 256;
constexpr std::string_view kCpuPrefix = "cpu:";

[[noreturn]] void refuse(std::string_view list, std::string_view reason) {
    throw Error(ErrorKind::Config,
                {.what = fmt::format("--gpus: got {}, expected a list such as 0-7, 0,2,5-7 or "
                                     "0,0,0, or all, or cpu:N",
                                     quote(list)),
                 .where = {},
                 .cause = std::string(reason),
                 .hint = {}});
}

std::optional<int> parse_number(std::string_view text) {
    int number = 0;
    const char* end = text.data() + text.size();
    const auto [rest, error] = std::from_chars(text.data(), end, number);
    if (error != std::errc{} || rest != end || number < 0) {
        return std::nullopt;
    }
    return number;
}

/// "3" or "5-7" as first and last.
std::pair<int, int> parse_range(std::string_view list, std::string_view item) {
    const std::size_t dash = item.find('-');
    const std::optional<int> first = parse_number(item.substr(0, dash));
    const std::optional<int> last =
        dash == std::string_view::npos ? first : parse_number(item.substr(dash + 1));
    if (!first || !last) {
        refuse(list,
               item.starts_with("cpu") ? "GPUs and CPU devices cannot be mixed"
                                       : fmt::format("{} is no number and no range", quote(item)));
    }
    if (*first > *last) {
        refuse(list, fmt::format("the range {} falls", quote(item)));
    }
    if (*last - *first >= kMaxDevices) {
        refuse(list,
               fmt::format("the range {} has more than {} devices", quote(item), kMaxDevices));
    }
    return {*first, *last};
}

std::vector<int> parse_ordinals(std::string_view list) {
    std::vector<int> ordinals;
    std::size_t begin = 0;
    while (begin <= list.size()) {
        const std::size_t end = std::min(list.find(',', begin), list.size());
        const auto [first, last] = parse_range(list, list.substr(begin, end - begin));
        for (int ordinal = first; ordinal <= last; ++ordinal) {
            ordinals.push_back(ordinal);
        }
        begin = end + 1;
    }
    if (std::ssize(ordinals) > kMaxDevices) {
        refuse(list, fmt::format("more than {} devices", kMaxDevices));
    }
    return ordinals;
}

std::vector<Device> cpu_devices(std::string_view list) {
    const std::optional<int> count = parse_number(list.substr(kCpuPrefix.size()));
    if (!count || *count < 1 || *count > kMaxDevices) {
        refuse(list, fmt::format("N of cpu:N is a number from 1 to {}", kMaxDevices));
    }
    std::vector<Device> devices;
    for (int i = 0; i < *count; ++i) {
        devices.push_back({.kind = DeviceKind::Cpu,
                           .position = i,
                           .ordinal = i,
                           .name = fmt::format("cpu:{}", i),
                           .list_size = *count});
    }
    return devices;
}

/// Throws where no GPU can be used at all, and says why.
void require_gpus(std::string_view list, const CudaInventory& inventory) {
    const std::string what = fmt::format("--gpus: got {}, but there is no usable GPU", quote(list));
    const std::string or_cpu = "or run on the CPU with --gpus cpu:N (slow)";
    if (inventory.versions.driver == 0) {
        throw Error(ErrorKind::Device,
                    {.what = what,
                     .where = {},
                     .cause = "no NVIDIA driver was found",
                     .hint = "Install driver 580 or newer, " + or_cpu});
    }
    check_versions(inventory.versions);
    if (inventory.gpus.empty()) {
        const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
        throw Error(
            ErrorKind::Device,
            {.what = what,
             .where = visible != nullptr ? fmt::format("CUDA_VISIBLE_DEVICES={}", quote(visible))
                                         : std::string(),
             .cause = inventory.failure,
             .hint = "See what nvidia-smi lists, " + or_cpu});
    }
}

}  // namespace

std::vector<Device> parse_devices(std::string_view list) {
    // The CUDA runtime is not woken for CPU devices.
    return parse_devices(list, list.starts_with(kCpuPrefix) ? CudaInventory{} : cuda_inventory());
}

std::vector<Device> parse_devices(std::string_view list, const CudaInventory& inventory) {
    if (list.starts_with(kCpuPrefix)) {
        return cpu_devices(list);
    }
    const int num_gpus = narrow<int>(inventory.gpus.size());
    std::vector<int> ordinals;
    if (list == "all") {
        ordinals.resize(inventory.gpus.size());
        std::iota(ordinals.begin(), ordinals.end(), 0);
    } else {
        ordinals = parse_ordinals(list);
    }
    require_gpus(list, inventory);

    std::vector<int> missing;
    std::ranges::copy_if(
        ordinals, std::back_inserter(missing), [&](int ordinal) { return ordinal >= num_gpus; });
    if (!missing.empty()) {
        std::vector<std::string> present;
        for (int i = 0; i < num_gpus; ++i) {
            present.push_back(
                fmt::format("{} ({})", i, inventory.gpus[static_cast<std::size_t>(i)]));
        }
        throw Error(
            ErrorKind::Device,
            {.what = fmt::format("--gpus: got {}, but GPU {} is not there; expected only {}",
                                 quote(list),
                                 fmt::join(missing, ", "),
                                 fmt::join(present, ", ")),
             .where = {},
             .cause = {},
             .hint = "GPUs are counted from 0, after CUDA_VISIBLE_DEVICES"});
    }

    std::vector<Device> devices;
    for (const int ordinal : ordinals) {
        const int position = narrow<int>(devices.size());
        const bool repeated = std::ranges::count(ordinals, ordinal) > 1;
        devices.push_back({.kind = DeviceKind::Cuda,
                           .position = position,
                           .ordinal = ordinal,
                           .name = repeated ? fmt::format("cuda:{}/{}", ordinal, position)
                                            : fmt::format("cuda:{}", ordinal),
                           .list_size = narrow<int>(ordinals.size())});
    }
    return devices;
}

}  // namespace dflash::gpu
