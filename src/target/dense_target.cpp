// SPDX-License-Identifier: Apache-2.0
// Legend: T tokens of the row, C rows of a piece of the MLP, H hidden size, N heads, D head size,
// Q = query heads x D, K = key heads x D, I inner size, V vocabulary.
#include "dense_target.hpp"

#include "attention.hpp"

#include <dflash/core/check.hpp>
#include <dflash/tensor/bridge.hpp>
#include <dflash/tensor/linear.hpp>
#include <dflash/tensor/rms_norm.hpp>
#include <dflash/tensor/swiglu.hpp>

#include <algorithm>

namespace dflash::target {
namespace {

// The MLP runs over pieces of the row: its inner activations then stay in the CPU's cache, and
// are bounded on every device.
constexpr std::int64_t kMlpRowsCpu = 512;
constexpr std::int64_t kMlpRowsCuda = 8192;

std::int64_t mlp_rows(std::int64_t tokens, bool cuda) {
    return std::min(tokens, cuda ? kMlpRowsCuda : kMlpRowsCpu);
}

void check_input(const PackedInput& input, std::int64_t vocab_size) {
    DFLASH_CHECK(input.positions.size() == input.tokens.size(),
                 "{} positions for {} tokens",
                 input.positions.size(),
                 input.tokens.size());
    DFLASH_CHECK(!input.starts.empty() &&
                     static_cast<std::size_t>(input.starts.back()) == input.tokens.size(),
                 "starts must end with the number of tokens, {}",
                 input.tokens.size());
    for (std::size_t i = 0; i < input.tokens.size(); ++i) {
        DFLASH_CHECK(input.tokens[i] >= 0 && input.tokens[i] < vocab_size,
                     "token {} at {} is outside the vocabulary of {}",
                     input.tokens[i],
                     i,
                     vocab_size);
    }
}

}  // namespace

DenseTarget::DenseTarget(TargetConfig config,
                         DenseWeights weights,
                         std::shared_ptr<tensor::RowOps> row_ops)
    : TargetModel(std::move(config)),
      weights_(std::move(weights)),
      ops_(row_ops ? std::move(row_ops) : std::make_shared<tensor::TorchRowOps>()),
      rope_(rope_table(config_.rope, config_.head_dim, config_.max_position_embeddings)),
      frequencies_F_(
          tensor::upload(std::span<const float>(rope_.inv_freq), weights_.embed_VH.device())) {}

DenseTarget::Buffers DenseTarget::make_buffers(std::int64_t tokens) const {
    const at::TensorOptions options = weights_.embed_VH.options();
    const std::int64_t q_columns = config_.num_heads * config_.head_dim;
    const std::int64_t k_columns = config_.num_kv_heads * config_.head_dim;
    const std::int64_t piece = mlp_rows(tokens, options.device().is_cuda());
    return {
        .residual_TH = at::empty({tokens, config_.hidden_size}, options),
        .normed_TH = at::empty({tokens, config_.hidden_size}, options),
        .qkv_TQKK = at::empty({tokens, q_columns + 2 * k_columns}, options),
        .qk_TND = at::empty({tokens, config_.num_heads + config_.num_kv_heads, config_.head_dim},
                            options),
        .mixed_TQ = at::empty({tokens, q_columns}, options),
        .gate_up_CII = at::empty({piece, 2 * config_.intermediate_size}, options),
        .inner_CI = at::empty({piece, config_.intermediate_size}, options),
    };
}

void DenseTarget::reserve(std::int64_t tokens) {
    if (!buffers_.residual_TH.defined() || buffers_.residual_TH.size(0) < tokens) {
        buffers_ = {};  // first give back, then take
        buffers_ = make_buffers(tokens);
    }
}

std::vector<std::int64_t> DenseTarget::sorted_taps(std::span<const std::int64_t> taps) const {
    std::vector<std::int64_t> sorted(taps.begin(), taps.end());
    std::sort(sorted.begin(), sorted.end());
    const auto num_loaded = static_cast<std::int64_t>(weights_.layers.size());
    for (std::size_t i = 0; i < sorted.size(); ++i) {
        DFLASH_CHECK(sorted[i] >= 0 && sorted[i] < num_loaded,
                     "layer {} is tapped, {} are loaded",
                     sorted[i],
                     num_loaded);
        DFLASH_CHECK(i == 0 || sorted[i] != sorted[i - 1], "layer {} is tapped twice", sorted[i]);
    }
    return sorted;
}

void DenseTarget::capture(const PackedInput& input,
                          std::span<const std::int64_t> taps,
                          const FeatureSink& sink) {
    check_input(input, config_.vocab_size);
    const std::vector<std::int64_t> sorted = sorted_taps(taps);
    if (sorted.empty()) {
        return;
    }
    const auto tokens = static_cast<std::int64_t>(input.tokens.size());
    const at::Device device = weights_.embed_VH.device();
    reserve(tokens);
    at::Tensor residual_TH = buffers_.residual_TH.narrow(0, 0, tokens);
    if (tokens == 0) {
        for (const std::int64_t layer : sorted) {
            sink(layer, residual_TH);
        }
        return;
    }

    const PackedLayout layout(input.starts, device);
    const tensor::RotaryTable rotary = tensor::rotary_table(
        tensor::upload(input.positions, device), frequencies_F_, rope_.attention_factor);
    const at::Tensor mixed_TQ = buffers_.mixed_TQ.narrow(0, 0, tokens);
    const Attend attend =
        [&](const at::Tensor& q_TND, const at::Tensor& k_TGD, const at::Tensor& v_TGD) {
            packed_causal_attention(mixed_TQ.view(q_TND.sizes()), q_TND, k_TGD, v_TGD, layout);
            return mixed_TQ;
        };
    at::index_select_out(residual_TH, weights_.embed_VH, 0, tensor::upload(input.tokens, device));
    std::size_t next_tap = 0;
    for (std::int64_t l = 0; next_tap < sorted.size(); ++l) {
        const DenseLayerWeights& layer = weights_.layers[static_cast<std::size_t>(l)];
        attention_block(layer, buffers_, residual_TH, rotary, attend);
        mlp_block(layer, buffers_, residual_TH);
        if (sorted[next_tap] == l) {
            sink(l, residual_TH);
            ++next_tap;
        }
    }
}

// x += W_o attention(rope(q), rope(k), v) with q, k, v = W norm(x); Qwen3 norms q and k per head
// before they turn.
void DenseTarget::attention_block(const DenseLayerWeights& layer,
                                  const Buffers& buffers,
                                  const at::Tensor& residual_TH,
                                  const tensor::RotaryTable& rotary,
                                  const Attend& attend) {
    const std::int64_t tokens = residual_TH.size(0);
    const std::int64_t num_q = config_.num_heads;
    const std::int64_t num_k = config_.num_kv_heads;
    const at::Tensor normed_TH = buffers.normed_TH.narrow(0, 0, tokens);
    const at::Tensor qkv_TQKK = buffers.qkv_TQKK.narrow(0, 0, tokens);
    ops_->rms_norm(normed_TH, residual_TH, layer.input_norm_H, config_.rms_norm_eps, nullptr);
    tensor::linear_out(qkv_TQKK, normed_TH, layer.qkv_QKKH);

    const at::Tensor qkv_TND = qkv_TQKK.view({tokens, num_q + 2 * num_k, config_.head_dim});
    const at::Tensor projected_TND = qkv_TND.narrow(1, 0, num_q + num_k);
    const at::Tensor scratch_TND = buffers.qk_TND.narrow(0, 0, tokens);
    const auto turn = [&](std::int64_t first, std::int64_t count, const at::Tensor& norm_D) {
        ops_->head_norm(scratch_TND.narrow(1, first, count),
                        projected_TND.narrow(1, first, count),
                        norm_D,
                        config_.rms_norm_eps,
                        rotary,
                        /*inverse_rms_RN1=*/nullptr);
    };
    if (config_.family == Family::Qwen3) {
        turn(0, num_q, layer.q_norm_D);
        turn(num_q, num_k, layer.k_norm_D);
    } else {
        turn(0, num_q + num_k, {});
    }

    const at::Tensor mixed_TQ = attend(scratch_TND.narrow(1, 0, num_q),
                                       scratch_TND.narrow(1, num_q, num_k),
                                       qkv_TND.narrow(1, num_q + num_k, num_k));
    tensor::linear_add(residual_TH, mixed_TQ, layer.out_HQ);
}

// x += W_down (silu(W_gate norm(x)) * W_up norm(x))
void DenseTarget::mlp_block(const DenseLayerWeights& layer,
                            const Buffers& buffers,
                            const at::Tensor& residual_TH) {
    const std::int64_t tokens = residual_TH.size(0);
    const std::int64_t inner = config_.intermediate_size;
    const std::int64_t piece = mlp_rows(tokens, residual_TH.is_cuda());
    for (std::int64_t begin = 0; begin < tokens; begin += piece) {
        const std::int64_t rows = std::min(piece, tokens - begin);
        const at::Tensor residual_CH = residual_TH.narrow(0, begin, rows);
        const at::Tensor normed_CH = buffers.normed_TH.narrow(0, begin, rows);
        const at::Tensor gate_up_CII = buffers.gate_up_CII.narrow(0, 0, rows);
        const at::Tensor inner_CI = buffers.inner_CI.narrow(0, 0, rows);
        ops_->rms_norm(normed_CH, residual_CH, layer.mlp_norm_H, config_.rms_norm_eps, nullptr);
        tensor::linear_out(gate_up_CII, normed_CH, layer.gate_up_IIH);
        ops_->swiglu(
            inner_CI, gate_up_CII.narrow(1, 0, inner), gate_up_CII.narrow(1, inner, inner));
        tensor::linear_add(residual_CH, inner_CI, layer.down_HI);
    }
}

at::Tensor DenseTarget::final_norm(const at::Tensor& residual_RH) {
    DFLASH_CHECK(weights_.final_norm_H.defined(), "the target was loaded without its head");
    return tensor::rms_norm(residual_RH, weights_.final_norm_H, config_.rms_norm_eps);
}

at::Tensor DenseTarget::logits(const at::Tensor& residual_RH) {
    const at::Tensor normed_RH = final_norm(residual_RH);
    at::Tensor logits_RV = at::empty({residual_RH.size(0), config_.vocab_size},
                                     residual_RH.options().dtype(at::kFloat));
    tensor::linear_out(logits_RV, normed_RH, weights_.head_VH);
    return logits_RV;
}

at::Tensor DenseTarget::head_VH() const {
    DFLASH_CHECK(weights_.head_VH.defined(), "the target was loaded without its head");
    return weights_.head_VH;
}

std::unique_ptr<DenseTarget> DenseTarget::copy_to(at::Device device,
                                                  std::shared_ptr<tensor::RowOps> row_ops) const {
    DenseWeights weights = weights_;
    if (device != weights.embed_VH.device()) {
        const bool tied = weights.head_VH.defined() && weights.head_VH.is_same(weights.embed_VH);
        if (tied) {
            weights.head_VH.reset();
        }
        weights.for_each([&](at::Tensor& tensor) { tensor = tensor.to(device); });
        if (tied) {
            weights.head_VH = weights.embed_VH;
        }
    }
    return std::make_unique<DenseTarget>(config_, std::move(weights), std::move(row_ops));
}

Bytes activation_bytes(const TargetConfig& config, std::int64_t tokens, at::ScalarType dtype) {
    const std::int64_t heads = config.num_heads + config.num_kv_heads;
    const std::int64_t per_token = 2 * config.hidden_size +
                                   (heads + config.num_kv_heads) * config.head_dim +
                                   heads * config.head_dim + 2 * config.num_heads * config.head_dim;
    const auto element_size = static_cast<std::int64_t>(c10::elementSize(dtype));
    // Rotary table, tokens and positions are fp32 and int32.
    const std::int64_t per_token_bytes = per_token * element_size + 4 * config.head_dim + 8;
    // The activation is computed from two fp32 copies.
    const std::int64_t per_inner_bytes = 3 * element_size + 8;
    return tokens * per_token_bytes +
           mlp_rows(tokens, /*cuda=*/true) * config.intermediate_size * per_inner_bytes;
}

Bytes cache_bytes_per_token(const TargetConfig& config, at::ScalarType dtype) {
    return 2 * config.num_layers * config.num_kv_heads * config.head_dim *
           static_cast<std::int64_t>(c10::elementSize(dtype));
}

}  // namespace dflash::target
