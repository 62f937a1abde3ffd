// SPDX-License-Identifier: Apache-2.0
// Lists by default, and changes nothing then: what a run would compile, what it would find, and
// what the compiled kernels need of a GPU. No GPU is needed for any of it.
#include "kernels_command.hpp"

#include <dflash/cli/train_options.hpp>
#include <dflash/core/error.hpp>
#include <dflash/core/text.hpp>
#include <dflash/data/chat_format.hpp>
#include <dflash/data/tokenizer.hpp>
#include <dflash/gpu/device.hpp>
#include <dflash/kernels/kernel_builder.hpp>
#include <dflash/kernels/kernel_driver.hpp>
#include <dflash/kernels/model_kernels.hpp>
#include <dflash/kernels/quantize_rows.hpp>
#include <dflash/model/config.hpp>
#include <dflash/model/head_precision.hpp>
#include <dflash/target/config.hpp>
#include <dflash/train/draft_choice.hpp>
#include <dflash/train/kernel_start.hpp>
#include <dflash/train/run_kernels.hpp>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace dflash::cli {
namespace {

/// Of a setting's name, or of a text that begins with it and a blank.
bool decides_kernels(const std::string& text) {
    const std::string name = text.substr(0, text.find(' '));
    return name == "run.target" || name == "run.init" ||
           (name.starts_with("draft.") && name != "draft.anchors");
}

/// Kernels of something, on one architecture.
struct Needs {
    std::string of;
    std::function<std::vector<kernels::KernelSpec>(const kernels::Architecture&)> kernels;
};

// Of the drafter and target that the settings name, as a run would choose them.
Needs needs_of(const train::Settings& settings) {
    const target::TargetLocation location = target::find_target(settings.run.target);
    const target::TargetConfig target = target::TargetConfig::read(location.folder);
    const auto tokenizer = data::Tokenizer::from_file(
        (std::filesystem::path(location.folder) / "tokenizer.json").string());
    const data::DetectedFormat chat = data::choose_chat_format(
        settings.data.chat_format, settings.data.generic, location.folder, tokenizer);
    std::optional<train::DraftChoice> init;
    if (!settings.run.init.empty()) {
        const std::string folder = target::find_target(settings.run.init).folder;
        init = train::DraftChoice{train::load_draft(folder).config, folder};
    }
    const train::DraftChoice draft =
        train::choose_drafter(settings.draft, init, target, location, tokenizer, *chat.format);
    return {fmt::format("{} and {}", location.name, draft.origin),
            [drafter = train::kernel_shape(draft.config,
                                           model::head_precision(settings.draft.head_precision)),
             shape = train::kernel_shape(target)](const kernels::Architecture& architecture) {
                return kernels::merge_kernels({kernels::drafter_kernels(drafter, architecture),
                                               kernels::target_kernels(shape)});
            }};
}

Needs needs_of_shipped() {
    std::string names;
    for (const kernels::ShippedDrafter& shipped : kernels::shipped_drafters()) {
        names += (names.empty() ? "" : ", ") + shipped.name;
    }
    return {fmt::format("the drafters that packs are built for ({})", names),
            kernels::shipped_kernels};
}

// Of the GPUs of this machine; without any, all that packs are built for, as far as they have the
// head's precision. A GPU that is there and has it not is told like one that --arch names.
std::vector<kernels::Architecture> architectures_of_machine(model::HeadPrecision head_precision) {
    std::vector<kernels::Architecture> architectures;
    if (gpu::cuda_device_count() == 0) {
        std::vector<std::string> without;
        for (const kernels::Architecture& architecture : kernels::standard_architectures()) {
            if (head_precision == model::HeadPrecision::Compute ||
                kernels::has_float8(architecture)) {
                architectures.push_back(architecture);
            } else {
                without.push_back(architecture.name());
            }
        }
        if (!without.empty()) {
            fmt::print("left out  {}: no head in fp8\n", fmt::join(without, ", "));
        }
        return architectures;
    }
    const auto driver = kernels::make_cuda_driver();
    for (const gpu::Device& device : gpu::parse_devices("all")) {
        const kernels::Architecture own = driver->architecture(device);
        if (std::find(architectures.begin(), architectures.end(), own) == architectures.end()) {
            architectures.push_back(own);
        }
    }
    return architectures;
}

void print_folders(const kernels::KernelBuilder& builder) {
    const kernels::CacheOptions& options = builder.cache().options();
    const std::vector<kernels::CacheEntry> entries = builder.cache().list();
    const auto count = [&](const std::string& folder) {
        Bytes bytes = 0;
        int files = 0;
        for (const kernels::CacheEntry& entry : entries) {
            if (std::filesystem::path(entry.path).parent_path() == folder) {
                bytes += entry.size;
                files += 1;
            }
        }
        return fmt::format("{} kernels, {}", files, format_bytes(bytes));
    };
    fmt::print("cache     {}: {} of at most {}\n",
               options.folder.empty() ? "none: neither XDG_CACHE_HOME nor HOME is set"
                                      : escape_controls(options.folder),
               count(options.folder),
               format_bytes(options.max_bytes));
    for (const std::string& pack : options.packs) {
        fmt::print("pack      {}: {}\n", escape_controls(pack), count(pack));
    }
    fmt::print("compiler  {}\n", builder.compiler().identity().value_or("none: no libnvrtc"));
    for (const kernels::CacheEntry& entry : entries) {
        if (!entry.fault.empty()) {
            fmt::print("damaged   {}: {}\n", escape_controls(entry.path), entry.fault);
        }
    }
}

void print_table(const kernels::KernelBuilder& builder,
                 const std::vector<kernels::KernelRequest>& requests) {
    std::size_t width = 6;
    for (const kernels::KernelRequest& request : requests) {
        width = std::max(width, request.spec.id().size());
    }
    fmt::print("\n{:<{}} {:<8} {:<8} {:>9} {:>9} {:>5} {:>6} {:>9}\n",
               "kernel",
               width,
               "for",
               "from",
               "size",
               "registers",
               "stack",
               "spills",
               "shared");
    // Other digests in the folders are kernels of other models, settings or versions.
    std::set<std::string> digests;
    int missing = 0;
    for (const kernels::KernelRequest& request : requests) {
        const std::string digest = kernels::kernel_digest(
            builder.compiler().sources(), request.spec, request.architecture);
        digests.insert(digest);
        const auto found = builder.cache().find({digest, builder.compiler().identity()});
        if (!found) {
            missing += 1;
            fmt::print(
                "{:<{}} {:<8} missing\n", request.spec.id(), width, request.architecture.name());
            continue;
        }
        const kernels::KernelResources& resources = found->binary.resources;
        fmt::print("{:<{}} {:<8} {:<8} {:>9} {:>9} {:>5} {:>6} {:>9}\n",
                   request.spec.id(),
                   width,
                   request.architecture.name(),
                   found->from_pack ? "pack" : "cache",
                   format_bytes(static_cast<Bytes>(found->binary.cubin.size())),
                   resources.registers,
                   resources.stack_bytes,
                   resources.spill_store_bytes,
                   format_bytes(resources.static_shared_bytes + request.spec.dynamic_shared_bytes));
    }
    int others = 0;
    for (const kernels::CacheEntry& entry : builder.cache().list()) {
        others += entry.fault.empty() && !digests.contains(entry.digest) ? 1 : 0;
    }
    fmt::print("\n{} kernels, {} of them missing; {} more in the folders\n",
               requests.size(),
               missing,
               others);
}

// What is there is not compiled again, so that an interrupted call can be repeated.
void compile(const kernels::KernelBuilder& builder,
             const std::vector<kernels::KernelRequest>& requests) {
    const auto begin = std::chrono::steady_clock::now();
    const std::vector<kernels::BuiltKernel> built = builder.build(requests);
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
    const auto num_compiled = std::count_if(built.begin(), built.end(), [](const auto& kernel) {
        return kernel.origin == kernels::KernelOrigin::Compiled;
    });
    fmt::print("compiled  {} of {} kernels in {}; the others were there\n",
               num_compiled,
               built.size(),
               format_seconds(elapsed.count()));
    const auto num_lost = std::count_if(
        built.begin(), built.end(), [](const auto& kernel) { return !kernel.is_kept; });
    if (num_lost > 0) {
        throw Error(ErrorKind::Storage,
                    {.what = fmt::format(
                         "{} of {} compiled kernels could not be written", num_lost, num_compiled),
                     .where = builder.cache().options().folder,
                     .cause = "the first warning above says why",
                     .hint = "Name another folder with --cache"});
    }
}

}  // namespace

int kernels_command(const Arguments& arguments, const std::string& command_line) {
    CLI::App app(
        "Lists the CUDA kernels that a configuration needs and what is cached of them.\n"
        "Where neither options nor settings name a model: those that packs are built for.\n"
        "A folder called kernels beside the program is a pack: a machine without NVRTC trains "
        "with it.",
        "dflash kernels");
    TrainOptions train_options;
    // Of the options of training, those that choose kernels.
    std::erase_if(train_options.aliases,
                  [](const TrainOptions::Alias& alias) { return !decides_kernels(alias.setting); });
    train_options.add_to(app);
    std::string architectures;
    std::string folder;
    bool compiles = false;
    bool clears = false;
    app.add_option("--arch",
                   architectures,
                   "GPU architectures, sm_80,sm_90a,sm_120a; default those of this machine's GPUs, "
                   "without any sm_80,sm_86,sm_89,sm_90a,sm_100a,sm_120a");
    app.add_option("--cache", folder, "folder of compiled kernels; default kernels in cache.dir");
    app.add_flag("--compile", compiles, "compiles what is missing; needs NVRTC but no GPU");
    app.add_flag("--clear", clears, "deletes the compiled kernels of the folder first");
    if (!parse(app, arguments)) {
        return 0;
    }
    const train::TrainRequest request = resolve(train_options, command_line);
    kernels::CacheOptions cache = train::kernel_cache_options(request.settings.cache);
    if (!folder.empty()) {
        cache = {.folder = folder};  // alone: what is compiled into it does not lean on packs
    }
    const kernels::KernelBuilder builder(kernels::SourceSet::embedded(), cache);
    // Clearing alone needs no model.
    if (clears) {
        const auto [count, bytes] = builder.cache().clear();
        fmt::print("deleted   {} kernels, {}, in {}\n",
                   count,
                   format_bytes(bytes),
                   escape_controls(cache.folder));
        if (!compiles) {
            return 0;
        }
    }
    const bool names_model =
        std::any_of(request.changed_settings.begin(),
                    request.changed_settings.end(),
                    [](const std::string& setting) {
                        return setting.starts_with("run.") || setting.starts_with("draft.");
                    });
    const Needs needs = names_model ? needs_of(request.settings) : needs_of_shipped();
    const model::HeadPrecision head_precision =
        model::head_precision(request.settings.draft.head_precision);
    std::vector<kernels::KernelRequest> requests;
    for (const kernels::Architecture& architecture :
         architectures.empty() ? architectures_of_machine(head_precision)
                               : kernels::parse_architectures(architectures)) {
        for (const kernels::KernelSpec& spec : needs.kernels(architecture)) {
            requests.push_back({spec, architecture});
        }
    }
    fmt::print("kernels   of {}\n", escape_controls(needs.of));
    if (compiles) {
        compile(builder, requests);
    }
    print_folders(builder);
    print_table(builder, requests);
    return 0;
}

}  // namespace dflash::cli
