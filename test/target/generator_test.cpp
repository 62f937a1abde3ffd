// SPDX-License-Identifier: Apache-2.0
#include "model_folder.hpp"

#include <dflash/target/generator.hpp>

#include <ATen/Parallel.h>
#include <algorithm>
#include <cstring>
#include <doctest/doctest.h>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace dflash::target {
namespace {

using Tokens = std::vector<TokenId>;

std::unique_ptr<TargetModel> load(const std::string& name) {
    at::set_num_threads(1);  // as on a worker
    return load_target(
        "test/golden/targets/" + name,
        {.device = at::kCPU, .dtype = at::kFloat, .num_layers = 0, .with_head = true});
}

std::vector<GenerationRequest> make_requests(const Sampling& sampling, std::uint64_t seed) {
    std::vector<GenerationRequest> requests;
    const std::vector<std::int64_t> lengths = {5, 40, 1, 17, 90, 3, 33, 8};
    const std::vector<std::int64_t> limits = {12, 3, 20, 1, 7, 30, 11, 2};
    for (std::size_t i = 0; i < lengths.size(); ++i) {
        GenerationRequest request{.id = static_cast<std::int64_t>(100 + i),
                                  .prompt = {},
                                  .max_new_tokens = limits[i],
                                  .sampling = sampling,
                                  .seed = seed,
                                  .sequence = i};
        for (std::int64_t t = 0; t < lengths[i]; ++t) {
            request.prompt.push_back(
                static_cast<TokenId>((t * 37 + t * t + 51 * request.id) % 512));
        }
        requests.push_back(std::move(request));
    }
    return requests;
}

using Answers = std::map<std::int64_t, Generation>;

Answers answer(TargetModel& model,
               const std::vector<GenerationRequest>& requests,
               const GeneratorOptions& options) {
    Generator generator(model, options);
    Answers answers;
    std::size_t next = 0;
    std::int64_t tokens = 0;
    generator.run(
        [&]() -> std::optional<GenerationRequest> {
            return next < requests.size() ? std::optional(requests[next++]) : std::nullopt;
        },
        [&](Generation generation) {
            tokens += static_cast<std::int64_t>(generation.tokens.size());
            const std::int64_t id = generation.id;
            CHECK(answers.emplace(id, std::move(generation)).second);
        });
    CHECK(answers.size() == requests.size());
    CHECK(generator.tokens_chosen() == tokens);
    return answers;
}

// One token at a time, each from the forward over everything before it.
Tokens plain_greedy(TargetModel& model, Tokens sequence, std::int64_t count) {
    Tokens answer;
    for (std::int64_t i = 0; i < count; ++i) {
        const auto cache = model.make_cache(1, static_cast<std::int64_t>(sequence.size()));
        const std::vector<std::int32_t> starts = {0, static_cast<std::int32_t>(sequence.size())};
        const std::vector<std::int32_t> slots = {0};
        const at::Tensor residual_TH =
            model.extend(*cache, {.tokens = sequence, .starts = starts, .slots = slots}, {}, {});
        const at::Tensor logits_1V =
            model.logits(residual_TH.narrow(0, residual_TH.size(0) - 1, 1));
        answer.push_back(static_cast<TokenId>(logits_1V.argmax(1).item<std::int64_t>()));
        sequence.push_back(answer.back());
    }
    return answer;
}

}  // namespace

TEST_SUITE("target.generator") {
    TEST_CASE("generator: greedy answers are those of plain decoding, whatever the slots") {
        for (const char* name : {"T1", "T3"}) {
            CAPTURE(name);
            const auto model = load(name);
            const std::vector<GenerationRequest> requests = make_requests({}, 0);
            std::map<std::int64_t, Tokens> expected;
            for (const GenerationRequest& request : requests) {
                expected[request.id] = plain_greedy(*model, request.prompt, request.max_new_tokens);
            }
            for (const GeneratorOptions& options :
                 {GeneratorOptions{.slots = 1, .capacity = 100, .stop_tokens = {}},
                  GeneratorOptions{
                      .slots = 3, .capacity = 96, .prefill_tokens = 16, .stop_tokens = {}},
                  GeneratorOptions{.slots = 20, .capacity = 200, .stop_tokens = {}}}) {
                CAPTURE(options.slots);
                const Answers answers = answer(*model, requests, options);
                for (const GenerationRequest& request : requests) {
                    CAPTURE(request.id);
                    const Generation& got = answers.at(request.id);
                    CHECK(got.tokens == expected.at(request.id));
                    CHECK(!got.stopped);
                }
            }
        }
    }

    TEST_CASE("generator: sampled answers depend on seed and sequence, not on the batch") {
        const auto model = load("T1");
        const Sampling sampling{.temperature = 1.2, .top_p = 0.95, .top_k = 50};
        const std::vector<GenerationRequest> requests = make_requests(sampling, 7);
        const Answers alone =
            answer(*model, requests, {.slots = 1, .capacity = 100, .stop_tokens = {}});
        const Answers together =
            answer(*model,
                   requests,
                   {.slots = 5, .capacity = 128, .prefill_tokens = 10, .stop_tokens = {}});
        const Answers other_seed = answer(
            *model, make_requests(sampling, 8), {.slots = 5, .capacity = 128, .stop_tokens = {}});
        int different = 0;
        for (const auto& [id, generation] : alone) {
            CAPTURE(id);
            CHECK(generation.tokens == together.at(id).tokens);
            different += generation.tokens != other_seed.at(id).tokens ? 1 : 0;
        }
        CHECK(different >= 5);
    }

    TEST_CASE("generator: rows with different rules share a batch") {
        const auto model = load("T1");
        std::vector<GenerationRequest> requests = make_requests({}, 3);
        requests[2].sampling = {.temperature = 0.7};
        requests[5].sampling = {.temperature = 1, .top_p = 0.9};
        const Answers mixed =
            answer(*model, requests, {.slots = 8, .capacity = 100, .stop_tokens = {}});
        const Answers alone =
            answer(*model, requests, {.slots = 1, .capacity = 100, .stop_tokens = {}});
        for (const auto& [id, generation] : mixed) {
            CHECK(generation.tokens == alone.at(id).tokens);
        }
    }

    TEST_CASE("generator: an answer ends with its first stop token") {
        const auto model = load("T1");
        const std::vector<GenerationRequest> requests = make_requests({}, 0);
        const Answers whole =
            answer(*model, requests, {.slots = 4, .capacity = 100, .stop_tokens = {}});
        // Two tokens that come up in the middle of answers.
        const Tokens stops = {whole.at(100).tokens[4], whole.at(105).tokens[9]};
        const Answers stopped =
            answer(*model, requests, {.slots = 4, .capacity = 100, .stop_tokens = stops});
        int num_stopped = 0;
        for (const auto& [id, generation] : stopped) {
            CAPTURE(id);
            Tokens expected = whole.at(id).tokens;
            const auto end =
                std::find_first_of(expected.begin(), expected.end(), stops.begin(), stops.end());
            CHECK(generation.stopped == (end != expected.end()));
            num_stopped += generation.stopped ? 1 : 0;
            if (end != expected.end()) {
                expected.erase(end + 1, expected.end());
            }
            CHECK(generation.tokens == expected);
        }
        CHECK(num_stopped >= 2);
    }

    TEST_CASE("generator: a slot goes to the next prompt as soon as its sequence has ended") {
        const auto model = load("T3");
        const std::vector<GenerationRequest> requests = make_requests({}, 0);
        Generator generator(*model, {.slots = 2, .capacity = 100, .stop_tokens = {}});
        std::size_t asked = 0;
        std::size_t taken = 0;
        generator.run(
            [&]() -> std::optional<GenerationRequest> {
                if (asked == requests.size()) {
                    return std::nullopt;
                }
                CHECK(asked - taken < 2);  // a slot is free
                return requests[asked++];
            },
            [&](const Generation&) {
                // Both slots were busy for as long as there were prompts.
                CHECK((asked - taken == 2 || asked == requests.size()));
                ++taken;
            });
        CHECK(taken == requests.size());
    }

    TEST_CASE("generator: stops between steps when it is told to, and answers again after that") {
        const auto model = load("T1");
        std::vector<GenerationRequest> requests = make_requests({}, 0);
        Generator generator(*model, {.slots = 2, .capacity = 200, .stop_tokens = {}});
        std::size_t next = 0;
        int steps = 0;
        Answers answers;
        const auto give = [&]() -> std::optional<GenerationRequest> {
            return next < requests.size() ? std::optional(requests[next++]) : std::nullopt;
        };
        const auto take = [&](Generation generation) {
            answers[generation.id] = std::move(generation);
        };
        generator.run(give, take, [&] { return ++steps > 5; });
        CHECK(answers.size() < requests.size());
        const std::size_t before = answers.size();
        next = 3;
        generator.run(give, take);
        CHECK(answers.size() >= before);
        for (std::size_t i = 3; i < requests.size(); ++i) {
            CHECK(answers.at(requests[i].id).tokens ==
                  plain_greedy(*model, requests[i].prompt, requests[i].max_new_tokens));
        }
    }

    TEST_CASE("generator: logits that are not finite end it with an error") {
        const testing::TempFolder folder;
        testing::copy_target("test/golden/targets/T3", folder.string() + "/model", [](auto& all) {
            // Finite, and so are their sums, but not the products of the two.
            const auto fill = [&](const char* name, std::uint16_t bf16) {
                testing::OwnedTensor& tensor = testing::tensor_named(all, name);
                for (std::size_t i = 0; i + 1 < tensor.data.size(); i += 2) {
                    std::memcpy(tensor.data.data() + i, &bf16, 2);
                }
            };
            fill("model.norm.weight", 0x7c00);  // 2^121
            fill("lm_head.weight", 0x4480);     // 2^10
        });
        const auto model = load_target(
            folder.string() + "/model",
            {.device = at::kCPU, .dtype = at::kFloat, .num_layers = 0, .with_head = true});
        const auto error = testing::error_of([&] {
            answer(*model, make_requests({}, 0), {.slots = 2, .capacity = 100, .stop_tokens = {}});
        });
        REQUIRE(error);
        CHECK(error->kind() == ErrorKind::Numeric);
        CHECK(error->parts().what.find("not finite") != std::string::npos);
    }

    TEST_CASE("generator: without prompts there is nothing to do") {
        const auto model = load("T1b");
        CHECK(answer(*model, {}, {.slots = 3, .capacity = 10, .stop_tokens = {}}).empty());
    }
}

}  // namespace dflash::target
