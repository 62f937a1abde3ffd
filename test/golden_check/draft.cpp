// SPDX-License-Identifier: Apache-2.0
// Mode "draft": hidden rows and logits of a drafter's folder against those that another
// implementation computed of the same folder (tools/golden/check_export.py).
#include "drafter_case.hpp"

#include <dflash/data/anchors.hpp>
#include <dflash/tensor/bridge.hpp>
#include <dflash/train/checkpoint.hpp>

#include <utility>
#include <vector>

namespace dflash::golden {
namespace {

constexpr double kTolerance = 1e-5;  // max/rms: two orders of fp32 rounding through the layers

template <class T>
std::vector<T> integers(const io::SafetensorsFile& file, const char* name) {
    const at::Tensor values = tensor::load(file.at(name), at::kCPU, at::kLong);
    std::vector<T> result;
    for (std::int64_t i = 0; i < values.numel(); ++i) {
        result.push_back(static_cast<T>(values[i].item<std::int64_t>()));
    }
    return result;
}

}  // namespace

void check_draft(const std::string& folder, const std::string& expected, Verdict& verdict) {
    const io::SafetensorsFile file(expected);
    const auto load = [&](const char* name) {
        return tensor::load(file.at(name), at::kCPU, at::kFloat);
    };
    train::LoadedDraft draft = train::load_draft(folder);
    const model::DraftConfig& config = draft.config;
    const at::Tensor head_VH = load("lm_head.weight");
    model::Drafter drafter(config,
                           {load("embed_tokens.weight"), head_VH},
                           at::kCPU,
                           at::kFloat,
                           model::make_torch_paths(at::kCPU));
    drafter.weights().compute_flat().copy_(draft.flat_fp32);

    const std::vector<TokenId> tokens = integers<TokenId>(file, "input_ids");
    const auto num_tokens = static_cast<std::int64_t>(tokens.size());
    data::PackedRow row;
    data::append_document(row, 0, tokens);
    data::append_blocks(row,
                        std::vector<std::uint8_t>(tokens.size(), 1),
                        integers<std::int32_t>(file, "anchors"),
                        {.block_size = static_cast<std::int32_t>(config.block_size),
                         .loss_decay_gamma = 0,
                         .max_anchors = num_tokens});
    const at::Tensor features_KTH =
        load("features").view({num_tokens, config.num_features(), -1}).transpose(0, 1).contiguous();
    const at::Tensor hidden_MH = drafter.hidden(row, features_KTH);
    const at::Tensor expected_MH = load("hidden").view({-1, config.hidden_size});
    verdict.exact("number of hidden rows",
                  hidden_MH.size(0) == expected_MH.size(0) ? 0 : 1,
                  expected_MH.size(0),
                  "");
    verdict.compare("hidden", max_over_rms(hidden_MH, expected_MH), kTolerance, folder);
    verdict.compare(
        "logits",
        max_over_rms(hidden_MH.matmul(head_VH.t()), load("logits").view({-1, config.vocab_size})),
        kTolerance,
        folder);
}

}  // namespace dflash::golden
