// SPDX-License-Identifier: Apache-2.0
// The frozen target: an HF model folder, its forward over packed rows with the capture of features
// after the tapped layers, and its forward over new tokens behind cached ones, for decoding.
//
// T tokens of a packed row or of a call, S sequences, H hidden size, V vocabulary, L layers.
#pragma once

#include <dflash/core/types.hpp>
#include <dflash/target/config.hpp>
#include <dflash/target/decode_cache.hpp>
#include <dflash/tensor/row_ops.hpp>

#include <ATen/ATen.h>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace dflash::target {

/// A packed input on the host: documents do not see each other. `starts` holds the first token of
/// each document and, last, T.
struct PackedInput {
    std::span<const TokenId> tokens;          // [T]
    std::span<const std::int32_t> positions;  // [T]
    std::span<const std::int32_t> starts;     // [D + 1]
};

/// One replica on one device. Not thread-safe: used by its worker only.
class TargetModel {
  public:
    virtual ~TargetModel() = default;

    const TargetConfig& config() const { return config_; }

    /// Runs layers 0 .. last and calls `sink` after each layer listed in `taps` (sorted or not,
    /// each once), in the order of the layers. The last layer of the model gives its raw output,
    /// too. A row without tokens gives empty residuals. Asynchronous on the worker's current
    /// stream. The same row gives the same bits on every replica.
    ///
    /// Memory: activation_bytes() for the longest row so far, kept for the next one. Attention
    /// holds tiles of queries x keys only, no tensor of a document's length squared.
    virtual void capture(const PackedInput& input,
                         std::span<const std::int64_t> taps,
                         const FeatureSink& sink) = 0;

    /// Room for `slots` sequences of up to `capacity` tokens: cache_bytes_per_token() for each
    /// token.
    virtual std::unique_ptr<DecodeCache> make_cache(std::int64_t slots,
                                                    std::int64_t capacity) const = 0;

    /// Runs new tokens through all loaded layers, causal over what their slots hold and themselves,
    /// and appends their keys and values: a prompt or a piece of it, one token, or a block to be
    /// verified, all alike and mixed in one call. Calls `sink` after the tapped layers as capture()
    /// does. Gives the residual after the last layer, [T, H], before the final norm; valid until
    /// the next call. Internal error if a slot has no room. Asynchronous as capture().
    virtual at::Tensor extend(DecodeCache& cache,
                              const Extension& input,
                              std::span<const std::int64_t> taps,
                              const FeatureSink& sink) = 0;

    /// extend() for as many tokens of every sequence, one or a block to be verified, all of whose
    /// input lies on the device: gives [S B, H]. Leaves the lengths that the cache notes as they
    /// are (DecodeCache::note_appended), and does not ask whether there is room. In half types on
    /// CUDA with row_ops of kernels it can be captured into a graph: nothing in it waits for the
    /// device, or depends on the host, and what it allocates belongs to the capture.
    virtual at::Tensor decode(DecodeCache& cache, const DecodeStep& step) = 0;

    /// Final norm and head on rows of a residual: logits in fp32, [rows, V]. Needs a model loaded
    /// with its head.
    virtual at::Tensor logits(const at::Tensor& residual_RH) = 0;

    /// Final norm of a residual.
    virtual at::Tensor final_norm(const at::Tensor& residual_RH) = 0;

    virtual at::Tensor embed_VH() const = 0;
    virtual at::Tensor head_VH() const = 0;

    /// Bytes of weights on the device.
    virtual Bytes weight_bytes() const = 0;

  protected:
    explicit TargetModel(TargetConfig config) : config_(std::move(config)) {}

    TargetConfig config_;
};

/// Whether TargetModel::decode() of this one never waits for the device, so that a graph can hold
/// it.
bool decodes_without_host(const TargetModel& model);

struct LoadOptions {
    at::Device device = at::kCPU;
    at::ScalarType dtype = at::kFloat;
    /// Layers to load, from the first: last tapped layer + 1; 0 loads all.
    std::int64_t num_layers = 0;
    /// Whether final norm and head are loaded, for logits(), final_norm() and head_VH().
    bool with_head = false;
    /// How norms, rotation and activation are computed; null: by Torch operations. Of this device,
    /// used by the model's worker only.
    std::shared_ptr<tensor::RowOps> row_ops{};
};

/// Loads a folder, tensor by tensor from the mapped files into the device's memory. Names, shapes
/// and dtypes of all layers are judged, only those that are needed are read. Throws Error{Config}
/// (no folder, no config.json, unsupported architecture), Error{Data} (weights missing, extra,
/// misshapen).
std::unique_ptr<TargetModel> load_target(const std::string& folder, const LoadOptions& options);

/// Judges the checkpoint of a folder without loading it: headers, names, shapes, dtypes. Throws as
/// load_target.
void judge_target(const std::string& folder);

/// Another replica on `device` from the tensors of a loaded one; shares memory where device and
/// dtype are the same. `row_ops` as in LoadOptions.
std::unique_ptr<TargetModel> replicate(const TargetModel& model,
                                       at::Device device,
                                       std::shared_ptr<tensor::RowOps> row_ops = {});

/// Upper bound of the bytes that capture() needs besides the weights for rows of up to `tokens`
/// tokens: kept buffers and what a layer allocates for a moment. For the planner.
Bytes activation_bytes(const TargetConfig& config, std::int64_t tokens, at::ScalarType dtype);

/// Bytes of a cache of one token.
Bytes cache_bytes_per_token(const TargetConfig& config, at::ScalarType dtype);

/// Embedding and head alone, for drafters; one tensor where the target ties them.
struct Ends {
    at::Tensor embed_VH;
    at::Tensor head_VH;
};

Ends load_ends(const std::string& folder, const LoadOptions& options);

}  // namespace dflash::target
