// SPDX-License-Identifier: Apache-2.0
// Drafters as they lie in a folder, our own and those of others.
#include "draft_files.hpp"

#include <dflash/core/error.hpp>
#include <dflash/core/log.hpp>
#include <dflash/io/json.hpp>
#include <dflash/tensor/bridge.hpp>
#include <dflash/train/checkpoint.hpp>
#include <dflash/train/draft_source.hpp>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <string>
#include <string_view>
#include <vector>

namespace dflash::train {
namespace {

/// What speculators stores besides a drafter's own weights (04013bd convert/dflash/converter.py):
/// the target's embedding, its head, cut to the drafter's vocabulary, and how that maps.
constexpr std::array<std::string_view, 6> kOfSpeculators{"d2t",
                                                         "embed_tokens.weight",
                                                         "lm_head.weight",
                                                         "t2d",
                                                         "verifier_lm_head.weight",
                                                         "verifier_norm.weight"};

std::string config_path(const std::string& folder) {
    std::string path = folder + "/config.json";
    if (!std::filesystem::exists(path)) {
        throw Error(ErrorKind::Config,
                    {.what = "no config.json in the drafter's folder",
                     .where = folder,
                     .cause = {},
                     .hint = "Expected a folder with config.json and model.safetensors"});
    }
    return path;
}

/// Refuses weights of other names than these, but for those that speculators adds.
void judge_others(const std::string& folder,
                  const io::SafetensorsFolder& weights,
                  const std::vector<std::string>& own) {
    const io::Json json = io::read_json_file(config_path(folder));
    const bool of_speculators = json.find("speculators_model_type") != nullptr;
    std::vector<std::string> unknown;
    std::vector<std::string> left_out;
    for (const std::string& name : weights.names()) {
        if (std::find(own.begin(), own.end(), name) != own.end()) {
            continue;
        }
        const bool known =
            of_speculators &&
            std::find(kOfSpeculators.begin(), kOfSpeculators.end(), name) != kOfSpeculators.end();
        (known ? left_out : unknown).push_back(name);
    }
    if (!unknown.empty()) {
        throw Error(
            ErrorKind::Data,
            {.what =
                 fmt::format("the drafter has weights that its config.json does not explain: {}",
                             fmt::join(unknown, ", ")),
             .where = folder,
             .cause = {},
             .hint = "Plain DFlash drafters have 11 weights a layer and fc, hidden_norm, norm"});
    }
    if (!left_out.empty()) {
        log_info(
            "{}: {} are left out: embedding and head are the target's, with all its vocabulary",
            folder,
            fmt::join(left_out, ", "));
    }
}

}  // namespace

model::DraftConfig read_draft_config(const std::string& folder) {
    const std::string path = config_path(folder);
    return model::DraftConfig::from_json(io::read_json_file(path), path);
}

DraftFiles::DraftFiles(const std::string& folder)
    : config_(read_draft_config(folder)), weights_(folder) {
    std::vector<std::string> own;
    for (const model::WeightSpec& spec : model::weight_specs(config_)) {
        const std::string prefixed = "model." + spec.name;
        const bool has_prefix =
            weights_.find(spec.name) == nullptr && weights_.find(prefixed) != nullptr;
        own.push_back(has_prefix ? prefixed : spec.name);
        const io::TensorView* view = weights_.find(own.back());
        if (view == nullptr) {
            throw Error(ErrorKind::Data,
                        {.what = fmt::format("the drafter has no weight {} of shape [{}]",
                                             spec.name,
                                             fmt::join(spec.shape, ", ")),
                         .where = folder,
                         .cause = {},
                         .hint = {}});
        }
        tensor::expect_file_shape(*view, spec.shape, weights_.file_of(own.back()));
        entries_.push_back({spec, view});
    }
    judge_others(folder, weights_, own);
}

LoadedDraft load_draft(const std::string& folder) {
    const DraftFiles files(folder);
    LoadedDraft draft{.config = files.config(),
                      .flat_fp32 = at::empty({model::num_parameters(files.config())}, at::kFloat)};
    std::int64_t offset = 0;
    for (const DraftFiles::Entry& entry : files.entries()) {
        const std::int64_t count = entry.spec.num_elements();
        tensor::load_into(*entry.view,
                          draft.flat_fp32.narrow(0, offset, count).view(entry.spec.shape),
                          files.file_of(entry));
        offset += count;
    }
    return draft;
}

}  // namespace dflash::train
