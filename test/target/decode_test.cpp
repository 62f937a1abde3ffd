// SPDX-License-Identifier: Apache-2.0
// New tokens behind cached ones give what the forward over the whole sequences gives.
#include "model_folder.hpp"

#include <dflash/target/target_model.hpp>
#include <dflash/tensor/bridge.hpp>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <doctest/doctest.h>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

namespace dflash::target {
namespace {

using Tokens = std::vector<TokenId>;

const char* const kDense[] = {"T1", "T1b", "T3"};

std::unique_ptr<TargetModel> load(const std::string& name, at::ScalarType dtype = at::kFloat) {
    at::set_num_threads(1);  // as on a worker
    return load_target("test/golden/targets/" + name,
                       {.device = at::kCPU, .dtype = dtype, .num_layers = 0, .with_head = true});
}

Tokens make_tokens(std::int64_t length, TokenId first) {
    Tokens tokens;
    for (std::int64_t i = 0; i < length; ++i) {
        tokens.push_back(static_cast<TokenId>((first + i * 37 + i * i * 5) % 512));
    }
    return tokens;
}

// Residual after the last layer of a whole sequence, [T, H], by the packed forward.
at::Tensor whole(TargetModel& model, const Tokens& tokens) {
    std::vector<std::int32_t> positions(tokens.size());
    std::iota(positions.begin(), positions.end(), 0);
    const std::vector<std::int32_t> starts = {0, static_cast<std::int32_t>(tokens.size())};
    at::Tensor last;
    model.capture({.tokens = tokens, .positions = positions, .starts = starts},
                  std::vector<std::int64_t>{model.config().num_layers - 1},
                  [&](std::int64_t, const at::Tensor& residual_TH) { last = residual_TH.clone(); });
    return last;
}

struct Piece {
    std::int32_t slot;
    Tokens tokens;
};

at::Tensor extend(TargetModel& model, DecodeCache& cache, const std::vector<Piece>& pieces) {
    Tokens tokens;
    std::vector<std::int32_t> starts = {0};
    std::vector<std::int32_t> slots;
    for (const Piece& piece : pieces) {
        tokens.insert(tokens.end(), piece.tokens.begin(), piece.tokens.end());
        starts.push_back(static_cast<std::int32_t>(tokens.size()));
        slots.push_back(piece.slot);
    }
    return model.extend(cache, {.tokens = tokens, .starts = starts, .slots = slots}, {}, {})
        .clone();
}

Tokens part(const Tokens& tokens, std::int64_t begin, std::int64_t end) {
    return {tokens.begin() + begin, tokens.begin() + end};
}

double distance(const at::Tensor& a, const at::Tensor& b) {
    REQUIRE(a.sizes() == b.sizes());
    return ((a - b).abs().max() / b.square().mean().sqrt()).item<double>();
}

// Largest difference / rms: the tolerance of the reference data is 1e-4.
constexpr double kNear = 2e-5;

}  // namespace

TEST_SUITE("target.decode") {
    TEST_CASE("extend: prompts of many lengths in slots of any order agree with the forward") {
        for (const char* name : kDense) {
            CAPTURE(name);
            const auto model = load(name);
            const auto cache = model->make_cache(5, 200);
            const std::vector<Piece> pieces = {{3, make_tokens(130, 5)},
                                               {0, make_tokens(1, 9)},
                                               {4, make_tokens(64, 77)},
                                               {1, make_tokens(200, 300)}};
            const at::Tensor got = extend(*model, *cache, pieces);
            std::int64_t begin = 0;
            for (const Piece& piece : pieces) {
                const auto length = static_cast<std::int64_t>(piece.tokens.size());
                CHECK(cache->length(piece.slot) == length);
                CHECK(distance(got.narrow(0, begin, length), whole(*model, piece.tokens)) < kNear);
                begin += length;
            }
            CHECK(cache->length(2) == 0);
        }
    }

    TEST_CASE("extend: a prompt in pieces, single tokens and blocks agree with the forward") {
        for (const char* name : kDense) {
            CAPTURE(name);
            const auto model = load(name);
            const Tokens tokens = make_tokens(400, 31);
            const at::Tensor expected = whole(*model, tokens);
            const auto cache = model->make_cache(2, 400);
            std::int64_t done = 0;
            // More than a tile of the mask, single tokens, and blocks as a verification has them.
            for (const std::int64_t count : {1, 150, 1, 1, 16, 170, 2, 16, 1, 42}) {
                CAPTURE(count);
                const at::Tensor got =
                    extend(*model, *cache, {{1, part(tokens, done, done + count)}});
                CHECK(distance(got, expected.narrow(0, done, count)) < kNear);
                done += count;
            }
            CHECK(done == 400);
            CHECK(cache->length(1) == 400);
        }
    }

    TEST_CASE("extend: prefill, decode and verification mix in one call") {
        const auto model = load("T1");
        const auto cache = model->make_cache(4, 300);
        const Tokens a = make_tokens(120, 1);
        const Tokens b = make_tokens(90, 2);
        const Tokens c = make_tokens(260, 3);
        extend(*model, *cache, {{2, part(a, 0, 119)}, {0, part(b, 0, 74)}});
        const at::Tensor got =
            extend(*model, *cache, {{3, c}, {2, part(a, 119, 120)}, {1, {}}, {0, part(b, 74, 90)}});
        CHECK(distance(got.narrow(0, 0, 260), whole(*model, c)) < kNear);
        CHECK(distance(got.narrow(0, 260, 1), whole(*model, a).narrow(0, 119, 1)) < kNear);
        CHECK(distance(got.narrow(0, 261, 16), whole(*model, b).narrow(0, 74, 16)) < kNear);
        CHECK(cache->length(1) == 0);
    }

    TEST_CASE("truncate: what is forgotten leaves no trace") {
        const auto model = load("T3");
        const auto cache = model->make_cache(2, 100);
        const Tokens wrong = make_tokens(60, 400);
        const Tokens right = make_tokens(60, 8);
        Tokens mixed = part(right, 0, 40);
        mixed.insert(mixed.end(), wrong.begin(), wrong.begin() + 16);
        extend(*model, *cache, {{1, mixed}});
        cache->truncate(1, 40);
        CHECK(cache->length(1) == 40);
        const at::Tensor got = extend(*model, *cache, {{1, part(right, 40, 60)}});
        CHECK(distance(got, whole(*model, right).narrow(0, 40, 20)) < kNear);
        // A slot that is used again from its beginning.
        cache->truncate(1, 0);
        CHECK(distance(extend(*model, *cache, {{1, wrong}}), whole(*model, wrong)) < kNear);
    }

    TEST_CASE("extend: gives the features of the tapped layers as capture does") {
        const auto model = load("T1");
        const Tokens tokens = make_tokens(80, 12);
        std::map<std::int64_t, at::Tensor> expected;
        std::vector<std::int32_t> positions(tokens.size());
        std::iota(positions.begin(), positions.end(), 0);
        const std::vector<std::int64_t> taps = {4, 0, 2};
        const std::vector<std::int32_t> starts = {0, 80};
        model->capture({.tokens = tokens, .positions = positions, .starts = starts},
                       taps,
                       [&](std::int64_t layer, const at::Tensor& residual_TH) {
                           expected[layer] = residual_TH.clone();
                       });
        const auto cache = model->make_cache(1, 80);
        for (const auto& [begin, end] : {std::pair{0, 50}, std::pair{50, 80}}) {
            std::vector<std::int64_t> order;
            const std::vector<std::int32_t> piece = {0, end - begin};
            const std::vector<std::int32_t> slots = {0};
            model->extend(
                *cache,
                {.tokens = std::span(tokens).subspan(static_cast<std::size_t>(begin),
                                                     static_cast<std::size_t>(end - begin)),
                 .starts = piece,
                 .slots = slots},
                taps,
                [&](std::int64_t layer, const at::Tensor& residual_TH) {
                    order.push_back(layer);
                    CHECK(distance(residual_TH, expected[layer].narrow(0, begin, end - begin)) <
                          kNear);
                });
            CHECK(order == std::vector<std::int64_t>{0, 2, 4});
        }
    }

    TEST_CASE("decode: one token a sequence from the device agrees with extend") {
        for (const char* name : kDense) {
            CAPTURE(name);
            const auto model = load(name);
            const auto by_extend = model->make_cache(3, 64);
            const auto by_decode = model->make_cache(3, 64);
            const std::vector<Piece> prompts = {{2, make_tokens(40, 5)}, {0, make_tokens(7, 90)}};
            extend(*model, *by_extend, prompts);
            extend(*model, *by_decode, prompts);
            for (TokenId step = 0; step < 5; ++step) {
                const TokenId first = 100 + step;
                const TokenId second = 200 + 3 * step;
                const at::Tensor expected =
                    extend(*model, *by_extend, {{0, {first}}, {2, {second}}});
                const auto ints = [](std::vector<std::int32_t> values) {
                    return tensor::upload(std::span<const std::int32_t>(values), at::kCPU);
                };
                // Two rows of nobody beside them.
                const at::Tensor got = model->decode(
                    *by_decode,
                    {.tokens_T = ints({first, 0, second, 0}),
                     .slots_S = ints({0, 3, 2, 3}),
                     .lengths_S = ints({static_cast<std::int32_t>(by_decode->length(0)),
                                        0,
                                        static_cast<std::int32_t>(by_decode->length(2)),
                                        0})});
                by_decode->note_appended(0, 1);
                by_decode->note_appended(2, 1);
                CHECK(distance(got.index_select(0, at::tensor({0, 2}, at::kLong)), expected) <
                      kNear);
            }
            CHECK(by_decode->length(2) == 45);
        }
    }

    TEST_CASE("decode: blocks from the device are what extend gives, features and all") {
        const auto ints = [](std::vector<std::int32_t> values) {
            return tensor::upload(std::span<const std::int32_t>(values), at::kCPU);
        };
        for (const char* name : kDense) {
            CAPTURE(name);
            const auto model = load(name);
            const std::int64_t last = model->config().num_layers - 1;
            const auto by_extend = model->make_cache(4, 64);
            const auto by_decode = model->make_cache(4, 64);
            // One slot is full with the blocks, one empty before them, one is never used.
            const std::vector<Piece> prompts = {{2, make_tokens(31, 5)}, {3, make_tokens(48, 90)}};
            extend(*model, *by_extend, prompts);
            extend(*model, *by_decode, prompts);
            const std::vector<std::int32_t> slots = {3, 0, 2};
            for (const std::int32_t block : {1, 3, 12}) {
                CAPTURE(block);
                Tokens tokens;
                std::vector<std::int32_t> starts = {0};
                std::vector<std::int32_t> held;
                for (const std::int32_t slot : slots) {
                    const Tokens own = make_tokens(block, 100 + 40 * slot + block);
                    tokens.insert(tokens.end(), own.begin(), own.end());
                    starts.push_back(starts.back() + block);
                    held.push_back(static_cast<std::int32_t>(by_decode->length(slot)));
                }
                std::map<std::int64_t, at::Tensor> expected_features;
                const std::vector<std::int64_t> taps = {last, 0};
                const at::Tensor expected =
                    model
                        ->extend(*by_extend,
                                 {.tokens = tokens, .starts = starts, .slots = slots},
                                 taps,
                                 [&](std::int64_t layer, const at::Tensor& residual_TH) {
                                     expected_features[layer] = residual_TH.clone();
                                 })
                        .clone();
                // Sequences of nobody beside them, twice, change shapes of products only.
                Tokens more(static_cast<std::size_t>(block), 7);
                more.insert(more.end(), tokens.begin(), tokens.end());
                more.insert(more.end(), static_cast<std::size_t>(block), 9);
                const at::Tensor beside =
                    model->decode(*by_decode,
                                  {.tokens_T = ints(more),
                                   .slots_S = ints({4, slots[0], slots[1], slots[2], 4}),
                                   .lengths_S = ints({0, held[0], held[1], held[2], 0})});
                CHECK(distance(beside.narrow(0, block, 3 * block), expected) < kNear);

                std::int64_t tapped = 0;
                const at::Tensor got =
                    model->decode(*by_decode,
                                  {.tokens_T = ints(tokens),
                                   .slots_S = ints(slots),
                                   .lengths_S = ints(held),
                                   .taps = taps,
                                   .sink = [&](std::int64_t layer, const at::Tensor& residual_TH) {
                                       ++tapped;
                                       CHECK(residual_TH.equal(expected_features.at(layer)));
                                   }});
                CHECK(tapped == 2);
                CHECK(got.equal(expected));
                for (const std::int32_t slot : slots) {
                    by_decode->note_appended(slot, block);
                }
            }
            CHECK(by_decode->length(3) == 64);
        }
    }

    TEST_CASE("decode: refuses blocks that are longer than a slot") {
        const auto model = load("T1");
        const auto cache = model->make_cache(2, 4);
        const at::Tensor five = at::zeros({5}, at::kInt);
        const at::Tensor one = at::zeros({1}, at::kInt);
        CHECK(testing::error_of(
            [&] { model->decode(*cache, {.tokens_T = five, .slots_S = one, .lengths_S = one}); }));
    }

    TEST_CASE("extend: holds no scores of a prompt's length squared") {
        class Watch final : public c10::MemoryReportingInfoBase {
          public:
            void reportMemoryUsage(
                void*, std::int64_t size, std::size_t, std::size_t, c10::Device) override {
                largest = std::max(largest, size);
            }

            bool memoryProfilingEnabled() const override { return true; }

            std::int64_t largest = 0;
        };

        constexpr std::int64_t kLength = 3000;
        const auto model = load("T1b");
        const auto cache = model->make_cache(1, kLength);
        const Tokens tokens = make_tokens(kLength, 6);
        const auto watch = std::make_shared<Watch>();
        {
            c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, watch);
            extend(*model, *cache, {{0, part(tokens, 0, 1000)}});
            extend(*model, *cache, {{0, part(tokens, 1000, kLength)}});
        }
        CHECK(watch->largest > 0);
        CHECK(watch->largest < kLength * kLength * 4 / 8);
    }

    TEST_CASE("extend: bf16 stays near fp32") {
        const auto single = load("T1");
        const auto half = load("T1", at::kBFloat16);
        const Tokens tokens = make_tokens(150, 44);
        const auto cache = half->make_cache(1, 150);
        std::vector<at::Tensor> pieces = {extend(*half, *cache, {{0, part(tokens, 0, 100)}})};
        pieces.push_back(extend(*half, *cache, {{0, part(tokens, 100, 150)}}));
        const at::Tensor expected = whole(*single, tokens);
        const at::Tensor error = at::cat(pieces).to(at::kFloat) - expected;
        CHECK((error.square().mean() / expected.square().mean()).sqrt().item<double>() < 0.03);
    }

    TEST_CASE("decode_cache: refuses what has no room and what is not there") {
        const auto model = load("T3");
        const auto cache = model->make_cache(2, 10);
        CHECK(cache->slots() == 2);
        CHECK(cache->capacity() == 10);
        extend(*model, *cache, {{0, make_tokens(8, 1)}});
        const auto refused = [](const std::function<void()>& action) {
            const auto error = testing::error_of(action);
            return error && error->kind() == ErrorKind::Internal;
        };
        CHECK(refused([&] { extend(*model, *cache, {{0, make_tokens(3, 1)}}); }));
        CHECK(cache->length(0) == 8);
        CHECK(refused([&] { extend(*model, *cache, {{1, {1}}, {1, {2}}}); }));
        CHECK(refused([&] { extend(*model, *cache, {{2, {1}}}); }));
        CHECK(refused([&] { extend(*model, *cache, {{1, {-1}}}); }));
        CHECK(refused([&] { cache->truncate(0, 9); }));
        CHECK(refused([&] { cache->truncate(5, 0); }));
        const auto other = load("T1b");
        CHECK(refused([&] { extend(*other, *cache, {{1, {1}}}); }));
        CHECK(cache->bytes() == 21 * cache_bytes_per_token(model->config(), at::kFloat));
    }
}

}  // namespace dflash::target
