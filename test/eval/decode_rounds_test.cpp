// SPDX-License-Identifier: Apache-2.0
#include "../golden_check/decode_case.hpp"
#include "chi_square.hpp"

#include <dflash/core/error.hpp>
#include <dflash/eval/acceptance.hpp>
#include <dflash/eval/drafter_source.hpp>
#include <dflash/eval/prompt_lookup.hpp>

#include <ATen/Parallel.h>
#include <algorithm>
#include <cmath>
#include <doctest/doctest.h>
#include <map>

namespace dflash::eval {
namespace {

const std::string kFolder = "test/golden/inference/";

/// Products of the tiny models are so small that threads would only wait for each other.
[[maybe_unused]] const bool kOneThread = [] {
    at::set_num_threads(1);
    return true;
}();

const golden::DecodeCase& full() {
    static const golden::DecodeCase c(kFolder + "full", at::kCPU);
    return c;
}

std::vector<DecodeTask> tasks_of(const golden::DecodeCase& c, std::int64_t max_new_tokens) {
    std::vector<DecodeTask> tasks;
    for (const golden::ExpectedRun& run : c.runs) {
        tasks.push_back({std::ssize(tasks), run.prompt, max_new_tokens});
    }
    return tasks;
}

std::vector<std::vector<TokenId>> texts_of(const DecodeRun& run) {
    std::vector<std::vector<TokenId>> texts;
    for (const DecodedText& text : run.texts) {
        texts.push_back(text.emitted);
    }
    return texts;
}

TEST_SUITE("eval.decode") {
    TEST_CASE("rounds, tokens and tau are those of the reference, whatever is decoded beside") {
        for (const char* name : {"full", "sliding"}) {
            CAPTURE(name);
            golden::Options options;
            options.device.name = "cpu:0";
            golden::Verdict verdict;
            golden::check_decode(kFolder + name, options, verdict);
            CHECK(verdict.ok());
        }
    }

    TEST_CASE("greedy text does not depend on where drafts come from") {
        const golden::DecodeCase& c = full();
        const auto tasks = tasks_of(c, 40);
        NoDrafts none;
        const auto plain = texts_of(decode(*c.target, none, tasks, {}));
        DrafterSource drafter(*c.drafter, 8);
        CHECK(texts_of(decode(*c.target, drafter, tasks, {})) == plain);
        DrafterSource shorter(*c.drafter, 3);
        CHECK(texts_of(decode(*c.target, shorter, tasks, {})) == plain);
        PromptLookup lookup(8);
        const DecodeRun copied = decode(*c.target, lookup, tasks, {});
        CHECK(texts_of(copied) == plain);
        // The texts repeat themselves, so some copies are right.
        Acceptance acceptance(8);
        for (const DecodedText& text : copied.texts) {
            acceptance.add(text);
        }
        CHECK(acceptance.tau() > 1);
    }

    TEST_CASE("a text ends with a stop token or its length, and nothing is emitted behind") {
        const golden::DecodeCase& c = full();
        DrafterSource drafter(*c.drafter, 8);
        for (const std::int64_t length : {1, 2, 7, 23}) {
            CAPTURE(length);
            auto tasks = tasks_of(c, length);
            for (const DecodedText& text : decode(*c.target, drafter, tasks, {}).texts) {
                CHECK(std::ssize(text.emitted) == length);
                CHECK(text.leads.size() == text.emitted.size());
                CHECK_FALSE(text.stopped);
                CHECK(text.rounds.empty() == (length == 1));
            }
        }
        // A token in the middle of the first text.
        const TokenId stop = c.runs[0].emitted[9];
        const auto first = std::find(c.runs[0].emitted.begin(), c.runs[0].emitted.end(), stop) + 1;
        DecodeOptions options;
        options.stop_tokens = {stop};
        const DecodeRun run = decode(*c.target, drafter, tasks_of(c, 48), options);
        CHECK(run.texts[0].stopped);
        CHECK(run.texts[0].emitted == std::vector<TokenId>(c.runs[0].emitted.begin(), first));
    }

    TEST_CASE("slots have the room that is asked for, and texts do not depend on it") {
        struct Sizes : DraftSource {
            std::int64_t block_size() const override { return 8; }

            void allocate(std::int64_t slots, std::int64_t capacity) override {
                sizes = {slots, capacity};
            }

            std::vector<std::vector<TokenId>> propose(std::span<const SequenceView> sequences,
                                                      const ChoiceRule& rule) override {
                return PromptLookup(8).propose(sequences, rule);
            }

            std::pair<std::int64_t, std::int64_t> sizes;
        };

        const golden::DecodeCase& c = full();
        Sizes lookup;
        const auto expected = texts_of(decode(*c.target, lookup, tasks_of(c, 12), {}));
        const auto usual = lookup.sizes;
        CHECK(texts_of(decode(*c.target, lookup, tasks_of(c, 12), {.room = 4})) == expected);
        CHECK(lookup.sizes == usual);
        CHECK(texts_of(decode(*c.target, lookup, tasks_of(c, 12), {.room = 50})) == expected);
        CHECK(lookup.sizes == std::pair(usual.first, usual.second + 38));
    }

    TEST_CASE("drafts that stay on the device give the rounds of drafts that come by the host") {
        struct ByHost : DraftSource {
            explicit ByHost(DraftSource& drafter) : source(drafter) {}

            std::int64_t block_size() const override { return source.block_size(); }

            std::span<const std::int64_t> taps() const override { return source.taps(); }

            void allocate(std::int64_t slots, std::int64_t capacity) override {
                source.allocate(slots, capacity);
            }

            void absorb(const at::Tensor& features_KTH,
                        std::span<const std::int32_t> starts,
                        std::span<const std::int32_t> slots) override {
                source.absorb(features_KTH, starts, slots);
            }

            void truncate(std::int64_t slot, std::int64_t length) override {
                source.truncate(slot, length);
            }

            std::vector<std::vector<TokenId>> propose(std::span<const SequenceView> sequences,
                                                      const ChoiceRule& rule) override {
                ++proposals;
                return source.propose(sequences, rule);
            }

            at::Tensor distributions(std::int64_t first, std::int64_t count) override {
                return source.distributions(first, count);
            }

            DraftSource& source;
            std::int64_t proposals = 0;
        };

        for (const char* name : {"full", "sliding"}) {
            CAPTURE(name);
            const golden::DecodeCase c(kFolder + name, at::kCPU);
            // Lengths of their own, so that slots are left and entered at different times.
            auto tasks = tasks_of(c, 40);
            for (std::size_t i = 0; i < tasks.size(); ++i) {
                tasks[i].max_new_tokens -= static_cast<std::int64_t>(3 * i);
            }
            REQUIRE(tasks.size() >= 4);
            for (const double temperature : {0.0, 0.8}) {
                CAPTURE(temperature);
                DecodeOptions options;
                options.rule = {{.temperature = temperature}, /*seed=*/3};
                options.slots = 3;
                DrafterSource drafter(*c.drafter, c.block_size);
                const DecodeRun by_device = decode(*c.target, drafter, tasks, options);
                ByHost host(drafter);
                const DecodeRun by_host = decode(*c.target, host, tasks, options);
                CHECK(host.proposals > 0);
                std::int64_t rounds = 0;
                for (std::size_t i = 0; i < tasks.size(); ++i) {
                    const DecodedText& a = by_device.texts[i];
                    const DecodedText& b = by_host.texts[i];
                    CHECK(a.emitted == b.emitted);
                    REQUIRE(a.rounds.size() == b.rounds.size());
                    for (std::size_t r = 0; r < a.rounds.size(); ++r, ++rounds) {
                        CHECK(a.rounds[r].start == b.rounds[r].start);
                        CHECK(a.rounds[r].drafted == b.rounds[r].drafted);
                        CHECK(a.rounds[r].accepted == b.rounds[r].accepted);
                        CHECK(a.rounds[r].bonus == b.rounds[r].bonus);
                    }
                }
                CHECK(rounds > 20);
            }
        }
    }

    TEST_CASE("slots that stay give what slots of their own give, and so do fixed shapes") {
        const golden::DecodeCase& c = full();
        const auto tasks = tasks_of(c, 24);
        DrafterSource drafter(*c.drafter, 8);
        PromptLookup lookup(8);
        const std::int64_t capacity = slot_capacity(tasks, {}, 8);
        const auto expected = texts_of(decode(*c.target, drafter, tasks, {.slots = 2}));
        // Fixed: rounds of three are filled up with a sequence of nobody, short blocks with tokens
        // that count for nothing. The CPU has no graphs.
        RoundDecoder decoder(*c.target, 5, capacity + 5);
        RoundDecoder fixed(*c.target, 5, capacity);
        PromptLookup fixed_lookup(8);
        DrafterSource fixed_drafter(*c.drafter, 8);
        decoder.prepare(drafter, RoundShapes::Graphs);
        decoder.prepare(lookup, RoundShapes::Graphs);
        fixed.prepare(fixed_lookup, RoundShapes::Fixed);
        fixed.prepare(fixed_drafter, RoundShapes::Fixed);
        for (const std::int64_t slots : {3, 1, 100}) {
            CAPTURE(slots);
            CHECK(texts_of(decoder.decode(drafter, tasks, {.slots = slots})) == expected);
            CHECK(texts_of(decoder.decode(lookup, tasks, {.slots = slots})) == expected);
            CHECK(texts_of(fixed.decode(fixed_drafter, tasks, {.slots = slots})) == expected);
            CHECK(texts_of(fixed.decode(fixed_lookup, tasks, {.slots = slots})) == expected);
        }
        DecodeOptions sampled{.rule = {{.temperature = 0.8}, /*seed=*/3}, .slots = 3};
        CHECK(texts_of(fixed.decode(fixed_drafter, tasks, sampled)) ==
              texts_of(decode(*c.target, drafter, tasks, sampled)));
        CHECK(texts_of(fixed.decode(fixed_lookup, tasks, sampled)) ==
              texts_of(decode(*c.target, lookup, tasks, sampled)));
        NoDrafts none;
        CHECK_THROWS_WITH_AS(
            decoder.decode(none, tasks, {}), doctest::Contains("not prepared"), Error);
        CHECK_THROWS_WITH_AS(decoder.decode(drafter, tasks_of(c, 200), {}),
                             doctest::Contains("tasks need slots of"),
                             Error);
    }

    TEST_CASE("sampled text depends on seed and row only") {
        const golden::DecodeCase& c = full();
        const auto tasks = tasks_of(c, 24);
        DecodeOptions options;
        options.rule = {{.temperature = 0.8, .top_p = 0.95, .top_k = 20}, /*seed=*/3};
        DrafterSource drafter(*c.drafter, 8);
        const auto expected = texts_of(decode(*c.target, drafter, tasks, options));
        for (const std::int64_t slots : {1, 4}) {
            CAPTURE(slots);
            options.slots = slots;
            CHECK(texts_of(decode(*c.target, drafter, tasks, options)) == expected);
        }
        options.rule.seed = 4;
        CHECK(texts_of(decode(*c.target, drafter, tasks, options)) != expected);
    }

    TEST_CASE("sampled text is distributed as the target's own, with drafts and without") {
        const golden::DecodeCase& c = full();
        const target::Sampling sampling{.temperature = 1.5, .top_p = 0.9, .top_k = 4};
        constexpr std::int64_t kTexts = 2000;
        const std::vector<TokenId> prompt = c.runs[2].prompt;

        // The exact distribution of two tokens behind the prompt: at most 4 x 4 pairs.
        const auto after = [&](const std::vector<TokenId>& tokens) {
            const auto cache = c.target->make_cache(1, std::ssize(tokens));
            const std::vector<std::int32_t> starts{0, static_cast<std::int32_t>(tokens.size())};
            const std::vector<std::int32_t> slots{0};
            const at::Tensor residual = c.target->extend(*cache, {tokens, starts, slots}, {}, {});
            return target::probabilities(c.target->logits(residual.narrow(0, starts[1] - 1, 1)),
                                         std::vector<target::Sampling>{sampling})[0];
        };
        std::map<std::pair<TokenId, TokenId>, double> exact;
        const at::Tensor first = after(prompt);
        for (TokenId a = 0; a < 512; ++a) {
            if (first[a].item<double>() > 0) {
                std::vector<TokenId> tokens = prompt;
                tokens.push_back(a);
                const at::Tensor second = after(tokens);
                for (TokenId b = 0; b < 512; ++b) {
                    if (second[b].item<double>() > 0) {
                        exact[{a, b}] = first[a].item<double>() * second[b].item<double>();
                    }
                }
            }
        }
        REQUIRE(exact.size() >= 4);

        std::vector<DecodeTask> tasks;
        for (std::int64_t i = 0; i < kTexts; ++i) {
            tasks.push_back({i, prompt, 2});
        }
        DecodeOptions options;
        options.rule = {sampling, /*seed=*/11};
        options.slots = 250;
        NoDrafts none;
        PromptLookup lookup(8);
        DrafterSource drafter(*c.drafter, 8);
        for (DraftSource* source : std::initializer_list<DraftSource*>{&none, &lookup, &drafter}) {
            CAPTURE(source->block_size());
            std::map<std::pair<TokenId, TokenId>, std::int64_t> seen;
            for (const DecodedText& text : decode(*c.target, *source, tasks, options).texts) {
                ++seen[{text.emitted[0], text.emitted[1]}];
            }
            std::vector<std::int64_t> counts;
            std::vector<double> expected;
            std::int64_t counted = 0;
            for (const auto& [pair, probability] : exact) {
                counts.push_back(seen[pair]);
                counted += counts.back();
                expected.push_back(probability);
            }
            CHECK(counted == kTexts);
            CHECK(chi_square_p_value(counts, expected) > 1e-3);
        }
    }

    TEST_CASE("an empty prompt or a length of 0 is refused") {
        const golden::DecodeCase& c = full();
        NoDrafts none;
        CHECK_THROWS_AS(decode(*c.target, none, std::vector<DecodeTask>{{0, {}, 4}}, {}), Error);
        CHECK_THROWS_AS(decode(*c.target, none, std::vector<DecodeTask>{{0, {1}, 0}}, {}), Error);
        CHECK(decode(*c.target, none, std::vector<DecodeTask>{}, {}).texts.empty());
    }
}

}  // namespace
}  // namespace dflash::eval
