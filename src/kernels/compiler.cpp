// SPDX-License-Identifier: Apache-2.0
// One program for one kernel: extern "C" names need no name expressions, whose look-up in NVRTC is
// not thread-safe, and kernels compile in parallel.
#include "nvrtc.hpp"
#include "ptxas_log.hpp"

#include <dflash/core/text.hpp>
#include <dflash/kernels/compiler.hpp>
#include <dflash/kernels/kernel_error.hpp>

#include <algorithm>
#include <chrono>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <utility>

namespace dflash::kernels {
namespace {

std::string log_or_dash(const std::string& log) {
    return log.empty() ? "-" : log;
}

std::string describe(const KernelSpec& spec, const Architecture& architecture) {
    return fmt::format("{} for {}", spec.id(), architecture.name());
}

}  // namespace

std::vector<std::string> Compiler::default_libraries() {
    return {"libnvrtc.so.13", "libnvrtc.so.12"};
}

Compiler::Compiler(SourceSet sources, std::vector<std::string> libraries)
    : sources_(std::move(sources)), nvrtc_(std::make_unique<Nvrtc>(std::move(libraries))) {}

Compiler::~Compiler() = default;

std::optional<std::string> Compiler::identity() const {
    return nvrtc_->open() ? std::optional(nvrtc_->identity()) : std::nullopt;
}

void Compiler::require(const std::string& where) const {
    if (!nvrtc_->open()) {
        throw KernelError(
            KernelFault::NoCompiler,
            {.what = "there is no CUDA compiler (libnvrtc) on this machine",
             .where = where,
             .cause = nvrtc_->failure(),
             .hint = "Install the wheel nvidia-cuda-nvrtc or a CUDA toolkit, or put kernels made "
                     "by dflash kernels --compile --cache DIR on another machine beside the "
                     "program, in a folder called kernels"});
    }
}

std::vector<std::string> Compiler::options(const KernelSpec& spec,
                                           const Architecture& architecture) {
    std::vector<std::string> options = {
        // A real architecture: the result is machine code, and what the target cannot do is an
        // error here, not at load time.
        "--gpu-architecture=" + architecture.name(),
        "--std=c++20",
    };
    for (const auto& [name, value] : spec.constants) {
        options.push_back(fmt::format("-D{}={}", name, value));
    }
    options.push_back(fmt::format("-DDFLASH_THREADS={}", spec.threads));
    options.push_back(fmt::format("-DDFLASH_MIN_BLOCKS={}", spec.min_blocks_per_sm));
    options.push_back(fmt::format("-DDFLASH_DYNAMIC_SHARED_BYTES={}", spec.dynamic_shared_bytes));
    return options;
}

KernelBinary Compiler::compile(const KernelSpec& spec, const Architecture& architecture) const {
    const std::string what = describe(spec, architecture);
    require(what);
    const Nvrtc& library = *nvrtc_;
    // Asked first: NVRTC would only say "invalid value for --gpu-architecture".
    const std::vector<int>& known = library.architectures();
    if (std::find(known.begin(), known.end(), architecture.number()) == known.end()) {
        throw KernelError(
            KernelFault::CompilerTooOld,
            {.what = fmt::format("the CUDA compiler is too old for this GPU: {} knows {}, expected "
                                 "{}",
                                 library.version(),
                                 fmt::join(known, ", "),
                                 architecture.number()),
             .where = what,
             .cause = {},
             .hint = "Install a newer libnvrtc, or leave this GPU out of --gpus"});
    }
    std::vector<std::string> all_options = options(spec, architecture);
    // It would raise the stack limit of the whole process while others compile, too.
    all_options.emplace_back("--modify-stack-limit=false");
    // One option of ptxas in each: joined by commas, as nvcc takes them, NVRTC refuses them.
    all_options.emplace_back("--ptxas-options=-v");
    if (library.has_cache()) {
        all_options.emplace_back("--no-cache");
    }

    const auto begin = std::chrono::steady_clock::now();
    NvrtcProgram program(library, sources_, spec.source);
    const nvrtcResult result = program.compile(all_options);
    std::string log = program.log();
    if (result != NVRTC_SUCCESS) {
        throw KernelError(
            KernelFault::Source,
            {.what = fmt::format("{} cannot compile {}", library.version(), what),
             .where = fmt::format("{} with {}", spec.source, fmt::join(all_options, " ")),
             .cause = fmt::format("{}\n{}", library.error_string(result), log_or_dash(log)),
             .hint = {}});
    }
    const std::optional<KernelResources> resources = parse_ptxas_log(log, spec.entry);
    if (!resources) {
        throw KernelError(
            KernelFault::Source,
            {.what =
                 fmt::format("{} says nothing about the resources of {}", library.version(), what),
             .where = fmt::format("{} with {}", spec.source, fmt::join(all_options, " ")),
             .cause = log_or_dash(log),
             .hint = fmt::format("See whether it has an extern \"C\" __global__ function {}",
                                 spec.entry)});
    }
    check_resources(spec, architecture, *resources, log);
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
    return {.cubin = program.cubin(),
            .resources = *resources,
            .compiler = library.identity(),
            .compile_s = elapsed.count(),
            .log = std::move(log)};
}

std::int64_t Compiler::num_compilations() noexcept {
    return NvrtcProgram::num_compilations();
}

void check_resources(const KernelSpec& spec,
                     const Architecture& architecture,
                     const KernelResources& resources,
                     const std::string& log) {
    const std::string what = describe(spec, architecture);
    // The static count of stores decides. Loads of a spilled value may be many and still be rare
    // when it runs; they are in the budget table of the tests.
    int allowed = 0;
    for (const SpillAllowance& allowance : spec.allowed_spills) {
        if (allowance.architecture == architecture.name()) {
            allowed = allowance.max_bytes;
        }
    }
    if (resources.spill_store_bytes > allowed || (allowed == 0 && resources.spill_load_bytes > 0)) {
        throw KernelError(
            KernelFault::Spill,
            {.what = fmt::format("{} spills registers: got {} bytes of stores and {} of loads, "
                                 "expected at most {} bytes of stores",
                                 what,
                                 resources.spill_store_bytes,
                                 resources.spill_load_bytes,
                                 allowed),
             .where = spec.source,
             .cause = log_or_dash(log),
             .hint = "Lower its tile sizes or min_blocks_per_sm, or list the spill with its reason "
                     "in the kernel's allowed_spills"});
    }
    const int shared = spec.dynamic_shared_bytes + resources.static_shared_bytes;
    if (shared > architecture.max_shared_bytes()) {
        throw KernelError(
            KernelFault::SharedMemory,
            {.what = fmt::format("{} needs {} of shared memory per block, and the GPU has {}",
                                 what,
                                 format_bytes(shared),
                                 format_bytes(architecture.max_shared_bytes())),
             .where = spec.source,
             .cause = {},
             .hint = {}});
    }
}

}  // namespace dflash::kernels
