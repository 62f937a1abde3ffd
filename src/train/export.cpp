// SPDX-License-Identifier: Apache-2.0
#include "checkpoint_files.hpp"
#include "draft_files.hpp"

#include <dflash/core/error.hpp>
#include <dflash/core/scope.hpp>
#include <dflash/core/text.hpp>
#include <dflash/io/atomic_file.hpp>
#include <dflash/io/json.hpp>
#include <dflash/target/config.hpp>
#include <dflash/tensor/bridge.hpp>
#include <dflash/train/checkpoint.hpp>
#include <dflash/train/export.hpp>

#include <algorithm>
#include <filesystem>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <system_error>
#include <unistd.h>
#include <utility>

namespace dflash::train {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(ErrorKind kind, std::string what, std::string where, std::string hint = {}) {
    throw Error(
        kind,
        {.what = std::move(what), .where = std::move(where), .cause = {}, .hint = std::move(hint)});
}

/// What config.json of a target says; of any architecture, also of one that cannot be trained here.
struct TargetFacts {
    std::string folder;
    std::vector<std::string> architectures;
    std::optional<std::int64_t> hidden_size;
    std::optional<std::int64_t> vocab_size;
    std::optional<std::int64_t> num_layers;
};

TargetFacts read_target(const std::string& name) {
    TargetFacts facts{.folder = target::find_target(name).folder,
                      .architectures = {},
                      .hidden_size = {},
                      .vocab_size = {},
                      .num_layers = {}};
    const std::string path = facts.folder + "/config.json";
    const io::Json json = io::read_json_file(path);
    if (const io::Json* names = json.find("architectures"); names != nullptr && names->is_array()) {
        for (const io::Json& item : names->items()) {
            facts.architectures.push_back(item.is_string() ? item.as_string() : item.dump());
        }
    }
    // Models with several parts keep what concerns the text in a config of its own.
    const io::Json* text = json.find("text_config");
    const io::Json& inner = text != nullptr && text->is_object() ? *text : json;
    facts.hidden_size = inner.optional_integer("hidden_size", path);
    facts.vocab_size = inner.optional_integer("vocab_size", path);
    facts.num_layers = inner.optional_integer("num_hidden_layers", path);
    return facts;
}

void check_against(const TargetFacts& target, model::DraftConfig& config, const std::string& from) {
    const auto must_match =
        [&](const char* what, std::int64_t draft, std::optional<std::int64_t> of_target) {
            if (of_target && draft != *of_target) {
                fail(ErrorKind::Config,
                     fmt::format(
                         "{} of the drafter is {}, but the target has {}", what, draft, *of_target),
                     from,
                     fmt::format("The drafter belongs to another target than {}", target.folder));
            }
        };
    must_match("hidden_size", config.hidden_size, target.hidden_size);
    must_match("vocab_size", config.vocab_size, target.vocab_size);
    if (config.num_target_layers == 0 && target.num_layers) {
        config.num_target_layers = *target.num_layers;
        config.validate(from + "/config.json");
    }
    must_match("num_target_layers", config.num_target_layers, target.num_layers);
}

/// The target's facts where they can be had: a drafter may be exported far from its target, but
/// one that is named is there, and a speculators config cannot do without.
std::optional<TargetFacts> facts_of_target(const ExportRequest& request, const std::string& name) {
    const bool needed =
        !request.target.empty() || request.format == model::DraftFormat::Speculators;
    if (name.empty()) {
        if (needed) {
            fail(ErrorKind::Config,
                 "a speculators config names the target, and nothing says which it is",
                 request.source,
                 "Name it with --target");
        }
        return std::nullopt;
    }
    if (needed) {
        return read_target(name);
    }
    try {
        return read_target(name);
    } catch (const Error&) {
        return std::nullopt;
    }
}

/// What goes into model.safetensors: the bits of the files, where they are bf16.
class WeightSources {
  public:
    /// Refuses weights that are missing, misshapen, not explained by the configuration or not
    /// finite.
    explicit WeightSources(const std::string& folder) : files_(folder) {
        for (const DraftFiles::Entry& entry : files_.entries()) {
            require_finite(entry);
            rounded_ += entry.view->dtype == io::DType::BF16 ? 0 : 1;
            sources_.push_back({.name = entry.spec.name,
                                .dtype = io::DType::BF16,
                                .shape = entry.spec.shape,
                                .write = [view = entry.view](const auto& sink) {
                                    const at::Tensor bf16 =
                                        tensor::load(*view, at::kCPU, at::kBFloat16);
                                    sink(tensor::bytes_of(bf16));
                                }});
        }
    }

    const std::vector<io::TensorSource>& sources() const { return sources_; }

    std::int64_t rounded() const { return rounded_; }

  private:
    void require_finite(const DraftFiles::Entry& entry) const {
        const at::Tensor values = tensor::load(*entry.view, at::kCPU, at::kBFloat16);
        const std::int64_t bad = values.isfinite().logical_not().sum().item<std::int64_t>();
        if (bad > 0) {
            fail(ErrorKind::Data,
                 fmt::format("{} of {} values of {} are not finite",
                             format_count(bad),
                             format_count(values.numel()),
                             entry.spec.name),
                 files_.file_of(entry),
                 "Export another step of its run: RUN --step N");
        }
    }

    DraftFiles files_;
    std::vector<io::TensorSource> sources_;
    std::int64_t rounded_ = 0;
};

void refuse_what_is_there(const std::string& output) {
    std::error_code ignored;
    if (fs::exists(fs::symlink_status(output, ignored))) {
        fail(ErrorKind::Config, "the output is there already", output, "Choose another --output");
    }
}

/// The folder's parent, which is made where it is missing.
void make_parent(const std::string& output) {
    const fs::path parent = fs::path(output).parent_path();
    if (!parent.empty()) {
        io::create_folders(parent.string());
    }
}

void require_equal(const DraftComparison& comparison, const std::string& output) {
    if (comparison.differences.empty()) {
        return;
    }
    constexpr std::size_t kTold = 5;
    std::vector<std::string> told(
        comparison.differences.begin(),
        comparison.differences.begin() +
            static_cast<std::ptrdiff_t>(std::min(kTold, comparison.differences.size())));
    if (comparison.differences.size() > kTold) {
        told.push_back(fmt::format("{} more", comparison.differences.size() - kTold));
    }
    fail(ErrorKind::Data,
         fmt::format("what was written differs from the drafter: {}", fmt::join(told, "; ")),
         output,
         "Nothing was kept; the disk or the machine's memory may be at fault");
}

}  // namespace

ExportResult export_draft(const ExportRequest& request) {
    std::string output = request.output;
    while (output.size() > 1 && output.back() == '/') {
        output.pop_back();
    }
    refuse_what_is_there(output);
    ExportResult result;
    result.source = find_draft(request.source, request.step);
    result.config = read_draft_config(result.source.draft_folder);
    result.target = request.target.empty() ? result.source.target : request.target;
    model::Verifier verifier{.name = result.target, .architectures = {}};
    if (const auto facts = facts_of_target(request, result.target)) {
        check_against(*facts, result.config, result.source.draft_folder);
        verifier.architectures = facts->architectures;
    }
    if (const auto refused = model::refusal(request.format, result.config)) {
        fail(ErrorKind::Config,
             fmt::format("the drafter cannot be exported to {}: {}",
                         to_string(request.format),
                         refused->reason),
             result.source.draft_folder,
             refused->hint);
    }
    const WeightSources weights(result.source.draft_folder);

    make_parent(output);
    const std::string temporary = fmt::format("{}.tmp-{}", output, ::getpid());
    remove_tree(temporary);
    const ScopeGuard remove_half([&] {
        std::error_code ignored;
        fs::remove_all(temporary, ignored);
    });
    io::create_folders(temporary);
    io::write_file_atomically(
        temporary + "/config.json",
        config_json(request.format, result.config, verifier).dump_pretty() + "\n");
    io::write_safetensors(temporary + "/model.safetensors", weights.sources(), {{"format", "pt"}});
    if (request.check) {
        result.comparison = compare_drafts(result.source.draft_folder, temporary);
        require_equal(*result.comparison, output);
    }
    io::publish_folder(temporary, output);
    result.num_weights = std::ssize(weights.sources());
    result.rounded_weights = weights.rounded();
    result.bytes = static_cast<Bytes>(fs::file_size(output + "/model.safetensors"));
    return result;
}

}  // namespace dflash::train
