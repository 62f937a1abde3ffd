// SPDX-License-Identifier: Apache-2.0
// K tapped layers, T tokens of the made-up row, H hidden size, M block rows.
#include "draft_files.hpp"

#include <dflash/core/random.hpp>
#include <dflash/data/anchors.hpp>
#include <dflash/model/drafter.hpp>
#include <dflash/tensor/bridge.hpp>
#include <dflash/train/checkpoint.hpp>
#include <dflash/train/export.hpp>

#include <ATen/ATen.h>
#include <algorithm>
#include <fmt/format.h>
#include <set>
#include <string>

namespace dflash::train {
namespace {

/// Of the made-up row: enough for a block with a long context and one with a short.
constexpr std::int64_t kTokens = 48;
constexpr TokenId kWords = 3;  // its vocabulary; the next id stands for the mask token
constexpr std::uint64_t kSeed = 1;

/// Keys of the published format that differ.
void compare_configs(const model::DraftConfig& config,
                     const model::DraftConfig& other,
                     std::vector<std::string>& differences) {
    const auto published = [](model::DraftConfig draft) {
        draft.is_causal = model::stated_causality(draft);
        return draft.to_json();
    };
    const io::Json a = published(config);
    const io::Json b = published(other);
    std::set<std::string> keys;
    for (const io::Json* json : {&a, &b}) {
        for (const auto& [key, value] : json->members()) {
            keys.insert(key);
        }
    }
    const auto text = [](const io::Json* value) {
        return value == nullptr ? std::string("none") : value->dump();
    };
    for (const std::string& key : keys) {
        if (text(a.find(key)) != text(b.find(key))) {
            differences.push_back(fmt::format(
                "{} is {}, and {} in the other", key, text(a.find(key)), text(b.find(key))));
        }
    }
}

void compare_weights(const DraftFiles& files, const DraftFiles& others, DraftComparison& result) {
    const auto bits = [](const DraftFiles::Entry& entry) {
        return tensor::load(*entry.view, at::kCPU, at::kBFloat16).view(at::kShort);
    };
    for (std::size_t i = 0; i < files.entries().size(); ++i) {
        const at::Tensor a = bits(files.entries()[i]);
        const at::Tensor b = bits(others.entries()[i]);
        ++result.num_weights;
        if (!a.equal(b)) {
            result.differences.push_back(fmt::format("{} of {} values of {} differ",
                                                     a.ne(b).sum().item<std::int64_t>(),
                                                     a.numel(),
                                                     files.entries()[i].spec.name));
        }
    }
}

/// Standard normal numbers, the same on every machine.
at::Tensor made_up(at::IntArrayRef shape, std::uint64_t id) {
    RandomStream stream(kSeed, Purpose::Test, 0, id);
    at::Tensor values = at::empty(shape, at::kFloat);
    std::generate_n(values.data_ptr<float>(), values.numel(), [&] {
        return static_cast<float>(stream.normal());
    });
    return values;
}

data::PackedRow made_up_row(const model::DraftConfig& config) {
    RandomStream stream(kSeed, Purpose::Test, 0, 2);
    std::vector<TokenId> tokens(kTokens);
    std::generate(
        tokens.begin(), tokens.end(), [&] { return static_cast<TokenId>(stream.below(kWords)); });
    const std::vector<std::uint8_t> trainable(tokens.size(), 1);
    const std::vector<std::int32_t> anchors{2, kTokens - 4};
    data::PackedRow row;
    data::append_document(row, 0, tokens);
    data::append_blocks(row,
                        trainable,
                        anchors,
                        {.block_size = static_cast<std::int32_t>(config.block_size),
                         .loss_decay_gamma = 0,
                         .max_anchors = 2});
    return row;
}

/// Final-norm output of the made-up row, [M, H], in fp32 with weights as bf16.
at::Tensor hidden_rows(const std::string& folder) {
    LoadedDraft draft = load_draft(folder);
    // Hidden rows need no vocabulary but the row's own.
    draft.config.vocab_size = kWords + 1;
    draft.config.mask_token_id = kWords;
    const at::Tensor embed_VH = made_up({kWords + 1, draft.config.hidden_size}, 0);
    model::Drafter drafter(draft.config,
                           {embed_VH, embed_VH},
                           at::kCPU,
                           at::kFloat,
                           model::make_torch_paths(at::kCPU));
    drafter.weights().compute_flat().copy_(draft.flat_fp32.to(at::kBFloat16));
    draft.flat_fp32.reset();
    return drafter.hidden(
        made_up_row(draft.config),
        made_up({draft.config.num_features(), kTokens, draft.config.hidden_size}, 1));
}

}  // namespace

DraftComparison compare_drafts(const std::string& folder, const std::string& other_folder) {
    const DraftFiles files(folder);
    const DraftFiles others(other_folder);
    model::DraftConfig config = files.config();
    if (config.num_target_layers == 0) {
        config.num_target_layers = others.config().num_target_layers;  // which the target told
    }
    DraftComparison comparison;
    compare_configs(config, others.config(), comparison.differences);
    const bool same_weights =
        std::equal(files.entries().begin(),
                   files.entries().end(),
                   others.entries().begin(),
                   others.entries().end(),
                   [](const auto& a, const auto& b) {
                       return a.spec.name == b.spec.name && a.spec.shape == b.spec.shape;
                   });
    if (!same_weights) {
        return comparison;  // the configurations say why
    }
    compare_weights(files, others, comparison);
    const at::Tensor a_MH = hidden_rows(folder);
    const at::Tensor b_MH = hidden_rows(other_folder);
    comparison.num_hidden_rows = a_MH.size(0);
    if (a_MH.sizes() != b_MH.sizes()) {
        comparison.differences.emplace_back("a made-up row has another number of hidden rows");
    } else if (!a_MH.view(at::kInt).equal(b_MH.view(at::kInt))) {  // a NaN equals itself
        comparison.differences.push_back(
            fmt::format("hidden rows of a made-up row differ by up to {:.3e}",
                        (a_MH - b_MH).abs().max().item<double>()));
    }
    return comparison;
}

}  // namespace dflash::train
