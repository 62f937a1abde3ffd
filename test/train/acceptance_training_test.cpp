// SPDX-License-Identifier: Apache-2.0
// Real decoding inside training: it changes nothing, does not depend on the devices, and says what
// the drafter in training is worth.
#include "tiny_run.hpp"

#include <dflash/core/error.hpp>
#include <dflash/train/acceptance_run.hpp>
#include <dflash/train/held_out_prompts.hpp>
#include <dflash/train/prepared_run.hpp>
#include <dflash/train/run_data.hpp>

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fstream>

namespace dflash::train {
namespace {

TrainRequest decoding_request(const std::string& output, std::int64_t steps) {
    TrainRequest request = tiny_request(output, steps);
    request.settings.eval.acceptance_prompts = 5;
    request.settings.eval.acceptance_tokens = 12;
    request.settings.eval.batch = 2;
    return request;
}

/// Of what was decoded, everything but times.
std::vector<std::string> decodings(const std::string& run_folder) {
    std::vector<std::string> lines;
    for (io::Json& record : metrics(run_folder, "acceptance")) {
        record.set("seconds", io::Json());
        record.set("eval_seconds", io::Json());
        lines.push_back(record.dump());
    }
    return lines;
}

bool contains(const std::string& text, const std::string& part) {
    CAPTURE(text);
    return text.find(part) != std::string::npos;
}

}  // namespace

TEST_SUITE("train.acceptance_training") {
    TEST_CASE("training does not depend on real decoding, nor that on the devices") {
        const TemporaryFolder folder;
        TrainRequest without = tiny_request(folder.path("without"), 4);
        set_roles(without, 1, "0", "0");
        REQUIRE(run(without) == 0);
        CHECK(metrics(folder.path("without"), "acceptance").empty());
        TrainRequest with = decoding_request(folder.path("with"), 4);
        with.settings.eval.every = {1e-6};      // with every step ...
        with.settings.eval.max_fraction = 1e6;  // ... whatever it costs
        set_roles(with, 1, "0", "0");
        REQUIRE(run(with) == 0);
        CHECK(losses(folder.path("with")) == losses(folder.path("without")));

        // One drafter, so that its weights are the same bits; it decodes on other devices.
        TrainRequest at_ends = decoding_request(folder.path("one"), 4);
        set_roles(at_ends, 1, "0", "0");
        REQUIRE(run(at_ends) == 0);
        TrainRequest spread = decoding_request(folder.path("spread"), 4);
        set_roles(spread, 4, "0,1", "2");
        REQUIRE(run(spread) == 0);
        CHECK(losses(folder.path("spread")) == losses(folder.path("without")));
        const std::vector<std::string> expected = decodings(folder.path("one"));
        CHECK(expected.size() == 2);  // at step 0 and at the end
        CHECK(decodings(folder.path("spread")) == expected);
        CHECK(decodings(folder.path("with")).front() == expected.front());
        CHECK(decodings(folder.path("with")).back() == expected.back());
    }

    TEST_CASE("the value at the start stands beside every later one, also after a resume") {
        const TemporaryFolder folder;
        const std::string run_folder = folder.path("a");
        TrainRequest request = decoding_request(run_folder, 4);
        REQUIRE(run(request) == 0);
        request.resume_folder = run_folder;
        request.settings.train.max_steps = 8;
        REQUIRE(run(request) == 0);
        const std::vector<io::Json> records = metrics(run_folder, "acceptance");
        REQUIRE(records.size() == 3);  // steps 0, 4, 8
        const double first = records[0].require_number("tau", "metrics");
        for (const io::Json& record : records) {
            CHECK(record.require_number("tau_at_start", "metrics") == first);
            CHECK(record.require_number("tau", "metrics") >= 1);
            CHECK(record.require_integer("prompts", "metrics") == 5);
            // Every token of every text is compared with plain decoding.
            CHECK(record.require_integer("equal_tokens", "metrics") >
                  record.require_integer("rounds", "metrics"));
            CHECK(record.require_integer("ties", "metrics") == 0);
            // In fp32 the forward of training sees what decoding sees.
            CHECK(record.require_integer("equal_rounds", "metrics") ==
                  record.require_integer("compared_rounds", "metrics"));
            CHECK(record.find("kept_by_slot")->items().size() == 7);
        }
        const std::string log = file_bytes(run_folder + "/console.log");
        CHECK(contains(log, "real decoding at step 0: tau "));
        CHECK(contains(log,
                       fmt::format("real decoding at step 8: tau {:.3f}, {:.3f} at step 0",
                                   records[2].require_number("tau", "metrics"),
                                   first)));
        CHECK(contains(log, "training's forward expects "));
        CHECK(contains(log, "really decoded: slot kept in %"));
        CHECK(contains(file_bytes(run_folder + "/status.json"), "\"first_tau\""));
    }

    TEST_CASE("costs no more than its share, but at the start and at the end") {
        const auto count_with = [](double max_fraction) {
            const TemporaryFolder folder;
            TrainRequest request = decoding_request(folder.path("a"), 5);
            request.settings.eval.every = {1e-6};
            request.settings.eval.max_fraction = max_fraction;
            REQUIRE(run(request) == 0);
            return metrics(folder.path("a"), "acceptance").size();
        };
        CHECK(count_with(1e-6) == 2);
        CHECK(count_with(1e6) > 2);  // more than there is
    }

    TEST_CASE("is off, and says so, where no held-out row has a prompt") {
        const TemporaryFolder folder;
        std::ofstream rows(folder.path("rows.jsonl"));
        for (int i = 0; i < 40; ++i) {
            rows << fmt::format("{{\"input_ids\": [{}, 8, 9, 10, 11, 12, 13, 14, 15, 16]}}\n",
                                17 + i);
        }
        rows.close();
        TrainRequest request = decoding_request(folder.path("a"), 2);
        request.settings.run.data = folder.path("rows.jsonl");
        REQUIRE(run(request) == 0);
        CHECK(metrics(folder.path("a"), "acceptance").empty());
        CHECK(metrics(folder.path("a"), "eval").size() == 2);
        const PreparedRun without = prepare_run(request.settings);
        CHECK_FALSE(without.plan.acceptance);
        CHECK(without.plan.acceptance_off.starts_with("no held-out row has a prompt"));

        // With prompts the plan says what it takes.
        const PreparedRun with = prepare_run(decoding_request("", 2).settings);
        REQUIRE(with.plan.acceptance);
        CHECK(with.plan.acceptance->prompts == 5);
        CHECK(with.plan.acceptance->slots == 2);
        CHECK(with.plan.acceptance_off.empty());
        CHECK(with.plan.devices[0].acceptance > 0);
    }

    TEST_CASE("an answer as long as the context is refused, as dflash eval refuses it") {
        TrainRequest request = decoding_request("", 1);
        request.settings.eval.acceptance_tokens = 1 << 20;
        try {
            prepare_run(request.settings);
            FAIL("no error");
        } catch (const Error& error) {
            CHECK(error.kind() == ErrorKind::Config);
            CHECK(
                contains(error.what(), "eval.acceptance_tokens: got 1048576, expected less than"));
        }
        request.settings.eval.acceptance_prompts = 0;  // then its length does not matter
        CHECK_FALSE(prepare_run(request.settings).plan.acceptance);
    }

    TEST_CASE("decodes the turn that dflash eval decodes, with the same numbers") {
        const TemporaryFolder folder;
        std::ofstream rows(folder.path("rows.jsonl"));
        for (int i = 0; i < 6; ++i) {
            rows << fmt::format(
                R"({{"messages": [{{"role": "user", "content": "What is {0} + 1?"}}, )"
                R"({{"role": "assistant", "content": "It is {1}."}}, )"
                R"({{"role": "user", "content": "And {1} + 2?"}}, )"
                R"({{"role": "assistant", "content": "{1} + 2 = {2}. So it is {2}."}}]}})"
                "\n",
                i,
                i + 1,
                i + 3);
        }
        rows.close();
        // Drafts are saved in bf16, so the one that is judged is the one that is trained on.
        TrainRequest first = tiny_request(folder.path("a"), 1);
        REQUIRE(run(first) == 0);
        TrainRequest training = decoding_request(folder.path("b"), 1);
        training.settings.run.init = folder.path("a/latest/draft");
        training.settings.run.eval_data = folder.path("rows.jsonl");
        training.settings.eval.acceptance_prompts = 6;
        REQUIRE(run(training) == 0);
        const std::vector<io::Json> records = metrics(folder.path("b"), "acceptance");
        REQUIRE(records.size() == 2);

        AcceptanceRequest judging;
        judging.draft = folder.path("a/latest/draft");
        judging.settings = training.settings;
        judging.settings.run.data = folder.path("rows.jsonl");
        judging.settings.run.gpus = "cpu:1";
        const AcceptanceReport report = judge_acceptance(judging);
        CHECK(report.num_prompts == 6);
        const io::Json& at_start = records.front();
        CHECK(at_start.require_integer("prompts", "metrics") == 6);
        CHECK(at_start.require_integer("rounds", "metrics") == report.drafter.acceptance.rounds());
        CHECK(at_start.require_number("tau", "metrics") == report.drafter.acceptance.tau());
        CHECK(at_start.require_number("lookup_tau", "metrics") == report.lookup.acceptance.tau());
        CHECK(at_start.require_number("forward_tau_on_answers", "metrics") ==
              report.answers->walked_tau);

        // Of the second question, not of the first one.
        const RunText text = open_text(training.settings);
        const data::Dataset dataset =
            open_data(folder.path("rows.jsonl"), text, dataset_options(training.settings));
        const std::vector<SampleId> ids(dataset.usable().begin(), dataset.usable().end());
        const EvalPrompts in_training =
            held_out_prompts(dataset, ids, {.count = 6, .longest = 4096});
        const EvalPrompts in_eval =
            read_eval_prompts(folder.path("rows.jsonl"),
                              text,
                              dataset_options(training.settings).files,
                              {.count = 6, .longest = 4096, .thinking = {}});
        REQUIRE(in_training.prompts.size() == 6);
        REQUIRE(in_eval.prompts.size() == 6);
        for (std::size_t i = 0; i < 6; ++i) {
            CHECK(in_training.prompts[i].tokens == in_eval.prompts[i].tokens);
            CHECK(in_training.prompts[i].answer == in_eval.prompts[i].answer);
        }
    }

    TEST_CASE("prompts are conversations up to their last answer, the same for the same seed") {
        Settings settings = tiny_request("", 1).settings;
        const RunText text = open_text(settings);
        const data::Dataset dataset = open_data(settings.run.data, text, dataset_options(settings));
        const std::vector<SampleId> ids(dataset.usable().begin(), dataset.usable().begin() + 30);
        const EvalPrompts some = held_out_prompts(dataset, ids, {.count = 8, .longest = 4096});
        REQUIRE(some.prompts.size() == 8);
        for (const EvalPrompt& prompt : some.prompts) {
            const data::Sample sample = dataset.encode(prompt.row);
            const auto n = prompt.tokens.size();
            const auto m = prompt.answer.size();
            REQUIRE(n + m <= sample.tokens.size());
            CHECK(std::equal(prompt.tokens.begin(), prompt.tokens.end(), sample.tokens.begin()));
            CHECK(std::count(sample.trainable.begin() + std::ssize(prompt.tokens) +
                                 std::ssize(prompt.answer),
                             sample.trainable.end(),
                             1) == 0);
            CHECK(m > 0);
            CHECK(std::all_of(
                sample.trainable.begin() + std::ssize(prompt.tokens),
                sample.trainable.begin() + std::ssize(prompt.tokens) + std::ssize(prompt.answer),
                [](auto value) { return value == 1; }));
        }
        const auto rows = [](const EvalPrompts& prompts) {
            std::vector<std::int64_t> result;
            for (const EvalPrompt& prompt : prompts.prompts) {
                result.push_back(prompt.row);
            }
            return result;
        };
        CHECK(rows(held_out_prompts(dataset, ids, {.count = 8, .longest = 4096})) == rows(some));
        CHECK(rows(held_out_prompts(dataset, ids, {.count = 8, .seed = 1, .longest = 4096})) !=
              rows(some));
        const EvalPrompts none = held_out_prompts(dataset, ids, {.count = 8, .longest = 1});
        CHECK(none.prompts.empty());
        CHECK(none.left_out.at("prompt longer than the context").count == 30);
    }
}

}  // namespace dflash::train
