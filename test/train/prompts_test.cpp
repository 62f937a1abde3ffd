// SPDX-License-Identifier: Apache-2.0
// Training on rows that the target answers itself, on the tiny target.
#include "prompts_run.hpp"

#include <dflash/core/error.hpp>
#include <dflash/target/generator.hpp>
#include <dflash/train/answer_check.hpp>
#include <dflash/train/checkpoint.hpp>

#include <algorithm>
#include <csignal>
#include <doctest/doctest.h>
#include <filesystem>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace dflash::train {
namespace {

namespace fs = std::filesystem;

std::string state_of(const TrainRequest& request) {
    return file_bytes(request.settings.run.output + "/latest/state/optimizer.safetensors");
}

/// Rows with answers of the tiny target at temperature 0.3, as tokens: it is random, and its text
/// would become other tokens.
std::string rows_of_the_target(std::int64_t count) {
    constexpr std::int64_t kPrompt = 12;
    constexpr std::int64_t kAnswer = 40;
    const auto model = target::load_target("test/golden/targets/T1", {.with_head = true});
    target::Generator generator(*model,
                                {.slots = 8, .capacity = kPrompt + kAnswer, .stop_tokens = {}});
    std::string text;
    std::int64_t next = 0;
    std::map<std::int64_t, std::vector<TokenId>> tokens;
    generator.run(
        [&]() -> std::optional<target::GenerationRequest> {
            if (next == count) {
                return std::nullopt;
            }
            std::vector<TokenId>& prompt = tokens[next];
            for (std::int64_t i = 0; i < kPrompt; ++i) {
                prompt.push_back(static_cast<TokenId>(20 + (next * 7 + i * 31) % 400));
            }
            return target::GenerationRequest{.id = next,
                                             .prompt = prompt,
                                             .max_new_tokens = kAnswer,
                                             .sampling = {.temperature = 0.3},
                                             .seed = 5,
                                             .sequence = static_cast<std::uint64_t>(next++)};
        },
        [&](target::Generation answer) {
            std::vector<TokenId>& row = tokens[answer.id];
            row.insert(row.end(), answer.tokens.begin(), answer.tokens.end());
            std::vector<int> mask(row.size(), 1);
            std::fill(mask.begin(), mask.begin() + kPrompt, 0);
            text += fmt::format(R"({{"input_ids": [{}], "loss_mask": [{}]}})"
                                "\n",
                                fmt::join(row, ", "),
                                fmt::join(mask, ", "));
        });
    return text;
}

}  // namespace

TEST_SUITE("train.prompts") {
    TEST_CASE("prompts: a run answers them first, and the next one takes them from the cache") {
        const TemporaryFolder folder;
        write(folder.path("rows.jsonl"), prompts(0, 40));
        const TrainRequest first = request_for(folder, "first");
        {
            const Lines lines;
            REQUIRE(run(first) == 0);
            CHECK(lines.have("40 of 40 rows: 40 answered by the target"));
        }
        CHECK(num_generated(first.settings.run.output) == 40);
        CHECK(losses(first.settings.run.output).size() > 4);
        const TrainRequest second = request_for(folder, "second");
        {
            const Lines lines;
            REQUIRE(run(second) == 0);
            CHECK(lines.have("0 answered by the target, 40 taken from the cache"));
            CHECK(!lines.have("rows to answer"));  // nothing was loaded for it
        }
        CHECK(num_generated(second.settings.run.output) == 0);
        CHECK(state_of(first) == state_of(second));

        // Rows in other places and beside others keep their answers; new ones are asked for.
        write(folder.path("rows.jsonl"), prompts(35, 50) + prompts(0, 10));
        const TrainRequest third = request_for(folder, "third");
        REQUIRE(run(third) == 0);
        CHECK(num_generated(third.settings.run.output) == 10);
        // Another way of answering is another folder of the cache.
        TrainRequest cooler = request_for(folder, "cooler");
        cooler.settings.generate.temperature = 0.5;
        REQUIRE(run(cooler) == 0);
        CHECK(num_generated(cooler.settings.run.output) == 25);
    }

    TEST_CASE("prompts: in how many turns they are answered changes nothing") {
        const TemporaryFolder folder;
        write(folder.path("rows.jsonl"), prompts(0, 30) + answered(30, 46) + prompts(46, 60));
        const TrainRequest whole = request_for(folder, "whole");
        REQUIRE(run(whole) == 0);
        CHECK(num_generated(whole.settings.run.output) == 44);
        for (const std::int64_t shard : {5, 20}) {
            CAPTURE(shard);
            TrainRequest turns = request_for(folder, fmt::format("turns-{}", shard));
            turns.settings.cache.dir = folder.path(fmt::format("cache-{}", shard));
            turns.settings.generate.shard_rows = shard;
            const Lines lines;
            REQUIRE(run(turns) == 0);
            CHECK(lines.have("answering and training take turns"));
            CHECK(num_generated(turns.settings.run.output) == 44);
            CHECK(metrics(turns.settings.run.output, "save").size() > 1);
            CHECK(losses(turns.settings.run.output) == losses(whole.settings.run.output));
            CHECK(state_of(turns) == state_of(whole));
        }
    }

    TEST_CASE("prompts: a run that is stopped at any moment goes on to the same bits") {
        const TemporaryFolder folder;
        write(folder.path("rows.jsonl"), prompts(0, 60));
        TrainRequest whole = request_for(folder, "whole");
        whole.settings.generate.shard_rows = 20;
        REQUIRE(run(whole) == 0);

        TrainRequest parts = request_for(folder, "parts");
        parts.settings.generate.shard_rows = 20;
        parts.settings.cache.dir = folder.path("cache-of-parts");
        {
            StopSignals signals;
            signals.stop_signal = SIGINT;  // before the first answer is there
            CHECK(train(parts, signals) == 130);
        }
        CHECK(CheckpointStore(parts.settings.run.output, 1, 1).steps().empty());
        TrainRequest resumed = parts;
        resumed.resume_folder = parts.settings.run.output;
        resumed.settings.run.output.clear();
        for (const std::int64_t steps : {2, 5}) {
            resumed.settings.train.max_steps = steps;
            CHECK(run(resumed) == 0);
        }
        // Whatever becomes of the cache.
        fs::remove_all(parts.settings.cache.dir);
        const auto before = file_bytes(parts.settings.run.output + "/answers.jsonl");
        // The end of the process in the middle of a line, as well.
        std::ofstream(parts.settings.run.output + "/answers.jsonl", std::ios::app)
            << R"({"sample": 3, "key)";
        resumed.settings.train.max_steps.reset();
        REQUIRE(run(resumed) == 0);
        const auto after = file_bytes(parts.settings.run.output + "/answers.jsonl");
        CHECK(after.substr(0, before.size()) == before);
        CHECK(losses(parts.settings.run.output) == losses(whole.settings.run.output));
        CHECK(state_of(parts) == state_of(whole));
    }

    TEST_CASE("prompts: data with all of their answers are trained on as they are") {
        const TemporaryFolder folder;
        write(folder.path("rows.jsonl"), answered(0, 60));
        for (const char* responses : {"missing", "dataset"}) {
            CAPTURE(responses);
            TrainRequest request = request_for(folder, responses);
            request.settings.data.responses = responses;
            const Lines lines;
            REQUIRE(run(request) == 0);
            CHECK(!lines.have("target's to answer"));
            CHECK(!fs::exists(request.settings.run.output + "/answers.jsonl"));
        }
        CHECK(!fs::exists(folder.path("cache") + "/responses"));
        TrainRequest anew = request_for(folder, "regenerate");
        anew.settings.data.responses = "regenerate";
        REQUIRE(run(anew) == 0);
        CHECK(num_generated(anew.settings.run.output) == 60);
        for (const io::Json& line : lines_of(anew.settings.run.output + "/answers.jsonl")) {
            CHECK(line.dump().find("A number.") == std::string::npos);
        }
    }

    TEST_CASE("prompts: with \"dataset\" rows without answers are left out, as they are unusable") {
        const TemporaryFolder folder;
        write(folder.path("rows.jsonl"), prompts(0, 1) + answered(1, 60));
        TrainRequest request = request_for(folder, "run");
        request.settings.data.responses = "dataset";
        request.settings.data.max_bad_fraction = 0.1;
        REQUIRE(run(request) == 0);
        request = request_for(folder, "none");
        request.settings.data.responses = "dataset";
        write(folder.path("rows.jsonl"), prompts(0, 20));
        const auto error = error_of([&] { run(request); });
        REQUIRE(error);
        CHECK(error->kind() == ErrorKind::Data);
    }

    TEST_CASE("prompts: answers that repeat themselves are dropped and counted, also cached ones") {
        const TemporaryFolder folder;
        write(folder.path("rows.jsonl"), prompts(0, 20) + answered(20, 40));
        TrainRequest request = request_for(folder, "all");
        request.settings.generate.max_new_tokens = 80;
        request.settings.generate.temperature = 0;  // a random model runs into loops
        REQUIRE(run(request) == 0);
        request.settings.run.output = folder.path("few");
        request.settings.generate.max_repeated = 0.3;
        const Lines lines;
        REQUIRE(run(request) == 0);
        CHECK(lines.have("dropped: repeated"));
        CHECK(num_generated(folder.path("few")) == 0);
        std::set<std::int64_t> used;
        for (const io::Json& line : lines_of(folder.path("few") + "/answers.jsonl")) {
            if (line.find("dropped") == nullptr) {
                used.insert(line.require_integer("sample", "line"));
            }
        }
        CHECK(used.size() < 20);
    }

    TEST_CASE("prompts: what cannot be answered, or kept, is a clear error") {
        const TemporaryFolder folder;
        write(folder.path("rows.jsonl"), prompts(0, 20));
        TrainRequest request = request_for(folder, "run");
        request.settings.generate.max_prompt_tokens = 3;
        auto error = error_of([&] { run(request); });
        REQUIRE(error);
        CHECK(error->kind() == ErrorKind::Data);
        CHECK(error->parts().cause.find("prompt_too_long") != std::string::npos);
        CHECK(error->parts().cause.find("generate.max_prompt_tokens = 3") != std::string::npos);

        request = request_for(folder, "samples");
        request.settings.generate.samples = 2;
        error = error_of([&] { run(request); });
        REQUIRE(error);
        CHECK(error->kind() == ErrorKind::Config);
        CHECK(error->parts().hint.find("dflash generate") != std::string::npos);

        write(folder.path("file"), "no folder");
        request = request_for(folder, "cache");
        request.settings.cache.dir = folder.path("file");
        error = error_of([&] { run(request); });
        REQUIRE(error);
        CHECK(error->kind() == ErrorKind::Storage);
        CHECK(error->parts().hint.find("cache.dir") != std::string::npos);

        // Other rows under the answers of a run.
        request = request_for(folder, "begun");
        {
            StopSignals signals;
            signals.stop_signal = SIGINT;
            CHECK(train(request, signals) == 130);
        }
        REQUIRE(run(request_for(folder, "whole")) == 0);
        fs::copy_file(folder.path("whole/answers.jsonl"),
                      folder.path("begun/answers.jsonl"),
                      fs::copy_options::overwrite_existing);
        write(folder.path("rows.jsonl"), prompts(100, 120));
        request.resume_folder = request.settings.run.output;
        request.settings.run.output.clear();
        error = error_of([&] { run(request); });
        REQUIRE(error);
        CHECK(error->kind() == ErrorKind::Config);
        CHECK(error->parts().what.find("other rows") != std::string::npos);
    }

    TEST_CASE("prompts: answers that are not the target's are told from its own") {
        const TemporaryFolder folder;
        write(folder.path("rows.jsonl"), answered(0, 40));
        TrainRequest request = request_for(folder, "foreign");
        request.settings.data.check_answers = 24;
        request.settings.data.max_bad_fraction = 0.2;  // the tokenizer lacks ids of the target
        request.settings.generate.temperature = 0.3;
        request.settings.train.max_steps = 1;
        {
            const Lines lines;
            REQUIRE(run(request) == 0);
            CHECK(lines.have("these are not the target's answers"));
            CHECK(lines.have("dflash generate --all --target test/golden/targets/T1"));
        }
        write(folder.path("own.jsonl"), rows_of_the_target(40));
        request.settings.run.data = folder.path("own.jsonl");
        request.settings.run.output = folder.path("own");
        {
            const Lines lines;
            REQUIRE(run(request) == 0);
            CHECK(!lines.have("these are not the target's answers"));
            CHECK(lines.have("are the target's likeliest ones, of its own answers"));
        }
        CHECK(AnswerShares{.tokens = 100, .likeliest = 50, .own_tokens = 100, .own_likeliest = 66}
                  .foreign());
        CHECK(!AnswerShares{.tokens = 100, .likeliest = 50, .own_tokens = 100, .own_likeliest = 64}
                   .foreign());
        // A run on the target's answers alone has nothing to compare.
        request.settings.run.data = folder.path("rows.jsonl");
        request.settings.data.responses = "regenerate";
        request.settings.run.output = folder.path("anew");
        const Lines lines;
        REQUIRE(run(request) == 0);
        CHECK(!lines.have("likeliest ones"));
    }

    TEST_CASE("prompts: the plan has the decoding of rows that are still to be answered") {
        const TemporaryFolder folder;
        write(folder.path("rows.jsonl"), prompts(0, 40));
        TrainRequest request = request_for(folder, "run");
        request.settings.eval.fraction = 0.1;
        request.settings.eval.acceptance_prompts = 3;
        request.settings.eval.acceptance_tokens = 12;
        request.settings.eval.batch = 2;
        const Lines lines;
        print_plan(request);
        CHECK(lines.have("evaluations decode 3 held-out prompts for up to 12 tokens"));
        CHECK(lines.have("real decoding "));  // in the memory of a device
        CHECK(!lines.have("do not really decode"));
    }

    TEST_CASE("prompts: answers that are all unusable are named with their reason") {
        const TemporaryFolder folder;
        write(folder.path("rows.jsonl"), prompts(0, 20));
        TrainRequest request = request_for(folder, "run");
        request.settings.data.min_trained_tokens = 2000;
        const auto error = error_of([&] { run(request); });
        REQUIRE(error);
        CHECK(error->kind() == ErrorKind::Data);
        CHECK(error->parts().what.find("none of the 20 answers of the target can be used "
                                       "(too_few_trained 20)") != std::string::npos);
        CHECK(error->parts().hint.find("data.min_trained_tokens") != std::string::npos);
    }

    TEST_CASE("prompts: the plan counts rows, and writes nothing") {
        const TemporaryFolder folder;
        write(folder.path("rows.jsonl"), prompts(0, 40) + answered(40, 60));
        const TrainRequest request = request_for(folder, "run");
        {
            const Lines lines;
            print_plan(request);
            CHECK(lines.have("40 of 60 rows are the target's to answer"));
            CHECK(lines.have("0 in the cache, 40 to be answered"));
            CHECK(lines.have("all are answered before training begins"));
        }
        CHECK(!fs::exists(request.settings.run.output));
        CHECK(!fs::exists(folder.path("cache") + "/responses"));
        REQUIRE(run(request) == 0);
        const Lines lines;
        print_plan(request_for(folder, "again"));
        CHECK(lines.have("40 in the cache, 0 to be answered"));
    }
}

}  // namespace dflash::train
