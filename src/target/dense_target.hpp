// SPDX-License-Identifier: Apache-2.0
// The dense decoders, Llama and Qwen3: forward over packed rows, and over new tokens of cached
// sequences.
#pragma once

#include "cached_attention.hpp"
#include "dense_cache.hpp"
#include "dense_weights.hpp"

#include <dflash/target/target_model.hpp>
#include <dflash/tensor/rotary.hpp>

#include <ATen/ATen.h>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

namespace dflash::target {

/// Weights are shared between replicas of one device; buffers belong to the replica.
class DenseTarget final : public TargetModel {
  public:
    DenseTarget(TargetConfig config, DenseWeights weights, std::shared_ptr<tensor::RowOps> row_ops);

    void capture(const PackedInput& input,
                 std::span<const std::int64_t> taps,
                 const FeatureSink& sink) override;
    std::unique_ptr<DecodeCache> make_cache(std::int64_t slots,
                                            std::int64_t capacity) const override;
    at::Tensor extend(DecodeCache& cache,
                      const Extension& input,
                      std::span<const std::int64_t> taps,
                      const FeatureSink& sink) override;
    at::Tensor decode(DecodeCache& cache, const DecodeStep& step) override;
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

    /// Attention from the turned q and k and from v: [T, Q].
    using Attend = std::function<at::Tensor(
        const at::Tensor& q_TND, const at::Tensor& k_TGD, const at::Tensor& v_TGD)>;

    Buffers make_buffers(std::int64_t tokens) const;
    void reserve(std::int64_t tokens);
    std::vector<std::int64_t> sorted_taps(std::span<const std::int64_t> taps) const;
    void attention_block(const DenseLayerWeights& layer,
                         const Buffers& buffers,
                         const at::Tensor& residual_TH,
                         const tensor::RotaryTable& rotary,
                         const Attend& attend);
    void mlp_block(const DenseLayerWeights& layer,
                   const Buffers& buffers,
                   const at::Tensor& residual_TH);
    /// All layers over tokens whose keys and values go to `rows_T` (int64) of the cache.
    void run_cached(DenseCache& cache,
                    const Buffers& buffers,
                    const at::Tensor& residual_TH,
                    const at::Tensor& positions_T,
                    const at::Tensor& rows_T,
                    const CachedLayout& layout,
                    const std::function<void(std::int64_t layer)>& after_layer);
    DenseCache& own(DecodeCache& cache) const;

    DenseWeights weights_;
    std::shared_ptr<tensor::RowOps> ops_;
    RopeTable rope_;
    at::Tensor frequencies_F_;  ///< of rope_, on the device
    Buffers buffers_;           ///< of capture() and extend()
};

}  // namespace dflash::target
