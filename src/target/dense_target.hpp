// SPDX-License-Identifier: Apache-2.0
// The dense decoders, Llama and Qwen3: forward over packed rows.
#pragma once

#include "attention.hpp"
#include "dense_weights.hpp"

#include <dflash/target/target_model.hpp>
#include <dflash/tensor/rotary.hpp>

#include <ATen/ATen.h>
#include <cstdint>
#include <memory>

namespace dflash::target {

/// Weights are shared between replicas of one device; buffers belong to the replica.
class DenseTarget final : public TargetModel {
  public:
    DenseTarget(TargetConfig config, DenseWeights weights, std::shared_ptr<tensor::RowOps> row_ops);

    void capture(const PackedInput& input,
                 std::span<const std::int64_t> taps,
                 const FeatureSink& sink) override;
    at::Tensor logits(const at::Tensor& residual_RH) override;
    at::Tensor final_norm(const at::Tensor& residual_RH) override;

    at::Tensor embed_VH() const override { return weights_.embed_VH; }

    at::Tensor head_VH() const override;

    Bytes weight_bytes() const override { return weights_.bytes(); }

    /// A replica on `device`.
    std::unique_ptr<DenseTarget> copy_to(at::Device device,
                                         std::shared_ptr<tensor::RowOps> row_ops) const;

  private:
    /// Scratch of the forward, for rows of up to residual_TH.size(0) tokens.
    struct Buffers {
        at::Tensor residual_TH;
        at::Tensor normed_TH;
        at::Tensor qkv_TQKK;
        at::Tensor qk_TND;    ///< heads of q, then of k
        at::Tensor mixed_TQ;  ///< result of attention
        at::Tensor gate_up_CII;
        at::Tensor inner_CI;
    };

    void reserve(std::int64_t tokens);
    void attention_block(const DenseLayerWeights& layer,
                         const at::Tensor& residual_TH,
                         const tensor::RotaryTable& rotary,
                         const PackedLayout& layout);
    void mlp_block(const DenseLayerWeights& layer, const at::Tensor& residual_TH);

    DenseWeights weights_;
    std::shared_ptr<tensor::RowOps> ops_;
    RopeTable rope_;
    Buffers buffers_;
};

}  // namespace dflash::target
