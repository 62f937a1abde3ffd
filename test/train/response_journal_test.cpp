// SPDX-License-Identifier: Apache-2.0
#include "../target/model_folder.hpp"
#include "tiny_run.hpp"

#include <dflash/core/error.hpp>
#include <dflash/io/json.hpp>
#include <dflash/train/response_journal.hpp>

#include <doctest/doctest.h>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace dflash::train {
namespace {

namespace fs = std::filesystem;
using target::testing::error_of;

const ResponseIdentity kIdentity = {{"target", "T1"}, {"seed", "3"}};

std::string journal_file(const std::string& output) {
    return ResponseJournal::folder_of(output) + "/answers.jsonl";
}

// All tasks in their order, with a line of the input behind the first.
void publish(ResponseJournal& journal, std::int64_t num_tasks) {
    std::int64_t next = 0;
    bool own_line = false;
    journal.publish([&](ResponseJournal::Piece& piece) {
        if (next == 1 && !own_line) {
            own_line = true;
            piece.line = R"({"kept": "as it is"})";
            return true;
        }
        if (next == num_tasks) {
            return false;
        }
        piece.task = next++;
        return true;
    });
}

}  // namespace

TEST_SUITE("train.response_journal") {
    TEST_CASE("journal: the output has the rows in their order, and the journal goes") {
        const TemporaryFolder folder;
        const std::string output = folder.path("answers.jsonl");
        {
            ResponseJournal journal(output, kIdentity, 4);
            CHECK(journal.resumed() == 0);
            journal.add({.task = 2, .row = R"({"x": "c \"row\": ]"})", .dropped = {}, .tokens = 5});
            journal.add({.task = 0,
                         .row = R"({"x": "a"})",
                         .dropped = {},
                         .tokens = 7,
                         .cut = true,
                         .inexact = true});
            journal.add({.task = 3, .row = {}, .dropped = "repeated", .tokens = 9});
            journal.add({.task = 1, .row = R"({"row": {"row": 1}})", .dropped = {}, .tokens = 1});
            CHECK(journal.num_done() == 4);
            CHECK(!fs::exists(output));
            publish(journal, 4);
        }
        CHECK(file_bytes(output) ==
              "{\"x\": \"a\"}\n{\"kept\": \"as it is\"}\n{\"row\": {\"row\": 1}}\n"
              "{\"x\": \"c \\\"row\\\": ]\"}\n");
        CHECK(!fs::exists(ResponseJournal::folder_of(output)));
    }

    TEST_CASE("journal: goes on with what it holds, wherever the last line was cut") {
        const TemporaryFolder folder;
        const std::string output = folder.path("answers.jsonl");
        std::string whole;
        {
            ResponseJournal journal(output, kIdentity, 3);
            journal.add({.task = 1,
                         .row = R"({"x": "b"})",
                         .dropped = {},
                         .tokens = 4,
                         .cut = true,
                         .inexact = true});
            journal.add({.task = 2, .row = {}, .dropped = "repeated", .tokens = 2});
            whole = file_bytes(journal_file(output));
        }
        const std::size_t header = whole.find('\n') + 1;
        const std::size_t first = whole.find('\n', header) + 1;
        for (std::size_t size = 0; size <= whole.size(); ++size) {
            CAPTURE(size);
            std::ofstream(journal_file(output), std::ios::binary | std::ios::trunc)
                << whole.substr(0, size);
            ResponseJournal journal(output, kIdentity, 3);
            CHECK(journal.done(1) == (size >= first));
            CHECK(journal.done(2) == (size == whole.size()));
            CHECK(journal.resumed() == (size >= first ? 1 : 0) + (size == whole.size() ? 1 : 0));
            CHECK(journal.sums().answered == (size >= first ? 1 : 0));
            CHECK(journal.sums().cut == (size >= first ? 1 : 0));
            CHECK(journal.sums().inexact == (size >= first ? 1 : 0));
            CHECK(journal.sums().dropped.size() == (size == whole.size() ? 1 : 0));
            // What is added goes behind whole lines.
            journal.add({.task = 0, .row = R"({"x": "a"})", .dropped = {}, .tokens = 1});
            const std::string now = file_bytes(journal_file(output));
            CHECK(now.starts_with(whole.substr(0,
                                               size < header         ? header
                                               : size < first        ? header
                                               : size < whole.size() ? first
                                                                     : whole.size())));
            CHECK(now.ends_with("{\"x\": \"a\"}}\n"));
        }
    }

    TEST_CASE("journal: refuses answers of other settings, naming what differs") {
        const TemporaryFolder folder;
        const std::string output = folder.path("answers.jsonl");
        { ResponseJournal journal(output, kIdentity, 3); }
        const auto error = error_of([&] {
            ResponseJournal(output, {{"target", "T1"}, {"seed", "4"}}, 3);
        });
        REQUIRE(error);
        CHECK(error->kind() == ErrorKind::Config);
        CHECK(error->parts().what.find("seed 3; now it is 4") != std::string::npos);
        CHECK(error->parts().hint.find("rm -r") != std::string::npos);
    }

    TEST_CASE("journal: one process at a time, and never over a file that is there") {
        const TemporaryFolder folder;
        const std::string output = folder.path("answers.jsonl");
        {
            const ResponseJournal journal(output, kIdentity, 3);
            const auto in_use = error_of([&] { ResponseJournal(output, kIdentity, 3); });
            REQUIRE(in_use);
            CHECK(in_use->kind() == ErrorKind::Config);
        }
        std::ofstream(output) << "mine\n";
        const auto there = error_of([&] { ResponseJournal(output, kIdentity, 3); });
        REQUIRE(there);
        CHECK(there->kind() == ErrorKind::Config);
        CHECK(file_bytes(output) == "mine\n");
    }

    TEST_CASE("journal: damage is an error with its line") {
        const TemporaryFolder folder;
        const std::string output = folder.path("answers.jsonl");
        {
            ResponseJournal journal(output, kIdentity, 3);
            journal.add({.task = 1, .row = R"({"x": "b"})", .dropped = {}, .tokens = 4});
        }
        const std::string whole = file_bytes(journal_file(output));
        const std::string line = whole.substr(whole.find('\n') + 1);
        for (const std::string& damage :
             {std::string("rubbish\n"), line, std::string(R"({"task": 3, "row": {}})") + "\n"}) {
            CAPTURE(damage);
            std::ofstream(journal_file(output), std::ios::binary | std::ios::trunc)
                << whole << damage;
            const auto error = error_of([&] { ResponseJournal(output, kIdentity, 3); });
            REQUIRE(error);
            CHECK(error->kind() == ErrorKind::Data);
            CHECK(std::string(error->what()).find("answers.jsonl:3") != std::string::npos);
        }
    }
}

}  // namespace dflash::train
