// SPDX-License-Identifier: Apache-2.0
#include "step_case.hpp"

#include <dflash/core/check.hpp>
#include <dflash/core/error.hpp>
#include <dflash/data/anchors.hpp>

#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <functional>
#include <map>

namespace dflash::bench {
namespace {

using model::DraftConfig;
using model::LayerType;

/// What the presets have in common: five full layers with five features.
DraftConfig full_layers() {
    DraftConfig config;
    config.block_size = 16;
    config.target_layer_ids = {1, 9, 17, 25, 33};
    config.num_target_layers = 36;
    config.layer_types = std::vector(5, LayerType::Full);
    return config;
}

/// Source: config.json of z-lab/Qwen3-8B-DFlash-b16.
DraftConfig qwen3_8b() {
    DraftConfig config = full_layers();
    config.hidden_size = 4096;
    config.intermediate_size = 12288;
    config.num_heads = 32;
    config.num_kv_heads = 8;
    config.head_dim = 128;
    config.vocab_size = 151936;
    config.mask_token_id = 151669;
    return config;
}

/// Source: config.json of z-lab/Qwen3.6-27B-DFlash.
DraftConfig qwen3_6_27b() {
    DraftConfig config = full_layers();
    config.hidden_size = 5120;
    config.intermediate_size = 17408;
    config.num_heads = 32;
    config.num_kv_heads = 8;
    config.head_dim = 128;
    config.vocab_size = 248320;
    config.mask_token_id = 248070;
    config.target_layer_ids = {1, 16, 31, 46, 61};
    config.num_target_layers = 64;
    config.layer_types = std::vector(4, LayerType::Sliding);
    config.layer_types.push_back(LayerType::Full);
    config.sliding_window = 2048;
    config.rope_theta = 1e7;
    return config;
}

/// The sizes of SmolLM2-135M's layers.
DraftConfig smollm2() {
    DraftConfig config = full_layers();
    config.hidden_size = 576;
    config.intermediate_size = 1536;
    config.num_heads = 9;
    config.num_kv_heads = 3;
    config.head_dim = 64;
    config.vocab_size = 49152;
    config.mask_token_id = 2;
    config.target_layer_ids = {1, 8, 15, 22, 27};
    config.num_target_layers = 30;
    return config;
}

DraftConfig tiny() {
    DraftConfig config = full_layers();
    config.hidden_size = 64;
    config.intermediate_size = 96;
    config.num_heads = 4;
    config.num_kv_heads = 2;
    config.head_dim = 32;
    config.vocab_size = 500;
    config.block_size = 8;
    config.mask_token_id = 1;
    config.layer_types = {LayerType::Sliding, LayerType::Full};
    config.sliding_window = 32;
    return config;
}

const std::map<std::string, std::function<DraftConfig()>, std::less<>>& presets() {
    static const std::map<std::string, std::function<DraftConfig()>, std::less<>> all{
        {"qwen3-8b", qwen3_8b}, {"27b", qwen3_6_27b}, {"smollm2", smollm2}, {"tiny", tiny}};
    return all;
}

/// (query, key) pairs of one head in one layer.
double visible_pairs(const DraftConfig& config, const data::BlockPlan& blocks, std::int64_t layer) {
    const std::int64_t B = blocks.block_size;
    const std::int64_t window = config.window(layer);
    double pairs = 0;
    for (std::size_t n = 0; n < blocks.anchors.size(); ++n) {
        const std::int64_t anchor = blocks.anchors[n];
        for (std::int64_t k = 0; k < B; ++k) {
            const std::int64_t begin =
                window == 0
                    ? blocks.context_begin[n]
                    : std::max<std::int64_t>(blocks.context_begin[n], anchor + k - window + 1);
            pairs += static_cast<double>(std::max<std::int64_t>(anchor - begin, 0) +
                                         (config.causal(layer) ? k + 1 : B));
        }
    }
    return pairs;
}

}  // namespace

std::vector<std::string> preset_names() {
    std::vector<std::string> names;
    for (const auto& [name, make] : presets()) {
        names.push_back(name);
    }
    return names;
}

DraftConfig preset(std::string_view name) {
    const auto found = presets().find(name);
    if (found == presets().end()) {
        throw Error(
            ErrorKind::Config,
            {.what = fmt::format(
                 "--model: got '{}', expected one of {}", name, fmt::join(preset_names(), ", ")),
             .where = "command line",
             .cause = {},
             .hint = "give another drafter's config.json with --config"});
    }
    return found->second();
}

data::PackedRow make_row(const DraftConfig& config, const RowSize& size) {
    data::PackedRow row;
    data::BlockRule rule;
    rule.block_size = narrow<std::int32_t>(config.block_size);
    rule.loss_decay_gamma = data::default_gamma(config.block_size);
    for (std::int64_t i = 0; i < size.documents; ++i) {
        const auto share = [&](std::int64_t all) {
            return all * (i + 1) / size.documents - all * i / size.documents;
        };
        std::vector<TokenId> tokens(static_cast<std::size_t>(share(size.tokens)));
        for (std::size_t t = 0; t < tokens.size(); ++t) {
            tokens[t] = narrow<TokenId>(static_cast<std::int64_t>(t * 7919) % config.vocab_size);
        }
        rule.max_anchors = share(size.anchors);
        const std::vector<std::uint8_t> trainable(tokens.size(), 1);
        data::append_document(row, i, tokens);
        data::append_blocks(
            row, trainable, data::draw_anchors(trainable, rule, /*seed=*/1, /*epoch=*/0, i), rule);
    }
    return row;
}

Flops count_flops(const DraftConfig& config, const data::PackedRow& row) {
    const auto of = [](std::int64_t size) { return static_cast<double>(size); };
    const double T = of(row.num_tokens());
    const double M = of(row.blocks.num_blocks() * config.block_size);
    const double R = of(narrow<std::int64_t>(row.blocks.head_rows.size()));
    const double H = of(config.hidden_size);
    const double D = of(config.num_layers());
    const double queries = of(config.num_heads * config.head_dim);
    const double keys = of(config.num_kv_heads * config.head_dim);
    Flops flops;
    const double fc = 2 * T * of(config.num_features()) * H * H;
    const double context = 2 * T * H * 2 * keys * D;
    // The first layer projects every embedding once, the last one ends with the head's rows.
    const double projected = M * (D - 1) + of(row.blocks.num_blocks() + 2);
    const double finished = M * (D - 1) + R;
    const double block = 2 * H *
                         (projected * (queries + 2 * keys) +
                          finished * (queries + 3 * of(config.intermediate_size)));
    const double head = 2 * R * H * of(config.vocab_size);
    flops.gemm = 2 * fc + 3 * (context + block) + 2 * head;
    for (std::int64_t layer = 0; layer < config.num_layers(); ++layer) {
        flops.attention += 3.5 * 4 * queries * visible_pairs(config, row.blocks, layer);
    }
    return flops;
}

}  // namespace dflash::bench
