// SPDX-License-Identifier: Apache-2.0
#include "reference.hpp"

#include <dflash/core/error.hpp>
#include <dflash/core/random.hpp>
#include <dflash/model/draft_decoder.hpp>

#include <algorithm>
#include <doctest/doctest.h>

namespace dflash::model {
namespace {

const std::vector<std::vector<LayerType>> kLayers{
    {LayerType::Full, LayerType::Full},
    {LayerType::Sliding, LayerType::Full},
    {LayerType::Sliding, LayerType::Sliding, LayerType::Sliding},
};

/// The ends that make_drafter() gives its drafter.
FrozenEnds ends_of(const DraftConfig& config, at::ScalarType dtype) {
    at::manual_seed(11);
    const auto random = [&](std::int64_t rows) {
        return (at::randn({rows, config.hidden_size}, at::kDouble) * 0.5).to(dtype);
    };
    const at::Tensor embed_VH = random(config.vocab_size);
    return {embed_VH, random(config.vocab_size)};
}

std::unique_ptr<DraftDecoder> make_decoder(const DraftConfig& config,
                                           Drafter& drafter,
                                           at::ScalarType dtype) {
    return std::make_unique<DraftDecoder>(
        config, ends_of(config, dtype), drafter.weights(), std::make_shared<tensor::TorchRowOps>());
}

/// A row with an anchor at every token, and features for it.
struct Case {
    data::PackedRow row;
    at::Tensor features_KTH;
    std::vector<std::int32_t> lengths;

    Case(const DraftConfig& config,
         std::vector<std::int32_t> document_lengths,
         at::ScalarType dtype)
        : lengths(std::move(document_lengths)) {
        std::vector<std::vector<std::int32_t>> anchors;
        for (const std::int32_t length : lengths) {
            anchors.emplace_back();
            for (std::int32_t t = 0; t < length; ++t) {
                anchors.back().push_back(t);
            }
        }
        row = make_row(config, lengths, anchors);
        at::manual_seed(41);
        features_KTH =
            at::randn({config.num_features(), row.num_tokens(), config.hidden_size}, at::kDouble)
                .to(dtype);
    }
};

/// Decodes the documents of a case side by side, one token a round, and compares the proposal of
/// every anchor with `hidden_NBH`. Each round appends up to `ahead` tokens and takes back all but
/// one. Gives the largest error and the number of proposals.
std::pair<double, std::int64_t> compare_all(DraftDecoder& decoder,
                                            const Case& c,
                                            const at::Tensor& hidden_NBH,
                                            std::int64_t b,
                                            std::int32_t ahead) {
    // Slots in another order than the documents, and one that stays empty.
    const auto slot_of = [&](std::size_t document) {
        return static_cast<std::int32_t>(c.lengths.size() - document);
    };
    const auto longest = *std::max_element(c.lengths.begin(), c.lengths.end());
    const auto cache =
        decoder.make_cache(static_cast<std::int64_t>(c.lengths.size()) + 1, longest + ahead);
    double worst = 0;
    std::int64_t proposals = 0;
    for (std::int32_t t = 0; t < longest; ++t) {
        std::vector<std::int32_t> slots;
        std::vector<TokenId> anchors;
        std::vector<std::int64_t> blocks;
        std::vector<std::int32_t> starts{0};
        std::vector<at::Tensor> features;
        for (std::size_t i = 0; i < c.lengths.size(); ++i) {
            if (t >= c.lengths[i]) {
                continue;
            }
            const std::int32_t begin = c.row.documents[i].begin;
            slots.push_back(slot_of(i));
            anchors.push_back(c.row.tokens[static_cast<std::size_t>(begin + t)]);
            blocks.push_back(begin + t);  // an anchor a token
            const std::int32_t count = std::min(ahead, c.lengths[i] - t);
            features.push_back(c.features_KTH.narrow(1, begin + t, count));
            starts.push_back(starts.back() + count);
        }
        const at::Tensor proposed = decoder.propose(*cache, slots, anchors, b)
                                        .view({static_cast<std::int64_t>(slots.size()), b - 1, -1});
        for (std::size_t i = 0; i < slots.size(); ++i) {
            const at::Tensor expected = hidden_NBH[blocks[i]].narrow(0, 1, b - 1);
            worst =
                std::max(worst, largest_error(proposed[static_cast<std::int64_t>(i)], expected));
            ++proposals;
        }
        decoder.append_context(*cache, {at::cat(features, 1), starts, slots});
        for (const std::int32_t slot : slots) {
            cache->truncate(slot, t + 1);
        }
    }
    CHECK(cache->length(0) == 0);
    return {worst, proposals};
}

TEST_SUITE("model.draft_decoder") {
    TEST_CASE("gives the rows of the training forward, for every anchor and kind of layer") {
        for (const auto& layers : kLayers) {
            for (const std::optional<bool> causal : {std::optional<bool>{}, {false}, {true}}) {
                for (const std::int64_t B : {2, 5, 16}) {
                    CAPTURE(layers.size());
                    CAPTURE(B);
                    DraftConfig config = small_config(layers, B);
                    config.is_causal = causal;
                    // fp64 leaves rounding only; fp32 as Drafter's own comparison has it.
                    const std::vector<std::pair<at::ScalarType, double>> tolerances{
                        {at::kDouble, 1e-12}, {at::kFloat, 2e-5}};
                    for (const auto& [dtype, tolerance] : tolerances) {
                        const auto drafter = make_drafter(config, dtype);
                        const auto decoder = make_decoder(config, *drafter, dtype);
                        const Case c(config, {30, 1, 12}, dtype);
                        const at::Tensor hidden = drafter->hidden(c.row, c.features_KTH)
                                                      .view({-1, B, config.hidden_size});
                        const auto [error, proposals] =
                            compare_all(*decoder, c, hidden, B, /*ahead=*/1);
                        CHECK(error < tolerance);
                        CHECK(proposals == 43);
                    }
                }
            }
        }
    }

    TEST_CASE("tokens that were taken back leave no trace") {
        const DraftConfig config = small_config({LayerType::Sliding, LayerType::Full});
        const auto drafter = make_drafter(config, at::kDouble);
        const auto decoder = make_decoder(config, *drafter, at::kDouble);
        const Case c(config, {30, 1, 12}, at::kDouble);
        const at::Tensor hidden =
            drafter->hidden(c.row, c.features_KTH).view({-1, config.block_size, 24});
        CHECK(compare_all(*decoder, c, hidden, config.block_size, /*ahead=*/7).first < 1e-12);
    }

    TEST_CASE("blocks from the device are what context by the host is, in slots that come and go") {
        const auto ints = [](const std::vector<std::int32_t>& values) {
            return at::tensor(values, at::TensorOptions().dtype(at::kInt));
        };
        constexpr std::int32_t kSlots = 4;
        constexpr std::int32_t kCapacity = 40;
        constexpr std::int32_t kBlock = 4;
        for (const auto& layers : kLayers) {
            for (const std::optional<bool> causal : {std::optional<bool>{}, {false}}) {
                CAPTURE(layers.size());
                DraftConfig config = small_config(layers, /*block_size=*/5);
                config.is_causal = causal;
                const auto drafter = make_drafter(config, at::kDouble);
                const auto decoder = make_decoder(config, *drafter, at::kDouble);
                const auto by_host = decoder->make_cache(kSlots, kCapacity);
                const auto by_device = decoder->make_cache(kSlots, kCapacity);
                RandomStream stream(5, Purpose::Test, 0, 0);
                std::int64_t blocks = 0;
                for (int round = 0; round < 60; ++round) {
                    std::vector<std::int32_t> slots;
                    for (std::int32_t slot = kSlots - 1; slot >= 0; --slot) {
                        if (by_host->length(slot) + kBlock > kCapacity) {
                            by_host->truncate(slot, 0);
                            by_device->truncate(slot, 0);
                        }
                        if (stream.below(3) > 0) {
                            slots.push_back(slot);
                        }
                    }
                    if (slots.empty()) {
                        continue;
                    }
                    const auto count = std::ssize(slots);
                    blocks += count;
                    // Nobody in front and behind.
                    std::vector<std::int32_t> step_slots{kSlots};
                    std::vector<std::int32_t> lengths{0};
                    std::vector<std::int32_t> step_anchors{1};
                    std::vector<TokenId> anchors;
                    for (const std::int32_t slot : slots) {
                        step_slots.push_back(slot);
                        lengths.push_back(static_cast<std::int32_t>(by_device->length(slot)));
                        anchors.push_back(static_cast<TokenId>(
                            stream.below(static_cast<std::uint32_t>(config.vocab_size))));
                        step_anchors.push_back(anchors.back());
                    }
                    step_slots.push_back(kSlots);
                    lengths.push_back(0);
                    step_anchors.push_back(2);
                    const DraftStep step{ints(step_slots), ints(lengths)};

                    const at::Tensor expected = decoder->propose(*by_host, slots, anchors, kBlock);
                    const at::Tensor got =
                        decoder->propose(*by_device, step, ints(step_anchors), kBlock);
                    CHECK(largest_error(got.narrow(0, kBlock - 1, count * (kBlock - 1)), expected) <
                          1e-12);

                    // Of a block's tokens some stay; the host gives these alone.
                    const at::Tensor features_KSBH =
                        at::randn({config.num_features(), count + 2, kBlock, config.hidden_size},
                                  at::kDouble);
                    decoder->append_blocks(*by_device, step, features_KSBH.flatten(1, 2));
                    std::vector<at::Tensor> kept;
                    std::vector<std::int32_t> starts{0};
                    for (std::int64_t i = 0; i < count; ++i) {
                        const std::int32_t slot = slots[static_cast<std::size_t>(i)];
                        const auto stay = static_cast<std::int32_t>(1 + stream.below(kBlock));
                        kept.push_back(features_KSBH.select(1, i + 1).narrow(1, 0, stay));
                        starts.push_back(starts.back() + stay);
                        const std::int64_t held = by_device->length(slot);
                        by_device->note_appended(slot, kBlock);
                        by_device->truncate(slot, held + stay);
                    }
                    decoder->append_context(*by_host, {at::cat(kept, 1), starts, slots});
                    for (std::int32_t slot = 0; slot < kSlots; ++slot) {
                        CHECK(by_device->length(slot) == by_host->length(slot));
                    }
                }
                CHECK(blocks > 100);
            }
        }
    }

    TEST_CASE("a shorter block is what a drafter of that block size makes") {
        for (const auto& layers : kLayers) {
            const DraftConfig config = small_config(layers, /*block_size=*/8);
            DraftConfig shorter = config;
            shorter.block_size = 3;
            const auto drafter = make_drafter(shorter, at::kDouble);
            const auto decoder = make_decoder(config, *drafter, at::kDouble);
            const Case c(shorter, {20, 9}, at::kDouble);
            const at::Tensor hidden = drafter->hidden(c.row, c.features_KTH).view({-1, 3, 24});
            CHECK(compare_all(*decoder, c, hidden, /*b=*/3, /*ahead=*/1).first < 1e-12);
        }
    }

    TEST_CASE("logits are those of the frozen head") {
        const DraftConfig config = small_config({LayerType::Full});
        const auto drafter = make_drafter(config, at::kDouble);
        const auto decoder = make_decoder(config, *drafter, at::kDouble);
        const at::Tensor hidden = at::randn({3, config.hidden_size}, at::kDouble);
        const at::Tensor expected = hidden.matmul(ends_of(config, at::kDouble).head_VH.t());
        CHECK(largest_error(decoder->logits(hidden), expected) < 1e-14);
    }

    TEST_CASE("follows weights that change") {
        const DraftConfig config = small_config({LayerType::Full});
        const auto drafter = make_drafter(config, at::kFloat);
        const auto decoder = make_decoder(config, *drafter, at::kFloat);
        const auto cache = decoder->make_cache(1, 4);
        const std::vector<std::int32_t> slots{0};
        const std::vector<TokenId> anchors{3};
        const at::Tensor before = decoder->propose(*cache, slots, anchors, 5).clone();
        CHECK(decoder->propose(*cache, slots, anchors, 5).equal(before));
        drafter->weights().weight(drafter->weights().index("norm.weight")).mul_(2);
        CHECK(largest_error(decoder->propose(*cache, slots, anchors, 5), before * 2) < 1e-6);
    }

    TEST_CASE("weights for inference have no gradients") {
        const DraftConfig config = small_config({LayerType::Full});
        const DraftWeights weights(config, at::kCPU, at::kFloat, DraftWeights::Use::Inference);
        CHECK_FALSE(weights.gradient_flat().defined());
        CHECK(weights.compute_flat().numel() == num_parameters(config));
    }

    TEST_CASE("a cache counts its tokens and its memory, and refuses what does not fit") {
        const DraftConfig config = small_config({LayerType::Full, LayerType::Full});
        const auto drafter = make_drafter(config, at::kFloat);
        const auto decoder = make_decoder(config, *drafter, at::kFloat);
        const auto cache = decoder->make_cache(2, 6);
        CHECK(cache->bytes() == DraftCache::memory_need(config, 2, 6, 4));
        CHECK(cache->bytes() == 2 * 2 * (2 * (6 + 5) + 1) * 2 * 6 * 4);
        const at::Tensor features = at::randn({3, 5, config.hidden_size}, at::kFloat);
        const std::vector<std::int32_t> starts{0, 5};
        const std::vector<std::int32_t> slots{1};
        decoder->append_context(*cache, {features, starts, slots});
        CHECK(cache->length(0) == 0);
        CHECK(cache->length(1) == 5);
        CHECK_THROWS_WITH_AS(decoder->append_context(*cache, {features, starts, slots}),
                             doctest::Contains("5 tokens after 5 in slots of 6"),
                             Error);
        cache->truncate(1, 2);
        CHECK(cache->length(1) == 2);
        CHECK_THROWS_AS(cache->truncate(1, 3), Error);
        const std::vector<TokenId> anchors{3};
        CHECK_THROWS_WITH_AS(decoder->propose(*cache, slots, anchors, 6),
                             doctest::Contains("blocks of 6, the drafter was made for 5"),
                             Error);
    }
}

}  // namespace
}  // namespace dflash::model
