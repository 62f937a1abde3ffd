// SPDX-License-Identifier: Apache-2.0
// dflash eval on the tiny target and a drafter that was trained on other texts of it.
#include "tiny_run.hpp"

#include <dflash/core/error.hpp>
#include <dflash/train/acceptance_run.hpp>

#include <array>
#include <doctest/doctest.h>
#include <filesystem>
#include <fstream>
#include <string>

namespace dflash::train {
namespace {

AcceptanceRequest request_for(const std::string& data) {
    AcceptanceRequest request;
    request.draft = "test/golden/inference/full/drafter";
    request.settings.run.target = "test/golden/targets/T1";
    request.settings.run.data = data;
    request.settings.run.gpus = "cpu:1";
    request.settings.eval.acceptance_prompts = 6;
    request.settings.eval.acceptance_tokens = 24;
    request.settings.eval.batch = 4;
    return request;
}

const std::string kRows = "test/golden/tiny-data.jsonl";

std::string error_of(const AcceptanceRequest& request, ErrorKind kind) {
    try {
        judge_acceptance(request);
    } catch (const Error& error) {
        CHECK(error.kind() == kind);
        return error.what();
    }
    return "no error";
}

std::string write(const TemporaryFolder& folder, const std::string& name, const std::string& text) {
    std::ofstream(folder.path(name)) << text;
    return folder.path(name);
}

bool has_line(const AcceptanceReport& report, const std::string& part) {
    for (const std::string& line : report.to_lines()) {
        if (line.find(part) != std::string::npos) {
            return true;
        }
    }
    return false;
}

TEST_SUITE("train.acceptance_run") {
    TEST_CASE("judges greedily: three ways to decode, and what training's forward says of it") {
        const AcceptanceReport report = judge_acceptance(request_for(kRows));
        CHECK(report.num_prompts == 6);
        CHECK(report.plain.acceptance.tau() == 1);
        CHECK(report.plain.acceptance.rounds() == report.plain.round_tokens);
        CHECK(report.drafter.acceptance.tau() >= 1);
        CHECK(report.drafter.acceptance.tau() <= 8);
        CHECK(report.drafter.round_tokens == report.plain.round_tokens);
        REQUIRE(report.greedy);
        CHECK(report.greedy->texts == 6);
        CHECK(report.greedy->ties.empty());
        CHECK(report.greedy->tokens == report.plain.round_tokens + 6);
        REQUIRE(report.written);
        CHECK(report.agreement.rounds > 0);
        CHECK(report.agreement.equal == report.agreement.rounds);
        REQUIRE(report.answers);
        CHECK(report.answers->right_by_slot.size() == 7);
        CHECK(has_line(report, "prompt look-up"));
        CHECK(has_line(report, "token by token; 0 of 6 texts"));
        const io::Json json = io::Json::parse(report.to_json().dump_pretty(), "json");
        CHECK(json.find("drafter")->require_number("tau", "json") ==
              report.drafter.acceptance.tau());
        CHECK(json.find("equal_to_plain")->require_integer("ties", "json") == 0);
    }

    TEST_CASE("gives the same on any number of devices, and shows texts round by round") {
        AcceptanceRequest request = request_for(kRows);
        request.settings.eval.batch = 2;
        request.show = 2;
        const AcceptanceReport one = judge_acceptance(request);
        request.settings.run.gpus = "cpu:3";
        const AcceptanceReport three = judge_acceptance(request);
        CHECK(one.devices.size() == 1);
        CHECK(three.devices.size() == 3);
        CHECK(three.drafter.acceptance == one.drafter.acceptance);
        CHECK(three.lookup.acceptance == one.lookup.acceptance);
        CHECK(three.plain.acceptance == one.plain.acceptance);
        CHECK(three.agreement == one.agreement);
        CHECK(three.greedy->tokens == one.greedy->tokens);
        CHECK(three.written->right_by_slot == one.written->right_by_slot);

        REQUIRE(one.shown.size() == 2);
        for (const ShownText& text : one.shown) {
            std::string drafted = text.first;
            for (const ShownText::Piece& round : text.rounds) {
                drafted += round.kept + round.own;
            }
            // The last round may have kept more than the text needed.
            CAPTURE(drafted);
            CHECK(drafted.starts_with(text.plain));
            CHECK(text.plain_passes >= std::ssize(text.rounds));
        }
        CHECK(has_line(one, "plain     a token a pass, 23 passes:"));
        CHECK(one.to_json().find("shown")->items().size() == 2);
    }

    TEST_CASE("samples at a temperature, the same with the same seed") {
        AcceptanceRequest request = request_for(kRows);
        request.settings.eval.temperature = 0.8;
        request.settings.eval.top_p = 0.9;
        const AcceptanceReport first = judge_acceptance(request);
        CHECK_FALSE(first.greedy);
        CHECK_FALSE(first.written);
        CHECK(first.drafter.acceptance.rounds() > 0);
        CHECK(judge_acceptance(request).drafter.acceptance == first.drafter.acceptance);
        request.settings.run.seed = 1;
        CHECK_FALSE(judge_acceptance(request).drafter.acceptance == first.drafter.acceptance);
    }

    TEST_CASE("groups by what rows say of themselves") {
        const TemporaryFolder folder;
        const std::string rows =
            write(folder,
                  "rows.jsonl",
                  "{\"prompt\": \"What is 3 + 1?\", \"category\": \"sums\", \"thinking\": true}\n"
                  "{\"prompt\": \"What is 4 + 1?\", \"category\": \"sums\", \"thinking\": false}\n"
                  "{\"prompt\": \"What does the dog do?\", \"response\": \"It barks.\", \"task\": "
                  "\"dogs\"}\n");
        const AcceptanceReport report = judge_acceptance(request_for(rows));
        REQUIRE(report.categories.size() == 2);
        CHECK(report.categories[0].name == "dogs");
        CHECK(report.categories[1].prompts == 2);
        CHECK(report.modes.size() >= 2);
        CHECK(has_line(report, "sums"));
        CHECK(report.answers->texts == 1);
        CHECK(report.to_json().find("by_category")->items().size() == 2);
    }

    TEST_CASE("rows that cannot be answered are counted by reason") {
        const TemporaryFolder folder;
        std::string words;
        for (int i = 0; i < 3000; ++i) {
            words += "word ";
        }
        const std::string rows = write(
            folder,
            "rows.jsonl",
            "{\"prompt\": \"\"}\n{\"prompt\": \"" + words +
                "\"}\n{\"input_ids\": [1, 2, 3]}\n{\"prompt\": \"What is 3 + 1?\"}\nnot json\n");
        const AcceptanceReport report = judge_acceptance(request_for(rows));
        CHECK(report.num_prompts == 1);
        CHECK(report.left_out.at("prompt longer than the context").count == 1);
        CHECK(report.left_out.at("tokens without a mask").count == 1);
        CHECK(report.left_out.at("empty_prompt").count == 1);
        CHECK(report.left_out.at("bad_json").count == 1);
        CHECK(has_line(report, "rows.jsonl:2"));

        const std::string none = error_of(
            request_for(write(folder, "none.jsonl", "{\"prompt\": \" \"}\n")), ErrorKind::Data);
        CHECK(none.find("none of the 1 rows is a prompt that can be answered") !=
              std::string::npos);
        CHECK(none.find("none.jsonl:1") != std::string::npos);
    }

    TEST_CASE("finished tokens are split where their mask begins") {
        const TemporaryFolder folder;
        const std::string rows =
            write(folder,
                  "rows.jsonl",
                  "{\"input_ids\": [7, 8, 9, 10, 11, 12], \"loss_mask\": [0, 0, 0, 1, 1, 1]}\n");
        const AcceptanceReport report = judge_acceptance(request_for(rows));
        CHECK(report.num_prompts == 1);
        REQUIRE(report.answers);
        CHECK(report.answers->texts == 1);
    }

    TEST_CASE("says what does not fit") {
        const auto error_with = [](const auto& change, ErrorKind kind = ErrorKind::Config) {
            AcceptanceRequest request = request_for(kRows);
            change(request);
            return error_of(request, kind);
        };
        const auto contains = [](const std::string& text, const char* part) {
            CAPTURE(text);
            CHECK(text.find(part) != std::string::npos);
        };
        contains(error_with([](AcceptanceRequest& r) { r.settings.eval.block_size = 9; }),
                 "eval.block_size: got 9, expected 2 to 8, for which the drafter was trained");
        // A drafter of another target, whatever it differs in.
        const TemporaryFolder folder;
        for (const auto& [from, to, part] : std::vector<std::array<const char*, 3>>{
                 {"\"vocab_size\": 512", "\"vocab_size\": 600", "vocab_size of the drafter is 600"},
                 {"\"num_target_layers\": 6",
                  "\"num_target_layers\": 7",
                  "num_target_layers of the drafter is 7, but the target has 6"}}) {
            std::string config = file_bytes("test/golden/inference/full/drafter/config.json");
            config.replace(config.find(from), std::string(from).size(), to);
            std::filesystem::create_directories(folder.path("draft"));
            std::filesystem::copy_file("test/golden/inference/full/drafter/model.safetensors",
                                       folder.path("draft/model.safetensors"),
                                       std::filesystem::copy_options::overwrite_existing);
            write(folder, "draft/config.json", config);
            contains(error_with([&](AcceptanceRequest& r) { r.draft = folder.path("draft"); }),
                     part);
        }
        contains(error_with([&](AcceptanceRequest& r) {
                     std::filesystem::create_directories(folder.path("run/latest"));
                     std::filesystem::copy(folder.path("draft"), folder.path("run/latest/draft"));
                     r.draft = folder.path("run");
                 }),
                 "latest/draft");
        contains(
            error_with([](AcceptanceRequest& r) { r.settings.eval.acceptance_tokens = 1 << 20; }),
            "expected less than the context");
        contains(error_with([](AcceptanceRequest& r) { r.settings.eval.acceptance_prompts = 0; }),
                 "eval.acceptance_prompts: got 0, expected 1 or more");
        contains(error_with([](AcceptanceRequest& r) { r.settings.run.data = ""; }), "no prompts");
    }

    TEST_CASE("answers of few rounds are a warning: tau and training's forward end otherwise") {
        AcceptanceRequest request = request_for(kRows);
        request.settings.eval.acceptance_tokens = 2;
        const AcceptanceReport few = judge_acceptance(request);
        CHECK(few.drafter.acceptance.rounds() == 6);
        CHECK(has_line(few, "warning: answers of at most 2 tokens have room for few rounds of 8"));
        request.settings.eval.acceptance_tokens = 32;
        CHECK_FALSE(has_line(judge_acceptance(request), "room for few rounds"));
    }

    TEST_CASE("a smaller block than trained for gives no more than that") {
        AcceptanceRequest request = request_for(kRows);
        request.settings.eval.block_size = 3;
        const AcceptanceReport report = judge_acceptance(request);
        CHECK(report.config.block_size == 3);
        CHECK(report.drafter.acceptance.kept_by_slot().size() == 2);
        CHECK(report.agreement.equal == report.agreement.rounds);
    }
}

}  // namespace
}  // namespace dflash::train
