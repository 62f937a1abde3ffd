// SPDX-License-Identifier: Apache-2.0
#include "expect_error.hpp"
#include "mutation.hpp"
#include "temp_folder.hpp"

#include <dflash/io/json.hpp>

#include <cmath>
#include <doctest/doctest.h>
#include <limits>
#include <simdjson.h>

namespace dflash::io {
namespace {

using test::expect_error;

std::string nested(int depth) {
    return std::string(static_cast<std::size_t>(depth), '[') +
           std::string(static_cast<std::size_t>(depth), ']');
}

TEST_SUITE_BEGIN("io.json");

TEST_CASE("values are written as they were read") {
    const std::pair<const char*, const char*> cases[] = {
        {"null", "null"},
        {" true\n", "true"},
        {"[false , null]", "[false, null]"},
        {"0", "0"},
        {"-0", "-0"},
        {"1.50", "1.50"},
        {"1E+05", "1E+05"},
        {"12345678901234567890123456789", "12345678901234567890123456789"},
        {"1e999", "1e999"},
        {"{}", "{}"},
        {"[]", "[]"},
        {"{\"b\":1,\"a\":{\"c\":[]}}", "{\"b\": 1, \"a\": {\"c\": []}}"},
        {"{\"a\":1,\"a\":2}", "{\"a\": 1, \"a\": 2}"},
        {"\"a\\/\\u00e9\\n\\\"\\\\\\b\\f\\r\\t\\u0001\"",
         "\"a/\xc3\xa9\\n\\\"\\\\\\b\\f\\r\\t\\u0001\""},
        {"\"\\uD83D\\uDE00\"", "\"\xf0\x9f\x98\x80\""},
        {"\"\\u0000\"", "\"\\u0000\""},
        {"[NaN, Infinity, -Infinity]", "[null, null, null]"},
    };
    for (const auto& [text, expected] : cases) {
        CAPTURE(text);
        CHECK(Json::parse(text, "t").dump() == expected);
    }
}

TEST_CASE("faults name the place, what was found and what is expected") {
    struct Case {
        std::string text;
        JsonFault fault;
        std::size_t offset;
        const char* where;
        const char* what;
    };

    const Case cases[] = {
        {"", JsonFault::Truncated, 0, "t:1:1", "found the end of the text, expected a JSON value"},
        {"  \n ", JsonFault::Truncated, 4, "t:2:2", "found the end of the text"},
        {"[1 2]", JsonFault::Syntax, 3, "t:1:4", "found \"2\", expected \",\" or \"]\""},
        {"[1,]", JsonFault::Syntax, 3, "t:1:4", "found \"]\", expected a JSON value"},
        {"[1,,2]", JsonFault::Syntax, 3, "t:1:4", "found \",\", expected a JSON value"},
        {"[1", JsonFault::Truncated, 2, "t:1:3", "expected \",\" or \"]\""},
        {"{\"a\":1", JsonFault::Truncated, 6, "t:1:7", "expected \",\" or \"}\""},
        {"{\"a\" 1}", JsonFault::Syntax, 5, "t:1:6", "expected \":\""},
        {"{\"a\":}", JsonFault::Syntax, 5, "t:1:6", "found \"}\", expected a JSON value"},
        {"{\n 1:2}", JsonFault::Syntax, 3, "t:2:2", "expected a key in double quotes"},
        {"{\"a\":1,}", JsonFault::Syntax, 7, "t:1:8", "expected a key in double quotes"},
        {"{'a':1}", JsonFault::Syntax, 1, "t:1:2", "found \"'\""},
        {"[1]]", JsonFault::Syntax, 3, "t:1:4", "expected the end of the text after the value"},
        {"{} {}", JsonFault::Syntax, 3, "t:1:4", "expected the end of the text after the value"},
        {"[None]", JsonFault::Syntax, 1, "t:1:2", "found \"None\""},
        {"[True]", JsonFault::Syntax, 1, "t:1:2", "found \"True\""},
        {"[trueish]", JsonFault::Syntax, 1, "t:1:2", "found \"trueish\""},
        {"[01]", JsonFault::Syntax, 2, "t:1:3", "expected the end of a number"},
        {"[1.]", JsonFault::Syntax, 3, "t:1:4", "expected a digit"},
        {"[.5]", JsonFault::Syntax, 1, "t:1:2", "expected a JSON value"},
        {"[+1]", JsonFault::Syntax, 1, "t:1:2", "expected a JSON value"},
        {"[-]", JsonFault::Syntax, 2, "t:1:3", "expected a digit"},
        {"[1e]", JsonFault::Syntax, 3, "t:1:4", "expected a digit"},
        {"[0x10]", JsonFault::Syntax, 2, "t:1:3", "expected the end of a number"},
        {"\"ab", JsonFault::Truncated, 3, "t:1:4", "expected a double quote"},
        {"\"ab\\", JsonFault::Truncated, 4, "t:1:5", "expected an escape"},
        {"\"a\nb\"", JsonFault::Syntax, 2, "t:1:3", "found \"\\x0a\", expected a double quote"},
        {std::string("\"a\0b\"", 5), JsonFault::Syntax, 2, "t:1:3", "found \"\\x00\""},
        {"\"\\x41\"", JsonFault::Syntax, 2, "t:1:3", "expected an escape"},
        {"\"\\u00g0\"", JsonFault::Syntax, 5, "t:1:6", "four hexadecimal digits"},
        {"\"\\u00", JsonFault::Truncated, 5, "t:1:6", "four hexadecimal digits"},
        {"[\"\xc3\xa9\xc3\xa9\" x]", JsonFault::Syntax, 8, "t:1:7", "found \"x\""},
        {"[\"\xff\"]", JsonFault::BadUtf8, 2, "t:1:3", "found byte 0xff"},
        {"[\"\xc3\xa9\xc0\x80\"]", JsonFault::BadUtf8, 4, "t:1:4", "found byte 0xc0"},
        {"[\"\xed\xa0\x80\"]", JsonFault::BadUtf8, 2, "t:1:3", "found byte 0xed"},
        {"[\"\xe2\x82", JsonFault::BadUtf8, 2, "t:1:3", "found byte 0xe2"},
        {"\"\\ud800\"", JsonFault::HalfSurrogate, 1, "t:1:2", "found \\ud800"},
        {"\"\\udc00\"", JsonFault::HalfSurrogate, 1, "t:1:2", "found \\udc00"},
        {"\"\\ud800\\u0041\"", JsonFault::HalfSurrogate, 1, "t:1:2", "found \\ud800"},
        {"\"\\ud800\\ud800\"", JsonFault::HalfSurrogate, 1, "t:1:2", "found \\ud800"},
        {nested(1001), JsonFault::TooDeep, 1000, "t:1:1001", "at most 1000"},
    };
    for (const Case& c : cases) {
        CAPTURE(c.text);
        try {
            Json::parse(c.text, "t");
            FAIL_CHECK("accepted");
        } catch (const JsonError& error) {
            CAPTURE(error.what());
            CHECK(error.kind() == ErrorKind::Data);
            CHECK(error.fault() == c.fault);
            CHECK(error.offset() == c.offset);
            CHECK(error.parts().where == c.where);
            CHECK(error.parts().what.find(c.what) != std::string::npos);
        }
    }
}

TEST_CASE("1000 levels are read, with lists and objects mixed") {
    CHECK(Json::parse(nested(1000), "t").dump() == nested(1000));
    std::string mixed;
    for (int i = 0; i < 500; ++i) {
        mixed += "[{\"k\": ";
    }
    mixed += "1";
    for (int i = 0; i < 500; ++i) {
        mixed += "}]";
    }
    CHECK(Json::parse(mixed, "t").dump() == mixed);
}

TEST_CASE("a one-line text at a place with a line number gets only a column") {
    expect_error(
        ErrorKind::Data, {"(rows.jsonl:7:4)"}, [] { Json::parse("[1 x", "rows.jsonl:7"); });
    expect_error(ErrorKind::Data, {"(a.json:2:1)"}, [] { Json::parse("[1\nx]", "a.json"); });
    expect_error(ErrorKind::Data, {"(a:1:2:1)"}, [] { Json::parse("[1\nx]", "a:1"); });
}

TEST_CASE("numbers give doubles and exact integers") {
    struct Case {
        const char* text;
        double number;
        std::optional<std::int64_t> integer;
    };

    constexpr double kInf = std::numeric_limits<double>::infinity();
    const Case cases[] = {
        {"0", 0, 0},
        {"-0", 0, 0},
        {"9223372036854775807", 9223372036854775807.0, 9223372036854775807},
        {"-9223372036854775808", -9223372036854775808.0, std::numeric_limits<std::int64_t>::min()},
        {"9223372036854775808", 9223372036854775808.0, std::nullopt},
        {"1e5", 1e5, 100000},
        {"2.0", 2, 2},
        {"2.5", 2.5, std::nullopt},
        {"1e300", 1e300, std::nullopt},
        {"1e999", kInf, std::nullopt},
        {"-1e999", -kInf, std::nullopt},
        {"1e-999", 0, 0},
        {"6e-4", 6e-4, std::nullopt},
    };
    for (const Case& c : cases) {
        CAPTURE(c.text);
        const Json value = Json::parse(c.text, "t");
        CHECK(value.to_double() == c.number);
        CHECK(value.to_integer() == c.integer);
    }
}

TEST_CASE("numbers made here read back to the same value") {
    for (const double number : {0.1, 1.0, -2.5e-300, 1e22, 123456789.0, 5e-324}) {
        CAPTURE(number);
        const Json read = Json::parse(Json::number(number).dump(), "t");
        CHECK(read.to_double() == number);
    }
    CHECK(Json::number(1).dump() == "1.0");
    CHECK(Json::integer(-7).dump() == "-7");
    CHECK(Json::number(std::nan("")).is_null());
    CHECK(Json::number(-std::numeric_limits<double>::infinity()).is_null());
}

TEST_CASE("members are found, counted and replaced") {
    Json object = Json::parse(R"({"a": 1, "b": 2, "a": 3})", "t");
    CHECK(object.find("a")->to_integer() == 3);
    CHECK(object.count("a") == 2);
    CHECK(object.count("c") == 0);
    CHECK(object.find("c") == nullptr);
    CHECK(Json::integer(1).find("a") == nullptr);
    object.set("a", Json::string("x"));
    object.set("c", Json::array({Json::boolean(true)}));
    CHECK(object.dump() == R"({"a": 1, "b": 2, "a": "x", "c": [true]})");
    CHECK(object == Json::parse(object.dump(), "t"));
    CHECK_FALSE(object == Json::parse("{}", "t"));
    CHECK(object.members().size() == 4);
    CHECK(object.find("c")->items()[0].as_bool());
}

TEST_CASE("pretty text has one value a line") {
    const Json value = Json::parse(R"({"a":[1,{"b":"x"}],"c":[],"d":{}})", "t");
    CHECK(value.dump_pretty() ==
          "{\n  \"a\": [\n    1,\n    {\n      \"b\": \"x\"\n    }\n  ],\n"
          "  \"c\": [],\n  \"d\": {}\n}");
    CHECK(Json::parse(value.dump_pretty(4), "t") == value);
}

TEST_CASE("access as another kind is an internal error") {
    const Json text = Json::string("x");
    CHECK(text.kind_name() == "text");
    expect_error(ErrorKind::Internal, {"text"}, [&] { (void)text.as_bool(); });
    expect_error(ErrorKind::Internal, {"text"}, [&] { (void)text.items(); });
    expect_error(ErrorKind::Internal, {"text"}, [&] { (void)text.members(); });
    expect_error(ErrorKind::Internal, {"text"}, [&] { (void)text.to_double(); });
    expect_error(ErrorKind::Internal, {"null"}, [] { (void)Json().as_string(); });
    expect_error(ErrorKind::Internal, {"null"}, [] { Json().set("a", {}); });
}

TEST_CASE("configuration values are read or refused by name") {
    const Json config = Json::parse(
        R"({"n": 5, "x": 0.5, "s": "text", "b": true, "z": null, "l": [], "inf": 1e999})", "t");
    CHECK(config.require_integer("n", "c") == 5);
    CHECK(config.require_number("n", "c") == 5.0);
    CHECK(config.require_number("x", "c") == 0.5);
    CHECK(config.require_string("s", "c") == "text");
    CHECK(config.optional_integer("n", "c") == 5);
    CHECK(config.optional_number("x", "c") == 0.5);
    CHECK(config.optional_bool("b", "c") == true);
    CHECK(config.optional_string("s", "c") == "text");
    for (const char* absent : {"z", "nothing"}) {
        CHECK(config.optional_integer(absent, "c") == std::nullopt);
        CHECK(config.optional_number(absent, "c") == std::nullopt);
        CHECK(config.optional_bool(absent, "c") == std::nullopt);
        CHECK(config.optional_string(absent, "c") == std::nullopt);
    }
    const auto kind = ErrorKind::Config;
    expect_error(kind, {"s: got \"text\", expected an integer", "(c)"}, [&] {
        (void)config.require_integer("s", "c");
    });
    expect_error(kind, {"x: got 0.5, expected an integer"}, [&] {
        (void)config.optional_integer("x", "c");
    });
    expect_error(kind, {"inf: got 1e999, expected a number"}, [&] {
        (void)config.require_number("inf", "c");
    });
    expect_error(
        kind, {"m: got nothing, expected text"}, [&] { (void)config.require_string("m", "c"); });
    expect_error(
        kind, {"z: got null, expected a number"}, [&] { (void)config.require_number("z", "c"); });
    expect_error(kind, {"l: got a list, expected true or false"}, [&] {
        (void)config.optional_bool("l", "c");
    });
    expect_error(
        kind, {"b: got true, expected text"}, [&] { (void)config.optional_string("b", "c"); });
    expect_error(kind, {"n: got a list, expected an object"}, [] {
        (void)Json::array().optional_integer("n", "c");
    });
}

TEST_CASE("files are read whole, or refused with their path") {
    const test::TempFolder folder;
    test::write_text(folder / "a.json", "\xEF\xBB\xBF{\"a\": 1}\n");
    CHECK(read_json_file(folder / "a.json").require_integer("a", "t") == 1);
    test::write_text(folder / "bad.json", "{\"a\": 1,\n}");
    expect_error(ErrorKind::Config, {folder / "bad.json:2:1", "expected a key"}, [&] {
        read_json_file(folder / "bad.json");
    });
    test::write_text(folder / "empty.json", "");
    expect_error(ErrorKind::Config, {"empty.json:1:1", "the end of the text"}, [&] {
        read_json_file(folder / "empty.json");
    });
    expect_error(ErrorKind::Config, {"none.json", "No such file"}, [&] {
        read_json_file(folder / "none.json");
    });
    expect_error(
        ErrorKind::Config, {"a folder, expected a file"}, [&] { read_json_file(folder.path()); });
}

TEST_CASE("damaged texts are read or refused, as simdjson judges them") {
    const std::string seeds[] = {
        R"({"messages": [{"role": "user", "content": "h\u00e9 \ud83d\ude00\n"}], "n": [1, -2.5e3, 0]})",
        R"([true, false, null, NaN, -Infinity, {"": {}}, [[], [[1.0E-2]]], "é日"])",
        R"({"a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}})",
    };
    constexpr std::string_view kAlphabet = "{}[]\",:\\u0123456789eE+-.dDtrfalsn \n\xc3\xa9\xf0";
    simdjson::dom::parser oracle;
    int accepted = 0;
    int refused = 0;
    for (std::uint64_t i = 0; i < 6000; ++i) {
        RandomStream random(11, Purpose::Test, 0, i);
        const std::string text = test::mutate(seeds[i % std::size(seeds)], kAlphabet, random);
        CAPTURE(text);
        const auto judged = oracle.parse(text).error();
        try {
            const Json value = Json::parse(text, "t");
            ++accepted;
            CHECK(Json::parse(value.dump(), "t") == value);
            // We also read what Python writes (NaN) and numbers of any size.
            if (judged != simdjson::SUCCESS && judged != simdjson::NUMBER_ERROR) {
                const bool has_python_number = text.find("NaN") != std::string::npos ||
                                               text.find("Infinity") != std::string::npos;
                CHECK(has_python_number);
            }
        } catch (const JsonError& error) {
            ++refused;
            CHECK(judged != simdjson::SUCCESS);
            CHECK(error.offset() <= text.size());
            CHECK((error.fault() == JsonFault::Truncated) == (error.offset() == text.size()));
        }
    }
    CHECK(accepted > 300);
    CHECK(refused > 3000);
}

TEST_SUITE_END();

}  // namespace
}  // namespace dflash::io
