// SPDX-License-Identifier: Apache-2.0
#include "golden_lines.hpp"
#include "row_index.hpp"
#include "temporary_files.hpp"

#include <dflash/core/error.hpp>
#include <dflash/core/random.hpp>
#include <dflash/data/row.hpp>
#include <dflash/data/row_file.hpp>

#include <chrono>
#include <cstdlib>
#include <doctest/doctest.h>
#include <filesystem>
#include <fmt/format.h>

namespace dflash::data {

using testing::TemporaryFiles;

namespace {

std::vector<std::string> rows_of(const RowFile& file) {
    std::vector<std::string> rows;
    for (std::int64_t row = 0; row < file.size(); ++row) {
        rows.emplace_back(file.text(row));
    }
    return rows;
}

std::string places_of(const RowFile& file) {
    std::string places;
    for (std::int64_t row = 0; row < file.size(); ++row) {
        places += fmt::format("{}:{} ", file.place(row).line, file.place(row).column);
    }
    return places;
}

// As if the file had been written long ago.
void make_old(const std::string& path, int hours = 1) {
    std::filesystem::last_write_time(
        path, std::filesystem::file_time_type::clock::now() - std::chrono::hours(hours));
}

std::string many_lines(int count) {
    std::string text;
    for (int i = 0; i < count; ++i) {
        text += fmt::format(R"({{"prompt": "question {0}", "response": "answer {0}"}})", i) + "\n";
    }
    return text;
}

}  // namespace

TEST_SUITE("data.row_file") {
    TEST_CASE("row file: every file of the reference data has the rows it should have") {
        int files_with_rows = 0;
        for (const io::Json& golden :
             testing::read_cases("test/golden/rows/files.expected.jsonl")) {
            const std::string& name = golden.find("file")->as_string();
            CAPTURE(name);
            std::int64_t usable = 0;
            std::string problem;
            try {
                const RowFile file("test/golden/rows/files/" + name);
                for (std::int64_t row = 0; row < file.size(); ++row) {
                    const RowResult result = read_row(file.text(row), file.ends_file(row));
                    usable += result.row ? 1 : 0;
                    problem = result.fault ? result.fault->message : problem;
                }
            } catch (const Error& error) {
                CHECK(error.kind() == ErrorKind::Data);
                problem = error.what();
            }
            CAPTURE(problem);
            // The reference says of a packed file that reading it is right as well.
            const bool is_packed = name == "gzip.jsonl";
            CHECK(usable == (is_packed ? 1 : *golden.find("rows")->to_integer()));
            CHECK(problem.empty() == (is_packed || golden.find("problem")->is_null()));
            files_with_rows += usable > 0 ? 1 : 0;
        }
        CHECK(files_with_rows == 5);
    }

    TEST_CASE("row file: rows stand one a line, in an array, or over many lines") {
        struct Case {
            std::string bytes;
            RowLayout layout;
            std::vector<std::string> rows;
            std::string places;
        };

        for (const Case& c : std::vector<Case>{
                 {"{\"a\":1}\n\n \t\r\n {\"b\":2} \r\n",
                  RowLayout::Lines,
                  {"{\"a\":1}", "{\"b\":2}"},
                  "1:1 4:1 "},
                 {"\xef\xbb\xbf{\"a\":1}\n\xef\xbb\xbf{\"b\":2}",
                  RowLayout::Lines,
                  {"{\"a\":1}", "{\"b\":2}"},
                  "1:1 2:1 "},
                 // Lists of messages, one a line.
                 {"[{\"role\":\"user\"}]\n[{\"role\":\"user\"}]\n",
                  RowLayout::Lines,
                  {"[{\"role\":\"user\"}]", "[{\"role\":\"user\"}]"},
                  "1:1 2:1 "},
                 {"[{\"role\":\"user\"}]\n", RowLayout::Lines, {"[{\"role\":\"user\"}]"}, "1:1 "},
                 {"[{\"a\":1}, {\"b\":2}]\n",
                  RowLayout::Array,
                  {"{\"a\":1}", "{\"b\":2}"},
                  "1:2 1:11 "},
                 {"[{\"\xc3\xa9\":1},7,\"x\"]",
                  RowLayout::Array,
                  {"{\"\xc3\xa9\":1}", "7", "\"x\""},
                  "1:2 1:10 1:12 "},
                 {"[[{\"role\":\"user\"}],[{\"role\":\"user\"}]]",
                  RowLayout::Array,
                  {"[{\"role\":\"user\"}]", "[{\"role\":\"user\"}]"},
                  "1:2 1:20 "},
                 {"\n[\n {\n  \"a\": \"],[\\\"\"\n },\n {}\n]\n\n",
                  RowLayout::Array,
                  {"{\n  \"a\": \"],[\\\"\"\n }", "{}"},
                  "3:2 6:2 "},
                 {"{\n  \"a\": 1\n}\n{\n  \"b\": 2\n}\n",
                  RowLayout::Values,
                  {"{\n  \"a\": 1\n}", "{\n  \"b\": 2\n}"},
                  "1:1 4:1 "},
                 // Damaged lines stay lines.
                 {"{\"a\": 1\n{\"b\": 2}\n",
                  RowLayout::Lines,
                  {"{\"a\": 1", "{\"b\": 2}"},
                  "1:1 2:1 "},
                 {"{\"a\": \"x\n{\"b\": 2}\n",
                  RowLayout::Lines,
                  {"{\"a\": \"x", "{\"b\": 2}"},
                  "1:1 2:1 "},
                 {"[{\"role\": 1\n[{\"role\": 2}]\n",
                  RowLayout::Lines,
                  {"[{\"role\": 1", "[{\"role\": 2}]"},
                  "1:1 2:1 "},
                 {"{\"a\": 1}}\n{\"b\": 2}\n",
                  RowLayout::Lines,
                  {"{\"a\": 1}}", "{\"b\": 2}"},
                  "1:1 2:1 "},
                 // A cut array: the last row is what is left of it.
                 {"[\n{\"a\":1},\n{\"b\":", RowLayout::Array, {"{\"a\":1}", "{\"b\":"}, "2:1 3:1 "},
             }) {
            CAPTURE(c.bytes);
            const TemporaryFiles files;
            const RowFile file(files.write("rows.json", c.bytes));
            CHECK(file.layout() == c.layout);
            CHECK(rows_of(file) == c.rows);
            CHECK(places_of(file) == c.places);
            CHECK(file.bytes() == c.bytes);
        }
    }

    TEST_CASE("row file: only a row that nothing follows ends the file") {
        struct Case {
            std::string_view bytes;
            bool ends_file;
        };

        for (const Case& c : std::vector<Case>{{"{}\n{}\n", false},
                                               {"{}\n{}", true},
                                               {"{}\n{}\n\n", false},
                                               {"[\n{},\n{}", false},
                                               {"[\n{},\n{\"a\"", true},
                                               {"[\n{},\n{}]", false}}) {
            CAPTURE(c.bytes);
            const TemporaryFiles files;
            const RowFile file(files.write("rows.json", c.bytes));
            CHECK_FALSE(file.ends_file(0));
            CHECK(file.ends_file(file.size() - 1) == c.ends_file);
        }
    }

    TEST_CASE("row file: what holds no rows is refused, with what to do") {
        using namespace std::string_view_literals;

        struct Case {
            std::string_view bytes;
            std::string_view mention;
        };

        for (const Case& c : std::vector<Case>{
                 {"", "the file is empty"},
                 {"\n \n\t\r\n", "only blank lines"},
                 {"[\n\n]\n", "an empty JSON array"},
                 {"PAR1\x15\x04", "tools/data_to_jsonl"},
                 {"\xff\xfe{\0\"\0"sv, "iconv"},
                 {"{\0\"\0a\0"sv, "UTF-16"},
                 {"{\"a\":1}\r{\"b\":2}\r", "tr '\\r' '\\n'"},
                 {"[\n{\"a\":1}\n{\"b\":2}\n]\n", "expected a comma"},
                 {"[\n{\"a\":1},\n{\"b\":2}}\n]\n", "expected a comma or ]"},
                 {"[\n{\"a\":1}\n] 7\n", "nothing after the end of the array"},
                 {"{\n\"a\":1\n}\n{\n\"b\" \"c\"\n}\n", ":5"},
             }) {
            CAPTURE(c.bytes);
            const TemporaryFiles files;
            const std::string path = files.write("rows.json", c.bytes);
            try {
                const RowFile file(path);
                FAIL_CHECK("opened");
            } catch (const Error& error) {
                CHECK(error.kind() == ErrorKind::Data);
                CAPTURE(error.what());
                CHECK(std::string_view(error.what()).find(c.mention) != std::string_view::npos);
                CHECK(std::string_view(error.what()).find(path) != std::string_view::npos);
            }
        }
        CHECK_THROWS_WITH_AS(
            RowFile("/no/such/file.jsonl"), doctest::Contains("file.jsonl"), Error);
    }

    TEST_CASE("row file: packed files are the same file") {
        const std::string text = many_lines(300);
        for (const char* packer : {"gzip -q", "zstd -q --rm"}) {
            CAPTURE(packer);
            const TemporaryFiles files;
            const std::string path = files.write("rows.jsonl", text);
            const RowFile plain(path);
            const FileContent content = plain.content();
            REQUIRE(std::system(fmt::format("{} '{}'", packer, path).c_str()) == 0);
            const RowFile packed(path + (packer[0] == 'g' ? ".gz" : ".zst"));
            CHECK(packed.size() == 300);
            CHECK(packed.bytes() == text);
            CHECK(packed.content() == content);
        }
    }

    TEST_CASE("row file: the content is known by the hash that earlier versions wrote") {
        std::string text;
        while (text.size() < 3'000'000) {
            text += many_lines(1000);
        }
        const TemporaryFiles files;
        const RowFile file(files.write("rows.jsonl", text));
        CHECK(file.content().bytes == std::ssize(text));
        CHECK(file.content().hash == stable_hash(text.data(), text.size()));
    }

    TEST_CASE("row file: a line of 50 MB is a row like any other") {
        // As make_big_row.py of the reference data writes it.
        std::string message;
        while (message.size() < 50'000'000) {
            message += "abcdefg ";
        }
        message.pop_back();
        const TemporaryFiles files;
        const RowFile file(
            files.write("rows.jsonl",
                        R"({"prompt": "a", "response": "b"})"
                        "\n"
                        R"({"messages": [{"role": "user", "content": ")" +
                            message + R"("}, {"role": "assistant", "content": "Long."}]})" + "\n"));
        REQUIRE(file.size() == 2);
        const RowResult result = read_row(file.text(1));
        REQUIRE(result.row);
        CHECK(std::get<Conversation>(result.row->content).messages[0].content == message);
    }

    TEST_CASE("row file: places are kept, and used while size and time of the file are the same") {
        const TemporaryFiles files;
        const RowFileOptions options{.cache_folder = files.folder() + "/index",
                                     .index_from_bytes = 0};
        const std::string path = files.write("rows.jsonl", "\n" + many_lines(100) + "\n\n{}\n");
        make_old(path);
        const RowFile first(path, options);
        CHECK_FALSE(first.used_index());
        const RowFile second(path, options);
        CHECK(second.used_index());
        CHECK(rows_of(second) == rows_of(first));
        CHECK(places_of(second) == places_of(first));
        CHECK(second.content() == first.content());
        CHECK(second.num_blank() == 3);

        SUBCASE("not when the size changes") {
            files.write("rows.jsonl", many_lines(99));
            make_old(path);
            const RowFile now(path, options);
            CHECK_FALSE(now.used_index());
            CHECK(now.size() == 99);
        }
        SUBCASE("not when the time changes") {
            make_old(path, 2);
            CHECK_FALSE(RowFile(path, options).used_index());
            CHECK(RowFile(path, options).used_index());
        }
        SUBCASE("not for a small file, and not without a folder") {
            CHECK_FALSE(RowFile(path, {.cache_folder = options.cache_folder}).used_index());
            CHECK_FALSE(RowFile(path, {.index_from_bytes = 0}).used_index());
        }
        SUBCASE("not when the index is damaged, wherever") {
            const std::filesystem::path index =
                std::filesystem::directory_iterator(options.cache_folder)->path();
            const auto size = std::filesystem::file_size(index);
            std::string bytes(size, '\0');
            std::ifstream(index, std::ios::binary)
                .read(bytes.data(), static_cast<std::streamsize>(size));
            const auto use = [&](const std::string& damaged) {
                std::ofstream(index, std::ios::binary) << damaged;
                const RowFile file(path, options);
                CHECK(rows_of(file) == rows_of(first));
                CHECK(places_of(file) == places_of(first));
                return file.used_index();
            };
            CHECK(use(bytes));
            RandomStream random(1, Purpose::Test, 0, 0);
            for (int i = 0; i < 200; ++i) {
                std::string damaged = bytes;
                damaged[random.below(bytes.size())] ^= static_cast<char>(1 << random.below(8));
                CAPTURE(i);
                // The hash of the data, in the middle of the header, is the run's to compare.
                use(damaged);
            }
            CHECK_FALSE(use(bytes.substr(0, bytes.size() - 8)));
            CHECK_FALSE(use(""));
        }
    }

    TEST_CASE("row file: a file that was written a moment ago is not kept: it may change again") {
        const TemporaryFiles files;
        const RowFileOptions options{.cache_folder = files.folder() + "/index",
                                     .index_from_bytes = 0};
        const std::string path = files.write("rows.jsonl", many_lines(3));
        CHECK_FALSE(RowFile(path, options).used_index());
        CHECK_FALSE(RowFile(path, options).used_index());
        // A folder that cannot be written costs the index, not the run.
        make_old(path);
        const std::string file = files.write("no-folder", "x");
        CHECK(RowFile(path, {.cache_folder = file + "/index", .index_from_bytes = 0}).size() == 3);
    }
}

}  // namespace dflash::data
