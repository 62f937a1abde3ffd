// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/text.hpp>

#include <cmath>
#include <doctest/doctest.h>
#include <limits>

namespace dflash {
namespace {

TEST_SUITE_BEGIN("core.text");

TEST_CASE("the nearest name is a likely typing error or nothing") {
    const std::vector<std::string> names = {
        "train.lr", "train.epochs", "draft.anchors", "draft.block_size", "data.max_length"};
    const std::pair<const char*, const char*> cases[] = {
        {"train.epoch", "train.epochs"},
        {"train.ephocs", "train.epochs"},
        {"lr", "train.lr"},
        {"anchors", "draft.anchors"},
        {"draft.blocksize", "draft.block_size"},
        {"max_lenght", "data.max_length"},
        {"train.lr ", "train.lr"},
        {"something.else", ""},
        {"x", ""},
        {"zz", ""},
        {"", ""},
    };
    for (const auto& [name, expected] : cases) {
        CAPTURE(name);
        CHECK(nearest_name(name, names).value_or("") == expected);
    }
    CHECK(nearest_name("a", {}) == std::nullopt);
}

TEST_CASE("sizes are short and in binary units") {
    const std::pair<std::int64_t, const char*> cases[] = {
        {0, "0 B"},
        {1023, "1023 B"},
        {1024, "1.0 KiB"},
        {655360, "640.0 KiB"},
        {1048575, "1.0 MiB"},
        {1048576, "1.0 MiB"},
        {1073741823, "1.00 GiB"},
        {1299227607, "1.21 GiB"},
        {-2048, "-2.0 KiB"},
        {std::int64_t{1} << 50, "1048576.00 GiB"},
    };
    for (const auto& [bytes, expected] : cases) {
        CAPTURE(bytes);
        CHECK(format_bytes(bytes) == expected);
    }
}

TEST_CASE("times are in the unit that fits") {
    const std::pair<double, const char*> cases[] = {
        {0, "0 ms"},
        {0.0004, "0 ms"},
        {0.85, "850 ms"},
        {0.9996, "1.0 s"},
        {12.34, "12.3 s"},
        {59.94, "59.9 s"},
        {59.96, "1 min 00 s"},
        {250, "4 min 10 s"},
        {3599.6, "1 h 00 min"},
        {3 * 3600 + 5 * 60, "3 h 05 min"},
        {47 * 3600 + 59 * 60, "47 h 59 min"},
        {48 * 3600, "2 d 0 h"},
        {2 * 86400 + 4 * 3600, "2 d 4 h"},
        {std::numeric_limits<double>::infinity(), "unknown"},
        {std::nan(""), "unknown"},
        {1e300, "unknown"},
    };
    for (const auto& [seconds, expected] : cases) {
        CAPTURE(seconds);
        CHECK(format_seconds(seconds) == expected);
    }
}

TEST_CASE("counts have their thousands marked") {
    const std::pair<std::int64_t, const char*> cases[] = {
        {0, "0"},
        {999, "999"},
        {1000, "1,000"},
        {1234567, "1,234,567"},
        {-999, "-999"},
        {-1000, "-1,000"},
        {-123456, "-123,456"},
        {std::numeric_limits<std::int64_t>::max(), "9,223,372,036,854,775,807"},
    };
    for (const auto& [count, expected] : cases) {
        CAPTURE(count);
        CHECK(format_count(count) == expected);
    }
}

TEST_CASE("a word for a shell is quoted only where it must be") {
    CHECK(shell_word("runs/Qwen3-8B_1.0") == "runs/Qwen3-8B_1.0");
    CHECK(shell_word("my runs/a") == "'my runs/a'");
    CHECK(shell_word("it's $HOME") == "'it'\\''s $HOME'");
    CHECK(shell_word("") == "''");
}

TEST_CASE("foreign text is quoted, made printable and cut between characters") {
    struct Case {
        std::string text;
        std::size_t max;
        const char* expected;
    };

    const Case cases[] = {
        {"", 80, "\"\""},
        {"plain", 80, "\"plain\""},
        {"a\"b\\c", 80, "\"a\\\"b\\\\c\""},
        {"a\nb\x1b[31m\x7f", 80, "\"a\\x0ab\\x1b[31m\\x7f\""},
        {std::string("a\0b", 3), 80, "\"a\\x00b\""},
        {"\xc3\xa9\xe6\x97\xa5\xf0\x9f\x98\x80", 80, "\"\xc3\xa9\xe6\x97\xa5\xf0\x9f\x98\x80\""},
        {"\xc2\x9b\x31m", 80, "\"\\xc2\\x9b1m\""},
        {"\xff\xc3", 80, "\"\\xff\\xc3\""},
        {"\xed\xa0\x80", 80, "\"\\xed\\xa0\\x80\""},
        {"\xc0\xaf\xe0\x80\x80\xf0\x80\x80\x80\xf4\x90\x80\x80",
         80,
         "\"\\xc0\\xaf\\xe0\\x80\\x80\\xf0\\x80\\x80\\x80\\xf4\\x90\\x80\\x80\""},
        {"abcdef", 6, "\"abcdef\""},
        {"abcdefg", 6, "\"abcdef...\""},
        {"ab\xc3\xa9"
         "cd",
         4,
         "\"ab\xc3\xa9...\""},
        {"ab\xc3\xa9"
         "cd",
         3,
         "\"ab...\""},
    };
    for (const Case& c : cases) {
        CAPTURE(c.expected);
        CHECK(quote(c.text, c.max) == c.expected);
    }
}

TEST_CASE("a line for a terminal keeps its text and shows what the terminal would obey") {
    const std::pair<std::string, std::string> cases[] = {
        {"", ""},
        {"plain, \"quoted\" \\ text\tand a tab", "plain, \"quoted\" \\ text\tand a tab"},
        {"\xc3\xa9\xe6\x97\xa5\xf0\x9f\x98\x80", "\xc3\xa9\xe6\x97\xa5\xf0\x9f\x98\x80"},
        {"a\x1b[31mred\x1b[0m", "a\\x1b[31mred\\x1b[0m"},
        {std::string("a\0b\r\n\x7f", 6), "a\\x00b\\x0d\\x0a\\x7f"},
        {"\xc2\x9b\x31m", "\\xc2\\x9b1m"},
        {"\xff\xc3", "\\xff\\xc3"},
    };
    for (const auto& [line, expected] : cases) {
        CAPTURE(expected);
        CHECK(escape_controls(line) == expected);
    }
}

TEST_CASE("a word for a shell is quoted only where it must be") {
    const std::pair<const char*, const char*> cases[] = {
        {"runs/a-b_c.1/latest", "runs/a-b_c.1/latest"},
        {"", "''"},
        {"my run", "'my run'"},
        {"it's", "'it'\\''s'"},
        {"$HOME", "'$HOME'"},
        {"~x", "'~x'"},
        {"a;b", "'a;b'"},
    };
    for (const auto& [word, expected] : cases) {
        CAPTURE(word);
        CHECK(shell_word(word) == expected);
    }
}

TEST_SUITE_END();

}  // namespace
}  // namespace dflash
