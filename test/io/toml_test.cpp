// SPDX-License-Identifier: Apache-2.0
#include "expect_error.hpp"
#include "mutation.hpp"
#include "temp_folder.hpp"

#include <dflash/io/toml.hpp>

#include <doctest/doctest.h>

namespace dflash::io {
namespace {

using test::expect_error;

/// "key = value @ place" of all entries.
std::string shown(const std::vector<TomlEntry>& entries) {
    std::string out;
    for (const TomlEntry& entry : entries) {
        out += entry.key + " = " + to_toml(entry.value) + " @ " + entry.place + "\n";
    }
    return out;
}

TEST_SUITE_BEGIN("io.toml");

TEST_CASE("values come in the order of the file, with dotted keys and places") {
    const std::string text =
        "# a run\n"
        "top = 'x'\n"
        "[train]\n"
        "lr = 6e-4\n"
        "  epochs = 1_000\n"
        "betas = [0.9, 1]\n"
        "[draft]\n"
        "target_layer_ids = [\n  1,\n  16\n]\n"
        "empty = []\n"
        "options = { fast = true, name = \"a\\nb\" }\n"
        "sub.key = -3\n"
        "\"odd.key\" = inf\n";
    CHECK(shown(parse_toml(text, "t.toml")) ==
          "top = \"x\" @ t.toml:2:1\n"
          "train.lr = 0.0006 @ t.toml:4:1\n"
          "train.epochs = 1000 @ t.toml:5:3\n"
          "train.betas = [0.9, 1.0] @ t.toml:6:1\n"
          "draft.target_layer_ids = [1, 16] @ t.toml:8:1\n"
          "draft.empty = [] @ t.toml:12:1\n"
          "draft.options.fast = true @ t.toml:13:13\n"
          "draft.options.name = \"a\\u000ab\" @ t.toml:13:26\n"
          "draft.sub.key = -3 @ t.toml:14:5\n"
          "draft.\"odd.key\" = inf @ t.toml:15:1\n");
    CHECK(parse_toml("", "t").empty());
    CHECK(parse_toml("[train]\n", "t").empty());
}

TEST_CASE("faults are configuration errors with line and column") {
    struct Case {
        std::string_view text;
        std::vector<std::string_view> message;
    };

    const Case cases[] = {
        {"[train\n", {"not TOML", "(t.toml:1:"}},
        {"a = 1\nlr = \n", {"not TOML", "(t.toml:2:"}},
        {"a = 1\nb 2\n", {"not TOML", "(t.toml:2:"}},
        {"a = 1\na = 2\n", {"not TOML", "(t.toml:2:"}},
        {"[a]\n[a]\n", {"not TOML", "(t.toml:2:"}},
        {"a = 99999999999999999999\n", {"not TOML", "(t.toml:1:"}},
        {"a = \"x\xff\"\n", {"not TOML", "(t.toml:1:"}},
        {"[t]\nwhen = 2026-01-31\n", {"t.when: got a date, expected", "(t.toml:2:1)"}},
        {"when = 12:00:00\n", {"when: got a time of day"}},
        {"when = 2026-01-31T12:00:00Z\n", {"when: got a date and time"}},
        {"a = [1, \"x\"]\n", {"a: got a list of other things than numbers", "(t.toml:1:1)"}},
        {"a = [[1]]\n", {"a: got a list of other things than numbers"}},
        {"[[a]]\nb = 1\n", {"a: got a list of other things than numbers"}},
    };
    for (const Case& c : cases) {
        CAPTURE(c.text);
        const std::string message =
            expect_error(ErrorKind::Config, {}, [&] { parse_toml(c.text, "t.toml"); });
        for (const std::string_view part : c.message) {
            CAPTURE(message);
            CAPTURE(part);
            CHECK(message.find(part) != std::string::npos);
        }
    }
}

TEST_CASE("files are read, or refused with their path") {
    const test::TempFolder folder;
    const std::string path = folder / "dflash.toml";
    test::write_text(path, "[train]\nlr = 1\n");
    CHECK(shown(read_toml_file(path)) == "train.lr = 1 @ " + path + ":2:1\n");
    test::write_text(path, "[train]\nlr = = 1\n");
    expect_error(ErrorKind::Config, {"not TOML", path + ":2:"}, [&] { read_toml_file(path); });
    expect_error(ErrorKind::Config, {folder / "none", "No such file"}, [&] {
        read_toml_file(folder / "none");
    });
    expect_error(ErrorKind::Config, {"is a folder"}, [&] { read_toml_file(folder.path()); });
}

TEST_CASE("a value of the command line is TOML or a bare word") {
    const std::pair<const char*, SettingValue> cases[] = {
        {"true", true},
        {" 12 ", std::int64_t{12}},
        {"-3", std::int64_t{-3}},
        {"6e-4", 6e-4},
        {"1.0", 1.0},
        {"[1, 2]", std::vector<std::int64_t>{1, 2}},
        {"[0.9,0.95]", std::vector<double>{0.9, 0.95}},
        {"\"12\"", std::string("12")},
        {"'a b'", std::string("a b")},
        {"cosine", std::string("cosine")},
        {"30min", std::string("30min")},
        {"/data/a b.jsonl", std::string("/data/a b.jsonl")},
        {"a.jsonl,b.jsonl", std::string("a.jsonl,b.jsonl")},
        {"Qwen/Qwen3-8B", std::string("Qwen/Qwen3-8B")},
        {"True", std::string("True")},
        {"0-7", std::string("0-7")},
        {"a=b", std::string("a=b")},
        {"2026-01-31", std::string("2026-01-31")},
        {"\xc3\xa9", std::string("\xc3\xa9")},
        {"", std::string()},
        {"  ", std::string()},
    };
    for (const auto& [text, expected] : cases) {
        CAPTURE(text);
        const SettingValue value = parse_toml_value(text, "--set");
        CHECK(value.index() == expected.index());
        CHECK(value == expected);
    }
    for (const char* text : {"\"open", "[1, 2", "[1, x]", "{a = 1}", "'a' b", "1\nother = 2"}) {
        CAPTURE(text);
        expect_error(ErrorKind::Config, {"expected a value in TOML notation", "(--lr)"}, [&] {
            parse_toml_value(text, "--lr");
        });
    }
}

TEST_CASE("a dump of settings reads back to the same values") {
    struct Fields {
        bool flag = false;
        std::int64_t count = -9223372036854775807;
        double number = 0.1;
        double whole = 1e22;
        std::string text = "a\"b\\c\n\t\x7f\xc3\xa9 #[=";
        Duration time{5400};
        std::vector<std::int64_t> integers{1, -2};
        std::vector<std::int64_t> none;
        std::vector<double> numbers{1.0, 2.5e-8};
        std::optional<std::int64_t> unset;
        std::optional<double> set = -0.0;

        void declare(SettingList& list) {
            list.add("one.flag", flag, "");
            list.add("one.count", count, "");
            list.add("one.number", number, "");
            list.add("one.whole", whole, "");
            list.add("one.text", text, "");
            list.add("two.time", time, "");
            list.add("two.integers", integers, "");
            list.add("two.none", none, "");
            list.add("two.numbers", numbers, "");
            list.add("two.unset", unset, "");
            list.add("two.set", set, "");
        }
    };

    Fields written;
    SettingList list;
    written.declare(list);
    const std::string text = list.dump();
    Fields read{.flag = true,
                .count = 1,
                .number = 1,
                .whole = 1,
                .text = "",
                .time = {},
                .integers = {},
                .none = {5},
                .numbers = {},
                .unset = {},
                .set = {}};
    SettingList other;
    read.declare(other);
    for (const TomlEntry& entry : parse_toml(text, "config.toml")) {
        other.find(entry.key, entry.place).assign(entry.value, SettingOrigin::File, entry.place);
    }
    CHECK(other.dump() == text);
    CHECK(read.text == written.text);
    CHECK(read.numbers == written.numbers);
    CHECK(read.unset == std::nullopt);
}

TEST_CASE("an assignment is split at its first equals sign") {
    const TomlEntry entry = parse_assignment(" train.lr = 1e-4", "--set");
    CHECK(shown({entry}) == "train.lr = 0.0001 @ --set\n");
    CHECK(shown({parse_assignment("run.output=a=b", "p")}) == "run.output = \"a=b\" @ p\n");
    CHECK(shown({parse_assignment("a=", "p")}) == "a = \"\" @ p\n");
    for (const char* text : {"", "train.lr", "=1", "  =1"}) {
        CAPTURE(text);
        expect_error(ErrorKind::Config, {"expected KEY=VALUE", "(--set)"}, [&] {
            parse_assignment(text, "--set");
        });
    }
}

TEST_CASE("damaged files are read or refused") {
    const std::string_view seed =
        "[train]\nlr = 6e-4 # peak\nbetas = [0.9, 0.95]\n[draft]\nids = {a = 1}\ns = \"x\\ty\"\n";
    int accepted = 0;
    for (std::uint64_t i = 0; i < 3000; ++i) {
        RandomStream random(13, Purpose::Test, 0, i);
        const std::string text =
            test::mutate(seed, "[]{}=.,\"'\\#\n 0123456789eE-_:+inftrue\xff", random);
        CAPTURE(text);
        try {
            parse_toml(text, "t");
            ++accepted;
        } catch (const Error& error) {
            CHECK(error.kind() == ErrorKind::Config);
        }
    }
    CHECK(accepted > 100);
}

TEST_SUITE_END();

}  // namespace
}  // namespace dflash::io
