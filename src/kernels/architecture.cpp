// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/error.hpp>
#include <dflash/core/text.hpp>
#include <dflash/kernels/architecture.hpp>
#include <dflash/kernels/kernel_error.hpp>

#include <algorithm>
#include <charconv>
#include <fmt/format.h>

namespace dflash::kernels {
namespace {

constexpr int kSmallestMajor =
    8;                          // cp.async and mma.sync of bf16 begin with compute capability 8.0
constexpr int kFirstExact = 9;  // targets with the suffix "a" begin with sm_90a

}  // namespace

Architecture Architecture::parse(std::string_view name) {
    std::string_view digits = name;
    Architecture architecture;
    if (digits.ends_with('a')) {
        architecture.exact = true;
        digits.remove_suffix(1);
    }
    int number = 0;
    if (digits.starts_with("sm_")) {
        digits.remove_prefix(3);
        const auto [end, error] =
            std::from_chars(digits.data(), digits.data() + digits.size(), number);
        if (error != std::errc() || end != digits.data() + digits.size()) {
            number = 0;
        }
    }
    architecture.major = number / 10;
    architecture.minor = number % 10;
    if (architecture.major < kSmallestMajor || number > 999 ||
        (architecture.exact && architecture.major < kFirstExact)) {
        throw Error(ErrorKind::Config,
                    {.what = fmt::format("GPU architecture: got {}, expected sm_80 or newer, such "
                                         "as sm_89, sm_90a, sm_120a",
                                         quote(name)),
                     .where = {},
                     .cause = {},
                     .hint = {}});
    }
    return architecture;
}

Architecture Architecture::of_capability(int major, int minor) {
    if (major < kSmallestMajor) {
        throw KernelError(
            KernelFault::WrongArchitecture,
            {.what = fmt::format("the GPU is too old for the kernels: got compute capability "
                                 "{}.{}, expected {}.0 or newer",
                                 major,
                                 minor,
                                 kSmallestMajor),
             .where = {},
             .cause = {},
             .hint = "Leave this GPU out of --gpus"});
    }
    return {.major = major, .minor = minor, .exact = major >= kFirstExact};
}

std::string Architecture::name() const {
    return fmt::format("sm_{}{}", number(), exact ? "a" : "");
}

bool Architecture::runs_on(int gpu_major, int gpu_minor) const {
    return major == gpu_major && (exact ? minor == gpu_minor : minor <= gpu_minor);
}

int Architecture::max_shared_bytes() const {
    constexpr int kKiB = 1024;
    switch (number()) {
        case 80:
        case 87:
            return 163 * kKiB;
        case 90:
        case 100:
        case 103:
        case 110:
            return 227 * kKiB;
        default:
            return 99 * kKiB;  // 8.6, 8.9, 12.x; the least that any GPU from 8.0 on has
    }
}

std::vector<Architecture> parse_architectures(std::string_view list) {
    std::vector<Architecture> architectures;
    for (std::size_t begin = 0; begin <= list.size();) {
        const std::size_t comma = std::min(list.find(',', begin), list.size());
        const Architecture architecture = Architecture::parse(list.substr(begin, comma - begin));
        if (architecture.major >= kFirstExact && !architecture.exact) {
            // No run looks for it: from 9.0 on kernels are compiled for one GPU exactly.
            throw Error(ErrorKind::Config,
                        {.what = fmt::format("GPU architecture: got {0}, expected {0}a",
                                             architecture.name()),
                         .where = {},
                         .cause = {},
                         .hint = {}});
        }
        if (std::find(architectures.begin(), architectures.end(), architecture) ==
            architectures.end()) {
            architectures.push_back(architecture);
        }
        begin = comma + 1;
    }
    return architectures;
}

std::vector<Architecture> standard_architectures() {
    return parse_architectures("sm_80,sm_86,sm_89,sm_90a,sm_100a,sm_120a");
}

}  // namespace dflash::kernels
