// SPDX-License-Identifier: Apache-2.0
#include "byte_tokenizer.hpp"
#include "temporary_files.hpp"

#include <dflash/core/error.hpp>
#include <dflash/data/data_history.hpp>
#include <dflash/data/dataset.hpp>

#include <cstdlib>
#include <doctest/doctest.h>
#include <fmt/format.h>

namespace dflash::data {
namespace {

using testing::TemporaryFiles;

Dataset open(const std::vector<std::string>& files) {
    static const auto tokenizer = std::make_shared<const Tokenizer>(testing::byte_tokenizer());
    return Dataset::open({files.begin(), files.end()},
                         tokenizer,
                         make_chat_format("smollm2"),
                         {.max_bad_fraction = 0.5});
}

std::string line(int n) {
    return fmt::format(R"({{"prompt": "question {0}", "response": "answer {0}"}})", n);
}

// Lines [first, end), each with its line end.
std::string lines(int first, int end) {
    std::string text;
    for (int n = first; n < end; ++n) {
        text += line(n) + "\n";
    }
    return text;
}

}  // namespace

TEST_SUITE("data.data_history") {
    TEST_CASE("a history reads back from its text") {
        DataHistory history(
            {.first_epoch = 0, .num_rows = 902, .files = {{12345, 0xfedcba9876543210}}});
        history.extend({.first_epoch = 3,
                        .num_rows = 1100,
                        .files = {{15000, 1}, {std::int64_t{1} << 40, 0}}});
        const std::string text = history.to_text();
        CAPTURE(text);
        CHECK(text.find('\n') == std::string::npos);
        CHECK(DataHistory::parse(text) == history);
    }

    TEST_CASE("what is no history is refused") {
        for (const std::string text : {
                 "",
                 "[]",
                 "{}",
                 "0123456789abcdef",
                 R"([{"first_epoch": 0, "rows": 5, "files": []}])",
                 R"([{"first_epoch": 0, "rows": -5, "files": [{"bytes": 1, "hash": "0"}]}])",
                 R"([{"first_epoch": 0, "rows": 5, "files": [{"bytes": 1, "hash": "xyz"}]}])",
                 R"([{"first_epoch": 0, "rows": 5, "files": [{"bytes": 1}]}])",
                 R"([{"first_epoch": 0, "rows": 5, "files": [{"bytes": 1, "hash": "0"}]},
                     {"first_epoch": 1, "rows": 4, "files": [{"bytes": 1, "hash": "0"}]}])",
             }) {
            CAPTURE(text);
            CHECK_THROWS_AS(DataHistory::parse(text), Error);
        }
    }

    TEST_CASE("files are compared with what they held before") {
        struct Case {
            const char* what;
            std::vector<std::string> before;
            std::vector<std::string> now;
            DataChange change;
            std::int64_t new_rows;
            std::string difference;
        };

        const std::string open_end = lines(0, 3) + line(3);
        for (const Case& c : std::vector<Case>{
                 {"nothing", {lines(0, 4)}, {lines(0, 4)}, DataChange::None, 0, ""},
                 {"rows at the end",
                  {lines(0, 4)},
                  {lines(0, 9)},
                  DataChange::Grown,
                  5,
                  "0.jsonl has"},
                 {"a further file",
                  {lines(0, 4)},
                  {lines(0, 4), lines(4, 6)},
                  DataChange::Grown,
                  2,
                  "1.jsonl is new"},
                 {"both",
                  {lines(0, 4)},
                  {lines(0, 5), lines(5, 7)},
                  DataChange::Grown,
                  3,
                  "1.jsonl is new"},
                 {"the last of two files",
                  {lines(0, 4), lines(4, 6)},
                  {lines(0, 4), lines(4, 9)},
                  DataChange::Grown,
                  3,
                  "1.jsonl has"},
                 {"the first of two files",
                  {lines(0, 4), lines(5, 6)},
                  {lines(0, 5), lines(5, 6)},
                  DataChange::Other,
                  0,
                  "only the last file may grow"},
                 {"a byte",
                  {lines(0, 4)},
                  {lines(0, 3) + lines(7, 9)},
                  DataChange::Other,
                  0,
                  "the first"},
                 {"less", {lines(0, 4)}, {lines(0, 3)}, DataChange::Other, 0, "before"},
                 {"a file less",
                  {lines(0, 4), lines(4, 6)},
                  {lines(0, 6)},
                  DataChange::Other,
                  0,
                  "1 data files, 2 before"},
                 {"another order",
                  {lines(0, 4), lines(4, 9)},
                  {lines(4, 9), lines(0, 4)},
                  DataChange::Other,
                  0,
                  "0.jsonl"},
                 {"behind a last row without line end",
                  {open_end},
                  {open_end + "\n" + lines(4, 6)},
                  DataChange::Grown,
                  2,
                  "0.jsonl has"},
                 {"the same with blanks and CR",
                  {open_end},
                  {open_end + "  \r\n" + lines(4, 6)},
                  DataChange::Grown,
                  2,
                  "0.jsonl has"},
                 {"a last row that becomes another one",
                  {open_end},
                  {open_end + " {}\n" + lines(4, 6)},
                  DataChange::Other,
                  0,
                  "continue its former last row"},
                 {"a row that was cut is completed: it is new",
                  {lines(0, 3) + line(3).substr(0, 20)},
                  {lines(0, 6)},
                  DataChange::Grown,
                  3,
                  "0.jsonl has"},
                 {"blanks become a row",
                  {lines(0, 3) + "  "},
                  {lines(0, 3) + "  " + lines(3, 5)},
                  DataChange::Grown,
                  2,
                  "0.jsonl has"},
                 {"only a line end",
                  {open_end},
                  {open_end + "\n"},
                  DataChange::Grown,
                  0,
                  "0.jsonl has"},
             }) {
            CAPTURE(c.what);
            const TemporaryFiles files;
            const auto write = [&](const std::vector<std::string>& texts) {
                std::vector<std::string> paths;
                for (std::size_t i = 0; i < texts.size(); ++i) {
                    paths.push_back(files.write(fmt::format("{}.jsonl", i), texts[i]));
                }
                return paths;
            };
            DataState before;
            std::vector<SampleId> usable_before;
            {
                const Dataset first = open(write(c.before));
                before = first.state();
                usable_before = first.usable();
            }
            const Dataset now = open(write(c.now));
            const DataComparison comparison = now.compare_with(before);
            CHECK(comparison.change == c.change);
            CHECK(comparison.new_rows == c.new_rows);
            CAPTURE(comparison.difference);
            CHECK(comparison.difference.find(c.difference) != std::string::npos);
            CHECK(comparison.difference.empty() == (c.change == DataChange::None));
            if (c.change == DataChange::Grown) {
                // The ids of before are the first ones of now.
                REQUIRE(now.usable().size() >= usable_before.size());
                for (std::size_t i = 0; i < now.usable().size(); ++i) {
                    CHECK((now.usable()[i] < before.num_rows) == (i < usable_before.size()));
                }
            }
        }
    }

    TEST_CASE("packed files are compared by what they hold unpacked") {
        const TemporaryFiles files;
        const auto pack = [&](const std::string& text) {
            const std::string path = files.write("rows.jsonl", text);
            REQUIRE(std::system(fmt::format("gzip -f '{}'", path).c_str()) == 0);
            return path + ".gz";
        };
        const DataState before = open({pack(lines(0, 2))}).state();
        CHECK(before == open({files.write("plain.jsonl", lines(0, 2))}).state());
        // Its packed bytes differ from the first one on.
        const DataComparison comparison = open({pack(lines(0, 5))}).compare_with(before);
        CHECK(comparison.change == DataChange::Grown);
        CHECK(comparison.new_rows == 3);
    }
}

}  // namespace dflash::data
