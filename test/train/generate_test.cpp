// SPDX-License-Identifier: Apache-2.0
// dflash generate on the tiny target, in this process.
#include "prompts_run.hpp"

#include <dflash/core/error.hpp>
#include <dflash/core/log.hpp>
#include <dflash/data/row.hpp>
#include <dflash/report/console.hpp>
#include <dflash/train/generate.hpp>
#include <dflash/train/response_journal.hpp>

#include <csignal>
#include <doctest/doctest.h>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace dflash::train {
namespace {

namespace fs = std::filesystem;

const char* const kRows =
    R"({"id": 0, "prompt": "What is 3 + 1?", "level": "easy"}
{"id": 1, "messages": [{"role": "user", "content": "Say hi."}, {"role": "assistant", "content": "hi"}]}
{"id": 2, "turns": ["Count to 3.", "And back."]}
{"id": 3, "text": "plain text"}
{"id": 4, "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}]}
{"id": 5, "prompt": "What does the dog do?", "response": ""}
{"id": 6, "prompt": "What does the cat do?", "response": null}
)";

GenerateRequest tiny(const std::string& data, const std::string& output) {
    GenerateRequest request;
    Settings& s = request.settings;
    s.run.target = "test/golden/targets/T1";
    s.run.data = data;
    s.run.gpus = "cpu:1";
    s.data.chat_format = "qwen3";  // can think, and not
    s.run.output = output;
    s.generate.max_new_tokens = 12;
    s.generate.temperature = 0.8;
    s.generate.batch = 3;
    request.command_line = "dflash generate --again";
    return request;
}

int run(const GenerateRequest& request) {
    StopSignals signals;
    return generate(request, signals);
}

std::vector<io::Json> rows_of(const std::string& path) {
    std::vector<io::Json> rows;
    std::ifstream file(path);
    REQUIRE(file.good());
    for (std::string line; std::getline(file, line);) {
        rows.push_back(io::Json::parse(line, path));
    }
    return rows;
}

std::int64_t id_of(const io::Json& row) {
    return row.require_integer("id", "row");
}

/// Rows that ask `text` and their number.
void write_prompts(const std::string& path, const std::string& text, int count) {
    std::ofstream prompts(path);
    for (int i = 0; i < count; ++i) {
        prompts << R"({"prompt": ")" << text << i << "\"}\n";
    }
}

}  // namespace

TEST_SUITE("train.generate") {
    TEST_CASE("generate: answers what is missing, in order, and keeps all else") {
        const TemporaryFolder folder;
        std::ofstream(folder.path("rows.jsonl")) << kRows;
        const std::string output = folder.path("out.jsonl");
        REQUIRE(run(tiny(folder.path("rows.jsonl"), output)) == 0);
        const std::vector<io::Json> rows = rows_of(output);
        REQUIRE(rows.size() == 7);
        for (std::size_t i = 0; i < rows.size(); ++i) {
            CHECK(id_of(rows[i]) == static_cast<std::int64_t>(i));
        }
        CHECK(rows[0].find("level")->as_string() == "easy");
        CHECK(rows[1].dump() == R"({"id": 1, "messages": [{"role": "user", "content": "Say hi."}, )"
                                R"({"role": "assistant", "content": "hi"}]})");
        CHECK(rows[3].dump() == R"({"id": 3, "text": "plain text"})");
        for (const std::size_t i : std::vector<std::size_t>{0, 2, 4, 5, 6}) {
            CAPTURE(i);
            const io::Json* messages = rows[i].find("messages");
            REQUIRE(messages != nullptr);
            CHECK(messages->items().back().find("role")->as_string() == "assistant");
            CHECK(rows[i].find("finish_reason") != nullptr);
            CHECK(rows[i].find("thinking") != nullptr);  // the format can do both
            CHECK(rows[i].find("response") == (i == 6 ? rows[i].find("response") : nullptr));
        }
        CHECK(!fs::exists(ResponseJournal::folder_of(output)));
        // What comes out can go in: there is nothing left to answer.
        const auto nothing = error_of([&] { run(tiny(output, folder.path("again.jsonl"))); });
        REQUIRE(nothing);
        CHECK(nothing->kind() == ErrorKind::Data);
        CHECK(nothing->parts().hint.find("--all") != std::string::npos);
    }

    TEST_CASE("generate: the answers depend neither on devices nor on batches, but on the seed") {
        const TemporaryFolder folder;
        std::ofstream(folder.path("rows.jsonl")) << kRows;
        GenerateRequest request = tiny(folder.path("rows.jsonl"), folder.path("a.jsonl"));
        REQUIRE(run(request) == 0);
        request.settings.run.output = folder.path("b.jsonl");
        request.settings.run.gpus = "cpu:3";
        request.settings.generate.batch = 1;
        REQUIRE(run(request) == 0);
        CHECK(file_bytes(folder.path("a.jsonl")) == file_bytes(folder.path("b.jsonl")));
        request.settings.run.output = folder.path("c.jsonl");
        request.settings.run.seed = 1;
        REQUIRE(run(request) == 0);
        CHECK(file_bytes(folder.path("a.jsonl")) != file_bytes(folder.path("c.jsonl")));
    }

    TEST_CASE("generate: several samples of a prompt differ, and stand together") {
        const TemporaryFolder folder;
        std::ofstream(folder.path("rows.jsonl")) << kRows;
        GenerateRequest request = tiny(folder.path("rows.jsonl"), folder.path("a.jsonl"));
        request.settings.generate.samples = 3;
        REQUIRE(run(request) == 0);
        const std::vector<io::Json> rows = rows_of(folder.path("a.jsonl"));
        REQUIRE(rows.size() == 5 * 3 + 2);
        std::set<std::string> answers;
        for (std::size_t i = 0; i < 3; ++i) {
            CHECK(id_of(rows[i]) == 0);
            CHECK(rows[i].require_integer("sample", "row") == static_cast<std::int64_t>(i));
            answers.insert(rows[i].find("messages")->dump());
        }
        CHECK(answers.size() == 3);
        CHECK(id_of(rows[3]) == 1);
        CHECK(rows[3].find("sample") == nullptr);
    }

    TEST_CASE("generate: thinking is a column of the rows, half and half by default") {
        const TemporaryFolder folder;
        write_prompts(folder.path("rows.jsonl"), "n", 60);
        for (const char* mode : {"mixed", "on", "off"}) {
            CAPTURE(mode);
            GenerateRequest request =
                tiny(folder.path("rows.jsonl"), folder.path(std::string(mode) + ".jsonl"));
            request.settings.generate.thinking = mode;
            request.settings.generate.max_new_tokens = 1;
            request.settings.generate.batch = 16;
            REQUIRE(run(request) == 0);
            int thinking = 0;
            for (const io::Json& row : rows_of(request.settings.run.output)) {
                REQUIRE(row.find("thinking") != nullptr);
                thinking += row.find("thinking")->as_bool() ? 1 : 0;
            }
            CHECK(thinking >= (std::string(mode) == "on"    ? 60
                               : mode == std::string("off") ? 0
                                                            : 18));
            CHECK(thinking <= (std::string(mode) == "on"    ? 60
                               : mode == std::string("off") ? 0
                                                            : 42));
        }
    }

    TEST_CASE("generate: answers that do not come back as their tokens are counted") {
        const TemporaryFolder folder;
        write_prompts(folder.path("rows.jsonl"), "n", 40);
        GenerateRequest request = tiny(folder.path("rows.jsonl"), folder.path("a.jsonl"));
        request.settings.generate.batch = 16;
        const Lines lines;
        REQUIRE(run(request) == 0);
        // A random model writes bytes that are no characters, if only in the middle of its answer.
        std::int64_t broken = 0;
        for (const io::Json& row : rows_of(request.settings.run.output)) {
            broken += row.dump().find("\xef\xbf\xbd") != std::string::npos ? 1 : 0;
        }
        REQUIRE(broken > 0);
        const std::size_t inexact = lines.text.find(" do not come back");
        REQUIRE(inexact != std::string::npos);
        const std::size_t begin = lines.text.rfind('\n', inexact) + 1;
        CHECK(std::stoll(lines.text.substr(begin)) >= broken);
    }

    TEST_CASE("generate: --all writes the answers anew that rows have") {
        const TemporaryFolder folder;
        std::ofstream(folder.path("rows.jsonl")) << kRows;
        GenerateRequest request = tiny(folder.path("rows.jsonl"), folder.path("a.jsonl"));
        request.all = true;
        REQUIRE(run(request) == 0);
        const std::vector<io::Json> rows = rows_of(folder.path("a.jsonl"));
        REQUIRE(rows.size() == 7);
        CHECK(rows[1].find("messages")->items().size() == 2);
        CHECK(rows[1].find("messages")->items()[1].find("content")->as_string() != "hi");
        CHECK(rows[1].find("finish_reason") != nullptr);
    }

    TEST_CASE("generate: stops when told to, and goes on to the same bytes") {
        const TemporaryFolder folder;
        write_prompts(folder.path("rows.jsonl"), "number ", 120);
        GenerateRequest request = tiny(folder.path("rows.jsonl"), folder.path("whole.jsonl"));
        request.settings.generate.max_new_tokens = 32;
        REQUIRE(run(request) == 0);
        request.settings.run.output = folder.path("parts.jsonl");
        for (int start = 0; start < 4; ++start) {
            CAPTURE(start);
            StopSignals signals;
            signals.stop_signal = start < 3 ? SIGINT : 0;  // seen at the first look, after 0.2 s
            const Lines lines;
            const int code = generate(request, signals);
            CHECK(code == (start < 3 ? 130 : 0));
            CHECK(fs::exists(request.settings.run.output) == (start == 3));
            CHECK((lines.text.find("dflash generate --again") != std::string::npos) == (start < 3));
        }
        CHECK(file_bytes(folder.path("whole.jsonl")) == file_bytes(folder.path("parts.jsonl")));
    }

    TEST_CASE("generate: answers that repeat themselves are dropped and counted") {
        const TemporaryFolder folder;
        std::ofstream(folder.path("rows.jsonl")) << kRows;
        GenerateRequest request = tiny(folder.path("rows.jsonl"), folder.path("all.jsonl"));
        request.settings.generate.max_new_tokens = 100;
        request.settings.generate.temperature = 0;  // a random model runs into loops
        REQUIRE(run(request) == 0);
        request.settings.run.output = folder.path("few.jsonl");
        request.settings.generate.max_repeated = 0.3;
        Lines lines;
        REQUIRE(run(request) == 0);
        const std::size_t left = rows_of(folder.path("few.jsonl")).size();
        CHECK(left < 7);
        CHECK(left >= 2);
        CHECK(lines.text.find(std::to_string(7 - left) + " answers were dropped: repeated") !=
              std::string::npos);
    }

    TEST_CASE("generate: bad input is an error before anything is loaded, or counted") {
        const TemporaryFolder folder;
        const std::string rows = folder.path("rows.jsonl");
        std::ofstream(rows) << kRows << "{\"prompt\": \"cut\n{\"what\": 1}\n";
        GenerateRequest request = tiny(rows, folder.path("a.jsonl"));
        const auto bad = error_of([&] { run(request); });
        REQUIRE(bad);
        CHECK(bad->kind() == ErrorKind::Data);
        CHECK(bad->parts().where.find("rows.jsonl:8") != std::string::npos);
        CHECK(!fs::exists(ResponseJournal::folder_of(request.settings.run.output)));

        request.settings.data.max_bad_fraction = 1;
        request.settings.generate.max_prompt_tokens = 20;
        Lines lines;
        error_of([&] { run(request); });
        CHECK(lines.text.find("prompt_too_long") != std::string::npos);

        request = tiny(rows, "");
        CHECK(error_of([&] { run(request); })->kind() == ErrorKind::Config);
        request = tiny(rows, folder.path("a.jsonl"));
        request.settings.run.data = "";
        CHECK(error_of([&] { run(request); })->kind() == ErrorKind::Config);
        request = tiny(rows + ":2", folder.path("a.jsonl"));
        CHECK(error_of([&] { run(request); })->kind() == ErrorKind::Config);
        request = tiny(folder.path("none.jsonl"), folder.path("a.jsonl"));
        CHECK(error_of([&] { run(request); })->kind() == ErrorKind::Config);
        // The output is looked at first.
        request = tiny(folder.path("none.jsonl"), rows);
        CHECK(error_of([&] { run(request); })->parts().what == "the output is there already");
        request = tiny(folder.path("none.jsonl"), rows + "/a.jsonl");
        CHECK(error_of([&] { run(request); })->kind() == ErrorKind::Storage);
        request = tiny(rows, folder.path("a.jsonl"));
        request.settings.data.chat_format = "smollm2";
        request.settings.generate.thinking = "on";
        CHECK(error_of([&] { run(request); })->kind() == ErrorKind::Config);
    }
}

}  // namespace dflash::train
