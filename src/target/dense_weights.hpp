// SPDX-License-Identifier: Apache-2.0
// Weights of a dense decoder (Llama, Qwen3) on one device. Matrices that read the same input are
// stored as one: fewer and larger products.
//
// H hidden size, Q = query heads x head size, K = key heads x head size, D head size, I inner size,
// V vocabulary.
#pragma once

#include "checkpoint.hpp"

#include <dflash/core/types.hpp>
#include <dflash/target/config.hpp>

#include <ATen/ATen.h>
#include <functional>
#include <vector>

namespace dflash::target {

struct DenseLayerWeights {
    at::Tensor input_norm_H;
    at::Tensor qkv_QKKH;  ///< [Q + K + K, H]: rows of q, k, v
    at::Tensor q_norm_D;  ///< Qwen3 only
    at::Tensor k_norm_D;  ///< Qwen3 only
    at::Tensor out_HQ;
    at::Tensor mlp_norm_H;
    at::Tensor gate_up_IIH;  ///< [I + I, H]: rows of gate, up
    at::Tensor down_HI;
};

struct DenseWeights {
    at::Tensor embed_VH;
    std::vector<DenseLayerWeights> layers;  ///< from the first; as many as were asked for
    at::Tensor final_norm_H;                ///< with the head only
    at::Tensor head_VH;                     ///< the embedding itself where they are tied

    /// Calls `visit` for every tensor that is there, a tied head included.
    void for_each(const std::function<void(at::Tensor&)>& visit);

    /// Bytes; a tied head counts once.
    Bytes bytes() const;
};

/// One matrix of a checkpoint in `dtype` on `device`.
at::Tensor load_weight(const Checkpoint& files,
                       const std::string& name,
                       at::Device device,
                       at::ScalarType dtype);

/// The first `num_layers` layers, and final norm and head if asked for.
DenseWeights load_dense_weights(const Checkpoint& files,
                                const TargetConfig& config,
                                std::int64_t num_layers,
                                bool with_head,
                                at::Device device,
                                at::ScalarType dtype);

}  // namespace dflash::target
