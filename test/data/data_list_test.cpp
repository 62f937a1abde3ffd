// SPDX-License-Identifier: Apache-2.0
#include "temporary_files.hpp"

#include <dflash/core/error.hpp>
#include <dflash/data/data_list.hpp>

#include <doctest/doctest.h>
#include <filesystem>

namespace dflash::data {

TEST_SUITE("data.data_list") {
    TEST_CASE("data list: paths, patterns and weights") {
        const testing::TemporaryFiles files;
        const std::string b = files.write("b.jsonl", "x");
        const std::string a = files.write("a.jsonl", "x");
        const std::string odd = files.write("c:2", "x");
        const std::string star = files.write("d*.jsonl", "x");
        std::filesystem::create_directory(files.folder() + "/e.jsonl");  // no file: not matched
        using List = std::vector<DataFile>;
        CHECK(parse_data_list("") == List{});
        CHECK(parse_data_list("a,b") == List{{"a"}, {"b"}});
        CHECK(parse_data_list(",a,,") == List{{"a"}});
        CHECK(parse_data_list("a:0.7,b:2,c:3e0") == List{{"a", 0.7}, {"b", 2}, {"c", 3}});
        CHECK(parse_data_list("s3:x") == List{{"s3:x"}});
        CHECK(parse_data_list(files.folder() + "/?.jsonl") == List{{a}, {b}});
        CHECK(parse_data_list(files.folder() + "/[ab].jsonl:0.5") == List{{a, 0.5}, {b, 0.5}});
        CHECK(parse_data_list(odd) == List{{odd}});
        CHECK(parse_data_list(odd + ":0.5") == List{{odd, 0.5}});
        CHECK(parse_data_list(star) == List{{star}});
    }

    TEST_CASE("data list: what cannot be meant is refused") {
        const testing::TemporaryFiles files;
        const std::string a = files.write("a.jsonl", "x");

        struct Case {
            std::string list;
            std::string_view mention;
        };

        for (const Case& c : std::vector<Case>{
                 {files.folder() + "/*.parquet", "no data file matches"},
                 {files.folder(), "a folder"},
                 {a + ":0", "a weight of 0"},
                 {a + ":-1", "a weight of -1"},
                 {a + ":101", "a weight of 101"},
                 {a + ":nan", "a weight of nan"},
                 {a + "," + a, "named twice"},
                 {files.folder() + "/*.jsonl," + files.folder() + "/./a.jsonl", "named twice"},
             }) {
            CAPTURE(c.list);
            try {
                parse_data_list(c.list);
                FAIL_CHECK("accepted");
            } catch (const Error& error) {
                CHECK(error.kind() == ErrorKind::Config);
                CHECK(std::string_view(error.what()).find(c.mention) != std::string_view::npos);
            }
        }
    }
}

}  // namespace dflash::data
