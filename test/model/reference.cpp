// SPDX-License-Identifier: Apache-2.0
#include "reference.hpp"

#include <dflash/tensor/bridge.hpp>

#include <cmath>
#include <fmt/format.h>
#include <limits>
#include <numeric>

namespace dflash::model {
namespace {

at::Tensor norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
    return x * (x.square().mean(-1, true) + eps).rsqrt() * weight;
}

/// [rows, heads, d] turned by positions, written with rotate_half.
at::Tensor rotate(const at::Tensor& x, const std::vector<std::int64_t>& positions, double theta) {
    const std::int64_t d = x.size(2);
    std::vector<float> angles;
    for (const std::int64_t position : positions) {
        for (std::int64_t i = 0; i < d; ++i) {
            const double power = static_cast<double>(2 * (i % (d / 2))) / static_cast<double>(d);
            const float frequency = static_cast<float>(1.0 / std::pow(theta, power));
            angles.push_back(static_cast<float>(position) * frequency);
        }
    }
    const at::Tensor angle =
        tensor::upload(std::span<const float>(angles), at::kCPU).view({x.size(0), d});
    const at::Tensor cos = angle.cos().to(x.scalar_type()).unsqueeze(1);
    const at::Tensor sin = angle.sin().to(x.scalar_type()).unsqueeze(1);
    const at::Tensor half = at::cat({-x.narrow(2, d / 2, d - d / 2), x.narrow(2, 0, d / 2)}, 2);
    return x * cos + half * sin;
}

/// Attention of one block's queries to its keys; `visible` [B, S + B].
ReferenceAttention attend(const at::Tensor& q_BQd,
                          const at::Tensor& k_XKd,
                          const at::Tensor& v_XKd,
                          const at::Tensor& visible) {
    const std::int64_t G = q_BQd.size(1) / k_XKd.size(1);
    const at::Tensor k = k_XKd.repeat_interleave(G, 1);
    const at::Tensor v = v_XKd.repeat_interleave(G, 1);
    at::Tensor scores =
        at::einsum("bqd,xqd->qbx", {q_BQd, k}) / std::sqrt(static_cast<double>(q_BQd.size(2)));
    scores = scores.masked_fill(visible.logical_not(), -std::numeric_limits<double>::infinity());
    return {at::einsum("qbx,xqd->bqd", {scores.softmax(-1), v}),
            scores.logsumexp(-1).transpose(0, 1)};
}

/// Which keys, those of the context from `begin` to the anchor and then the block's, slots see.
at::Tensor visibility(std::int64_t begin,
                      std::int64_t anchor,
                      std::int64_t B,
                      const AttentionMask& mask) {
    std::vector<std::int32_t> visible;
    for (std::int64_t slot = 0; slot < B; ++slot) {
        const std::int64_t query = anchor + slot;
        for (std::int64_t t = begin; t < anchor; ++t) {
            visible.push_back(mask.window == 0 || query - t < mask.window ? 1 : 0);
        }
        for (std::int64_t j = 0; j < B; ++j) {
            const std::int64_t behind = slot - j;
            const bool ahead_hidden = mask.causal && behind < 0;
            const bool far = mask.window > 0 && std::abs(behind) >= mask.window;
            visible.push_back(ahead_hidden || far ? 0 : 1);
        }
    }
    return tensor::upload(std::span<const std::int32_t>(visible), at::kCPU)
        .view({B, -1})
        .to(at::kBool);
}

}  // namespace

ReferenceAttention reference_attention(const AttentionInputs& in,
                                       const AttentionMask& mask,
                                       const data::BlockPlan& blocks) {
    const std::int64_t B = blocks.block_size;
    std::vector<at::Tensor> o;
    std::vector<at::Tensor> lse;
    for (std::int64_t n = 0; n < blocks.num_blocks(); ++n) {
        const std::int64_t begin = blocks.context_begin[static_cast<std::size_t>(n)];
        const std::int64_t anchor = blocks.anchors[static_cast<std::size_t>(n)];
        const auto keys = [&](const at::Tensor& context, const at::Tensor& block) {
            return at::cat({context.narrow(0, begin, anchor - begin), block.narrow(0, n * B, B)});
        };
        const ReferenceAttention one = attend(in.q_MQd.narrow(0, n * B, B),
                                              keys(in.k_context_TKd, in.k_block_MKd),
                                              keys(in.v_context_TKd, in.v_block_MKd),
                                              visibility(begin, anchor, B, mask));
        o.push_back(one.o_MQd);
        lse.push_back(one.lse_MQ);
    }
    return {at::cat(o), at::cat(lse)};
}

Weights copy_weights(DraftWeights& weights) {
    Weights result;
    for (std::size_t i = 0; i < weights.specs().size(); ++i) {
        result[weights.specs()[i].name] = weights.weight(static_cast<std::int64_t>(i)).clone();
    }
    return result;
}

at::Tensor reference_hidden(const DraftConfig& config,
                            const Weights& weights,
                            const at::Tensor& embed_VH,
                            const data::PackedRow& row,
                            const at::Tensor& features_KTH) {
    const std::int64_t B = config.block_size;
    const std::int64_t d = config.head_dim;
    std::vector<at::Tensor> result;
    for (std::int64_t n = 0; n < row.blocks.num_blocks(); ++n) {
        const std::int64_t anchor = row.blocks.anchors[static_cast<std::size_t>(n)];
        const std::int64_t begin = row.blocks.context_begin[static_cast<std::size_t>(n)];
        const std::int64_t S = anchor - begin;  // also the anchor's position in its document
        std::vector<std::int64_t> context_positions(static_cast<std::size_t>(S));
        std::iota(context_positions.begin(), context_positions.end(), 0);
        std::vector<std::int64_t> block_positions(static_cast<std::size_t>(B));
        std::iota(block_positions.begin(), block_positions.end(), S);

        std::vector<at::Tensor> features;
        for (std::int64_t k = 0; k < config.num_features(); ++k) {
            features.push_back(features_KTH[k].narrow(0, begin, S));
        }
        const at::Tensor context = norm(at::cat(features, 1).matmul(weights.at("fc.weight").t()),
                                        weights.at("hidden_norm.weight"),
                                        config.rms_norm_eps);
        std::vector<at::Tensor> slots(static_cast<std::size_t>(B), embed_VH[config.mask_token_id]);
        slots[0] = embed_VH[row.tokens[static_cast<std::size_t>(anchor)]];
        at::Tensor h = at::stack(slots);
        for (std::int64_t i = 0; i < config.num_layers(); ++i) {
            const auto w = [&](const char* name) {
                return weights.at(fmt::format("layers.{}.{}.weight", i, name));
            };
            const auto heads = [&](const at::Tensor& x, const char* name) {
                return x.matmul(w(name).t()).unflatten(1, {-1, d});
            };
            const at::Tensor a = norm(h, w("input_layernorm"), config.rms_norm_eps);
            const auto key = [&](const at::Tensor& x, const std::vector<std::int64_t>& positions) {
                return rotate(
                    norm(heads(x, "self_attn.k_proj"), w("self_attn.k_norm"), config.rms_norm_eps),
                    positions,
                    config.rope_theta);
            };
            const at::Tensor q = rotate(
                norm(heads(a, "self_attn.q_proj"), w("self_attn.q_norm"), config.rms_norm_eps),
                block_positions,
                config.rope_theta);
            const at::Tensor k =
                at::cat({key(context, context_positions), key(a, block_positions)});
            const at::Tensor v =
                at::cat({heads(context, "self_attn.v_proj"), heads(a, "self_attn.v_proj")});
            const ReferenceAttention attention =
                attend(q, k, v, visibility(begin, anchor, B, {config.causal(i), config.window(i)}));
            h = h + attention.o_MQd.flatten(1).matmul(w("self_attn.o_proj").t());
            const at::Tensor m = norm(h, w("post_attention_layernorm"), config.rms_norm_eps);
            const at::Tensor gated =
                at::silu(m.matmul(w("mlp.gate_proj").t())) * m.matmul(w("mlp.up_proj").t());
            h = h + gated.matmul(w("mlp.down_proj").t());
        }
        result.push_back(norm(h, weights.at("norm.weight"), config.rms_norm_eps));
    }
    return at::cat(result);
}

at::Tensor reference_loss(const at::Tensor& hidden_MH,
                          const at::Tensor& head_VH,
                          const data::PackedRow& row) {
    at::Tensor loss = at::zeros({}, hidden_MH.options());
    for (std::size_t r = 0; r < row.blocks.head_rows.size(); ++r) {
        const at::Tensor logits = head_VH.matmul(hidden_MH[row.blocks.head_rows[r]]);
        loss = loss + (logits.logsumexp(0) - logits[row.blocks.labels[r]]) *
                          static_cast<double>(row.blocks.weights[r]);
    }
    return loss;
}

DraftConfig small_config(std::vector<LayerType> layers, std::int64_t block_size) {
    DraftConfig config;
    config.hidden_size = 24;
    config.intermediate_size = 20;
    config.num_heads = 4;
    config.num_kv_heads = 2;
    config.head_dim = 6;
    config.vocab_size = 40;
    config.block_size = block_size;
    config.mask_token_id = 39;
    config.target_layer_ids = {1, 4, 6};
    config.num_target_layers = 9;
    config.layer_types = std::move(layers);
    config.sliding_window = 7;
    config.rope_theta = 1e4;
    return config;
}

data::PackedRow make_row(const DraftConfig& config,
                         const std::vector<std::int32_t>& lengths,
                         const std::vector<std::vector<std::int32_t>>& anchors) {
    const data::BlockRule rule{.block_size = static_cast<std::int32_t>(config.block_size),
                               .loss_decay_gamma = 3,
                               .max_anchors = 1000};
    data::PackedRow row;
    for (std::size_t i = 0; i < lengths.size(); ++i) {
        std::vector<TokenId> tokens;
        std::vector<std::uint8_t> trainable;
        for (std::int32_t t = 0; t < lengths[i]; ++t) {
            tokens.push_back((7 * t + 3 + 5 * static_cast<TokenId>(i)) % 39);
            trainable.push_back(t % 6 == 4 ? 0 : 1);
        }
        data::append_document(row, static_cast<SampleId>(i), tokens);
        data::append_blocks(row, trainable, anchors[i], rule);
    }
    return row;
}

std::unique_ptr<Drafter> make_drafter(const DraftConfig& config,
                                      at::ScalarType dtype,
                                      std::int64_t recompute_layers) {
    at::manual_seed(11);
    const auto random = [&](std::int64_t rows) {
        return (at::randn({rows, config.hidden_size}, at::kDouble) * 0.5).to(dtype);
    };
    const at::Tensor embed_VH = random(config.vocab_size);
    const at::Tensor head_VH = random(config.vocab_size);
    auto drafter = std::make_unique<Drafter>(config,
                                             FrozenEnds{embed_VH, head_VH},
                                             at::kCPU,
                                             dtype,
                                             make_torch_paths(at::kCPU),
                                             DraftWeights::Use::Training,
                                             LossWeights{},
                                             recompute_layers);
    DraftWeights& weights = drafter->weights();
    for (std::size_t i = 0; i < weights.specs().size(); ++i) {
        const at::Tensor weight = weights.weight(static_cast<std::int64_t>(i));
        const at::Tensor values = weight.dim() == 1 ? at::rand(weight.sizes(), at::kDouble) + 0.5
                                                    : at::randn(weight.sizes(), at::kDouble) * 0.2;
        weight.copy_(values);
    }
    return drafter;
}

double largest_error(const at::Tensor& a, const at::Tensor& b) {
    if (a.sizes() != b.sizes()) {
        return std::numeric_limits<double>::infinity();
    }
    const at::Tensor expected = b.to(at::kDouble);
    const double scale = expected.abs().max().item<double>();
    return (a.to(at::kDouble) - expected).abs().max().item<double>() / scale;
}

}  // namespace dflash::model
