// SPDX-License-Identifier: Apache-2.0
// The drafter's inference on a GPU beside the CPU's, which is compared with the training forward.
#include <dflash/model/draft_decoder.hpp>

#include <algorithm>
#include <doctest/doctest.h>
#include <optional>

namespace dflash::model {
namespace {

DraftConfig config_of(std::vector<LayerType> layers, std::optional<bool> causal) {
    DraftConfig config;
    config.hidden_size = 96;
    config.intermediate_size = 80;
    config.num_heads = 4;
    config.num_kv_heads = 2;
    config.head_dim = 32;
    config.vocab_size = 64;
    config.block_size = 16;
    config.mask_token_id = 63;
    config.target_layer_ids = {1, 4};
    config.num_target_layers = 9;
    config.layer_types = std::move(layers);
    config.sliding_window = 21;
    config.is_causal = causal;
    return config;
}

struct Numbers {
    at::Tensor weights;
    at::Tensor ends_2VH;
    at::Tensor features_KTH;

    /// All of them are bf16 numbers.
    explicit Numbers(const DraftConfig& config) {
        at::manual_seed(3);
        weights = at::randn({num_parameters(config)}) * 0.1;
        ends_2VH = at::randn({2, config.vocab_size, config.hidden_size});
        features_KTH = at::randn({config.num_features(), 4 * 70, config.hidden_size});
        for (at::Tensor* tensor : {&weights, &ends_2VH, &features_KTH}) {
            *tensor = tensor->to(at::kBFloat16).to(at::kFloat);
        }
        std::int64_t offset = 0;
        for (const WeightSpec& spec : weight_specs(config)) {
            if (spec.shape.size() == 1) {
                weights.narrow(0, offset, spec.num_elements()).fill_(1);
            }
            offset += spec.num_elements();
        }
    }
};

/// Proposals behind contexts of 0, 1, 33 and 70 tokens, in two steps, some of them taken back.
at::Tensor proposals(const DraftConfig& config,
                     const Numbers& numbers,
                     at::Device device,
                     at::ScalarType dtype,
                     std::int64_t b) {
    const at::TensorOptions options = at::TensorOptions(device).dtype(dtype);
    DraftWeights weights(config, device, dtype, DraftWeights::Use::Inference);
    weights.compute_flat().copy_(numbers.weights);
    const at::Tensor ends = numbers.ends_2VH.to(options);
    DraftDecoder decoder(
        config, {ends[0], ends[1]}, weights, std::make_shared<tensor::TorchRowOps>());
    const auto cache = decoder.make_cache(5, 80);
    const std::vector<std::int32_t> slots{4, 0, 3, 1};
    const std::vector<std::int32_t> lengths{0, 1, 33, 70};
    std::vector<at::Tensor> parts;
    std::vector<std::int32_t> starts{0};
    for (std::size_t i = 0; i < slots.size(); ++i) {
        const auto begin = static_cast<std::int64_t>(70 * i);
        const std::int32_t count = std::min(lengths[i] + 2, 70);
        parts.push_back(numbers.features_KTH.narrow(1, begin, count));
        starts.push_back(starts.back() + count);
    }
    decoder.append_context(*cache, {at::cat(parts, 1).to(options), starts, slots});
    const std::vector<TokenId> anchors{5, 6, 7, 8};
    decoder.propose(*cache, slots, anchors, b);
    for (std::size_t i = 0; i < slots.size(); ++i) {
        cache->truncate(slots[i], lengths[i]);
    }
    return decoder.propose(*cache, slots, anchors, b).to(at::kCPU, at::kFloat);
}

double rms_over_rms(const at::Tensor& a, const at::Tensor& b) {
    return ((a - b).square().mean() / b.square().mean()).sqrt().item<double>();
}

TEST_SUITE("model.draft_decoder_gpu") {
    TEST_CASE("proposes what the CPU proposes") {
        const std::vector<std::vector<LayerType>> kinds{
            {LayerType::Full, LayerType::Full},
            {LayerType::Sliding, LayerType::Full},
            {LayerType::Sliding, LayerType::Sliding},
        };
        for (const auto& layers : kinds) {
            for (const std::optional<bool> causal : {std::optional<bool>{}, {false}, {true}}) {
                for (const std::int64_t b : {2, 9, 16}) {
                    CAPTURE(b);
                    const DraftConfig config = config_of(layers, causal);
                    const Numbers numbers(config);
                    const at::Tensor expected = proposals(config, numbers, at::kCPU, at::kFloat, b);
                    // Sums of another order.
                    CHECK(rms_over_rms(proposals(config, numbers, at::kCUDA, at::kFloat, b),
                                       expected) < 1e-5);
                    // A rounding to 8 bits (relative 2^-9) at each of about twenty places.
                    CHECK(rms_over_rms(proposals(config, numbers, at::kCUDA, at::kBFloat16, b),
                                       expected) < 2e-2);
                }
            }
        }
    }
}

}  // namespace
}  // namespace dflash::model
