// SPDX-License-Identifier: Apache-2.0
// Runs whose rows the target answers, when something becomes of their data, files or settings.
#include "prompts_run.hpp"

#include <dflash/core/error.hpp>

#include <csignal>
#include <doctest/doctest.h>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <map>
#include <string>
#include <string_view>
#include <utility>

namespace dflash::train {
namespace {

namespace fs = std::filesystem;

}  // namespace

TEST_SUITE("train.prompts_resume") {
    TEST_CASE("prompts: data that grow during a run are a clear error, whatever rows are added") {
        const TemporaryFolder folder;
        const std::string rows = prompts(0, 12) + answered(12, 24);
        for (const bool with_answers : {true, false}) {
            // In the first turn, before there is a checkpoint, and in the second.
            for (const int turn : {1, 2}) {
                CAPTURE(with_answers);
                CAPTURE(turn);
                write(folder.path("rows.jsonl"), rows);
                TrainRequest request =
                    request_for(folder, fmt::format("run-{}-{}", with_answers, turn));
                request.settings.generate.shard_rows = 4;
                request.settings.cache.dir = request.settings.run.output + "-cache";
                Lines lines;
                int turns = 0;
                lines.on_line = [&](std::string_view line) {
                    if (line.find("rows to answer") != std::string_view::npos && ++turns == turn) {
                        std::ofstream(folder.path("rows.jsonl"), std::ios::app)
                            << (with_answers ? answered(100, 104) : prompts(100, 104));
                    }
                };
                const auto error = error_of([&] { run(request); });
                REQUIRE(error);
                CHECK(turns == turn);
                CHECK(error->kind() == ErrorKind::Config);
                CHECK(error->parts().what.starts_with(turn == 1
                                                          ? "the data grew since the run began"
                                                          : "the data grew since the checkpoint"));
            }
        }
    }

    TEST_CASE("prompts: a resume that is refused leaves the run as it was") {
        const TemporaryFolder folder;
        write(folder.path("rows.jsonl"), prompts(0, 20));
        TrainRequest request = request_for(folder, "run");
        {
            StopSignals signals;
            signals.stop_signal = SIGINT;  // before the first answer is there
            CHECK(train(request, signals) == 130);
        }
        request.resume_folder = std::exchange(request.settings.run.output, "");
        const auto files = [&] {
            std::map<std::string, std::string> bytes;
            for (const auto& entry : fs::recursive_directory_iterator(request.resume_folder)) {
                if (entry.is_regular_file()) {
                    bytes[entry.path().string()] = file_bytes(entry.path().string());
                }
            }
            return bytes;
        };
        const auto before = files();
        TrainRequest other = request;
        other.settings.generate.temperature = 0.5;
        const auto error = error_of([&] { run(other); });
        REQUIRE(error);
        CHECK(error->kind() == ErrorKind::Config);
        CHECK(error->parts().what.find("temperature 0.9") != std::string::npos);
        CHECK(files() == before);
        request.settings.train.max_steps = 1;
        CHECK(run(request) == 0);
    }

    TEST_CASE("prompts: a run without a checkpoint says how it goes on, and is named to others") {
        const TemporaryFolder folder;
        write(folder.path("rows.jsonl"), prompts(0, 20));
        {
            Lines lines;
            StopSignals signals;
            signals.stop_signal = SIGINT;
            CHECK(train(request_for(folder, "begun"), signals) == 130);
            CHECK(lines.have("drafter   none yet"));
            CHECK(lines.have("continue  dflash --resume " + folder.path("begun")));
            CHECK(!lines.have("latest/draft"));
            CHECK(!lines.have("config.json"));
        }
        TrainRequest other = request_for(folder, "other");
        other.settings.train.max_steps = 1;
        other.settings.train.lr *= 2;
        {
            const Lines lines;
            REQUIRE(run(other) == 0);
            CHECK(!lines.have("unfinished run"));
        }
        const Lines lines;
        StopSignals signals;
        signals.stop_signal = SIGINT;
        CHECK(train(request_for(folder, "again"), signals) == 130);
        CHECK(lines.have("an unfinished run with the same settings is in " + folder.path("begun")));
        CHECK(lines.have("To continue that: dflash --resume " + folder.path("begun")));
    }

    TEST_CASE("prompts: other tokens that end an answer are another way of answering") {
        const TemporaryFolder folder;
        write(folder.path("rows.jsonl"), prompts(0, 20));
        fs::copy("test/golden/targets/T1", folder.path("target"));
        const auto stop_at = [&](const std::string& tokens) {
            write(folder.path("target/generation_config.json"),
                  fmt::format(R"({{"eos_token_id": [{}]}})", tokens));
        };
        stop_at("2");
        TrainRequest request = request_for(folder, "before");
        request.settings.run.target = folder.path("target");
        request.settings.train.max_steps = 1;
        REQUIRE(run(request) == 0);
        TrainRequest resumed = request;
        resumed.resume_folder = std::exchange(resumed.settings.run.output, "");
        stop_at("2, 60, 61");
        const auto error = error_of([&] { run(resumed); });
        REQUIRE(error);
        CHECK(error->kind() == ErrorKind::Config);
        CHECK(error->parts().what.find("stop tokens") != std::string::npos);
        request.settings.run.output = folder.path("after");
        REQUIRE(run(request) == 0);
        CHECK(num_generated(folder.path("after")) == 20);
    }

    TEST_CASE("prompts: a damaged line of the cache costs its answer, one of the run says how") {
        const TemporaryFolder folder;
        write(folder.path("rows.jsonl"), prompts(0, 20));
        TrainRequest request = request_for(folder, "first");
        request.settings.train.max_steps = 1;
        REQUIRE(run(request) == 0);
        const auto damage = [](const std::string& path, const std::string& with) {
            std::string text = file_bytes(path);
            const std::size_t begin = text.find('\n', text.find('\n') + 1) + 1;  // the third line
            const std::size_t end = text.find('\n', begin);
            text.replace(begin, end - begin, with);
            write(path, text);
        };
        const std::string cache =
            fs::directory_iterator(folder.path("cache/responses"))->path().string() +
            "/answers.jsonl";
        int number = 0;
        for (const std::string& with : {std::string(40, '\0'), std::string(R"({"key": "a"})")}) {
            damage(cache, with);
            request.settings.run.output = folder.path(fmt::format("next-{}", ++number));
            Lines lines;
            REQUIRE(run(request) == 0);
            CHECK(lines.have("1 line of the cache of answers is damaged"));
            CHECK(lines.have(cache + ":3"));
            // The first time it is answered anew; the next time that answer stands further down.
            CHECK(num_generated(request.settings.run.output) == (number == 1 ? 1 : 0));
        }

        const std::string answers = folder.path("first/answers.jsonl");
        damage(answers, std::string(40, '\0'));
        request.resume_folder = folder.path("first");
        request.settings.run.output.clear();
        auto error = error_of([&] { run(request); });
        REQUIRE(error);
        CHECK(error->kind() == ErrorKind::Data);
        CHECK(error->parts().where == answers + ":3");
        CHECK(error->parts().hint.find("sed -i 3d " + answers) != std::string::npos);
        fs::remove(answers);
        fs::create_directory(answers);
        error = error_of([&] { run(request); });
        REQUIRE(error);
        CHECK(error->parts().what.find("folder") != std::string::npos);
        CHECK(!error->parts().hint.empty());
    }
}

}  // namespace dflash::train
