// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/error.hpp>
#include <dflash/core/settings.hpp>

#include <doctest/doctest.h>
#include <limits>
#include <set>
#include <utility>

namespace dflash {
namespace {

/// One field of every type that a setting can have.
struct Sample {
    bool flag = true;
    std::int64_t rows = 12;
    double lr = 6e-4;
    std::string schedule = "cosine";
    Duration every{600};
    std::vector<std::int64_t> layers{1, 9};
    std::vector<double> betas{0.9, 0.95};
    std::optional<bool> maybe_flag;
    std::optional<std::int64_t> block_size;
    std::optional<double> gamma;
    std::optional<std::string> name;
    std::optional<Duration> after;
    std::optional<std::vector<std::int64_t>> ids;

    void declare(SettingList& list) {
        list.add("train.flag", flag, "a flag");
        list.add("train.rows_per_step", rows, "rows", {.at_least = 1, .unit = "rows"});
        list.add("train.lr", lr, "peak learning rate", {.above = 0});
        list.add("train.schedule", schedule, "schedule", {.one_of = {"cosine", "wsd"}});
        list.add("report.every", every, "time between lines", {.at_least = 1, .maths = false});
        list.add("draft.layers", layers, "layers", {.at_least = 0});
        list.add("train.betas", betas, "betas", {.at_least = 0, .at_most = 1});
        list.add("draft.maybe_flag", maybe_flag, "a flag by rule");
        list.add("draft.block_size", block_size, "slots", {.at_least = 2, .at_most = 64});
        list.add("draft.gamma", gamma, "decay", {.at_most = 100, .above = 0});
        list.add("draft.name", name, "a name");
        list.add("watchdog.after", after, "patience", {.maths = false});
        list.add("draft.ids", ids, "layer ids", {.at_most = 99});
    }
};

void assign(SettingList& list, std::string_view name, const SettingValue& value) {
    list.find(name, "here").assign(value, SettingOrigin::SetOption, "--set");
}

/// Message of the configuration error that a call throws.
template <class F>
std::string config_error(F&& call) {
    try {
        std::forward<F>(call)();
    } catch (const Error& error) {
        CHECK(error.kind() == ErrorKind::Config);
        return error.what();
    }
    FAIL_CHECK("nothing was thrown");
    return {};
}

TEST_SUITE_BEGIN("core.settings");

TEST_CASE("declared settings know their type, default, limits and unit") {
    Sample sample;
    SettingList list;
    sample.declare(list);

    struct Case {
        const char* name;
        const char* type;
        const char* value;
        const char* limits;
    };

    const Case cases[] = {
        {"train.flag", "true or false", "true", ""},
        {"train.rows_per_step", "integer", "12", "1 or more"},
        {"train.lr", "number", "0.0006", "above 0"},
        {"train.schedule", "text", "\"cosine\"", "one of cosine, wsd"},
        {"report.every", "time", "\"10min\"", "1 or more"},
        {"draft.layers", "list of integers", "[1, 9]", "0 or more"},
        {"train.betas", "list of numbers", "[0.9, 0.95]", "0 to 1"},
        {"draft.maybe_flag", "true or false", "(by rule)", ""},
        {"draft.block_size", "integer", "(by rule)", "2 to 64"},
        {"draft.gamma", "number", "(by rule)", "above 0, at most 100"},
        {"draft.name", "text", "(by rule)", ""},
        {"watchdog.after", "time", "(by rule)", ""},
        {"draft.ids", "list of integers", "(by rule)", "at most 99"},
    };
    REQUIRE(list.all().size() == std::size(cases));
    for (std::size_t i = 0; i < std::size(cases); ++i) {
        const Setting& setting = std::as_const(list).all()[i];
        CAPTURE(setting.name);
        CHECK(setting.name == cases[i].name);
        CHECK(setting.type == cases[i].type);
        CHECK(setting.default_text == cases[i].value);
        CHECK(to_toml(setting.value()) == cases[i].value);
        CHECK(setting.limits() == cases[i].limits);
        CHECK(setting.is_default());
        CHECK(setting.origin == SettingOrigin::Default);
    }
    CHECK(list.find("train.rows_per_step", "").check.unit == "rows");
}

TEST_CASE("values reach the fields, with their origin and place") {
    Sample sample;
    SettingList list;
    sample.declare(list);
    assign(list, "train.flag", false);
    assign(list, "train.rows_per_step", std::int64_t{3});
    assign(list, "train.lr", std::int64_t{1});  // an integer is a number
    assign(list, "train.schedule", std::string("wsd"));
    assign(list, "report.every", std::string("90s"));
    assign(list, "draft.layers", std::vector<std::int64_t>{});
    assign(list, "train.betas", std::vector<std::int64_t>{0, 1});
    assign(list, "draft.maybe_flag", true);
    assign(list, "draft.block_size", std::int64_t{16});
    assign(list, "draft.gamma", 7.0);
    assign(list, "draft.name", std::string());
    assign(list, "watchdog.after", std::string("2h"));
    assign(list, "draft.ids", std::vector<std::int64_t>{-1, 99});
    CHECK(sample.flag == false);
    CHECK(sample.rows == 3);
    CHECK(sample.lr == 1.0);
    CHECK(sample.schedule == "wsd");
    CHECK(sample.every == Duration{90});
    CHECK(sample.layers.empty());
    CHECK(sample.betas == std::vector<double>{0, 1});
    CHECK(sample.maybe_flag == true);
    CHECK(sample.block_size == 16);
    CHECK(sample.gamma == 7.0);
    CHECK(sample.name == "");
    CHECK(sample.after == Duration{7200});
    CHECK(sample.ids == std::vector<std::int64_t>{-1, 99});
    for (const Setting& setting : list.all()) {
        CAPTURE(setting.name);
        CHECK_FALSE(setting.is_default());
        CHECK(setting.origin == SettingOrigin::SetOption);
        CHECK(setting.place == "--set");
    }
    assign(list, "draft.block_size", std::monostate{});
    CHECK(sample.block_size == std::nullopt);
}

TEST_CASE("a wrong type or a value beyond the limits is refused and changes nothing") {
    constexpr double kInf = std::numeric_limits<double>::infinity();
    constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

    struct Case {
        const char* name;
        SettingValue value;
        const char* message;
    };

    const Case cases[] = {
        {"train.flag", std::int64_t{1}, "train.flag: got 1, expected true or false (--set)"},
        {"train.flag", std::string("yes"), "got \"yes\", expected true or false"},
        {"train.rows_per_step",
         std::int64_t{0},
         "train.rows_per_step: got 0, expected integer, 1 or more (--set)"},
        {"train.rows_per_step", 1.5, "got 1.5, expected integer"},
        {"train.rows_per_step", true, "got true, expected integer"},
        {"train.rows_per_step", std::monostate{}, "got (by rule), expected integer"},
        {"train.lr", 0.0, "got 0.0, expected number, above 0"},
        {"train.lr", kInf, "got inf, expected number, above 0"},
        {"train.lr", kNan, "got nan, expected number, above 0"},
        {"train.lr", std::string("1e-4"), "got \"1e-4\", expected number"},
        {"train.schedule",
         std::string("linear"),
         "got \"linear\", expected text, one of cosine, wsd"},
        {"train.schedule", false, "got false, expected text"},
        {"report.every", std::string("fast"), "expected a time with a unit, as in"},
        {"report.every", std::int64_t{10}, "got 10, expected a time with a unit"},
        {"report.every", std::string("500ms"), "got \"500ms\", expected a time with a unit"},
        {"draft.layers",
         std::vector<std::int64_t>{3, -1},
         "got [3, -1], expected list of integers, 0 or more"},
        {"draft.layers", std::vector<double>{1.5}, "got [1.5], expected list of integers"},
        {"draft.layers", std::int64_t{3}, "got 3, expected list of integers"},
        {"train.betas",
         std::vector<double>{0.9, 1.5},
         "got [0.9, 1.5], expected list of numbers, 0 to 1"},
        {"draft.block_size", std::int64_t{65}, "got 65, expected integer, 2 to 64"},
        {"draft.gamma", 101.0, "got 101.0, expected number, above 0, at most 100"},
        {"draft.name", std::int64_t{5}, "got 5, expected text"},
        {"watchdog.after", std::string("-5s"), "got \"-5s\""},
        {"draft.ids",
         std::vector<std::int64_t>{100},
         "got [100], expected list of integers, at most 99"},
    };
    Sample sample;
    SettingList list;
    sample.declare(list);
    const std::string before = list.dump();
    for (const Case& c : cases) {
        CAPTURE(c.name);
        const std::string message = config_error([&] { assign(list, c.name, c.value); });
        CAPTURE(message);
        CHECK(message.find(c.message) != std::string::npos);
        CHECK(list.dump() == before);
        CHECK(list.find(c.name, "").origin == SettingOrigin::Default);
    }
}

TEST_CASE("an unknown name gets the nearest one, or ours for another trainer's") {
    Sample sample;
    SettingList list;
    sample.declare(list);
    const std::pair<const char*, const char*> cases[] = {
        {"train.row_per_step",
         "unknown setting \"train.row_per_step\" (f:1:1). Did you mean train.rows_per_step."},
        {"lr", "Did you mean train.lr."},
        {"train.learning_rate", "dflash calls it train.lr (--lr)."},
        {"learning-rate", "dflash calls it train.lr (--lr)."},
        {"qqqq.wwww", "--help-settings lists all settings."},
    };
    for (const auto& [name, expected] : cases) {
        const std::string message = config_error([&] { list.find(name, "f:1:1"); });
        CAPTURE(message);
        CHECK(message.find(expected) != std::string::npos);
    }
}

TEST_CASE("names of other trainers are known in every spelling") {
    const std::pair<const char*, const char*> cases[] = {
        {"num_anchors", "draft.anchors (--anchors)"},
        {"--num-anchors", "draft.anchors (--anchors)"},
        {"training.num_anchors", "draft.anchors (--anchors)"},
        {"dflash_block_size", "draft.block_size (--block-size)"},
        {"gradient-accumulation-steps", "train.rows_per_step"},
        {"report_to", "nothing: metrics.jsonl and TensorBoard events are always written"},
    };
    for (const auto& [name, expected] : cases) {
        CAPTURE(name);
        CHECK(foreign_name(name) == expected);
    }
    CHECK(foreign_name("lr") == std::nullopt);
    CHECK(foreign_name("") == std::nullopt);
}

TEST_CASE("a setting cannot be declared twice, nor without a section") {
    SettingList list;
    bool flag = false;
    list.add("a.b", flag, "");
    CHECK_THROWS_AS(list.add("a.b", flag, ""), Error);
    list.add("plain", flag, "");
    CHECK_THROWS_AS(list.dump(), Error);
}

TEST_CASE("the dump has a section per prefix, and comments for what a rule decides") {
    Sample sample;
    SettingList list;
    list.add("train.lr", sample.lr, "");
    list.add("train.schedule", sample.schedule, "");
    list.add("draft.block_size", sample.block_size, "");
    list.add("draft.layers", sample.layers, "");
    sample.schedule = "a\"\\\n";
    CHECK(list.dump() ==
          "[train]\nlr = 0.0006\nschedule = \"a\\\"\\\\\\u000a\"\n\n"
          "[draft]\n# block_size = (by rule)\nlayers = [1, 9]\n");
}

TEST_CASE("the hash changes with the maths and with nothing else") {
    Sample sample;
    SettingList list;
    sample.declare(list);
    const std::uint64_t hash = list.maths_hash();
    sample.every = Duration{1};
    CHECK(list.maths_hash() == hash);
    std::set<std::uint64_t> hashes{hash};
    sample.lr = 1e-4;
    hashes.insert(list.maths_hash());
    sample.block_size = 8;
    hashes.insert(list.maths_hash());
    sample.layers.push_back(3);
    hashes.insert(list.maths_hash());
    CHECK(hashes.size() == 4);
}

TEST_CASE("values have a TOML notation that keeps their type") {
    const std::pair<SettingValue, const char*> cases[] = {
        {std::monostate{}, "(by rule)"},
        {true, "true"},
        {std::int64_t{-3}, "-3"},
        {1.0, "1.0"},
        {-0.0, "-0.0"},
        {1e22, "1e+22"},
        {0.1, "0.1"},
        {std::string("\t\x7f\xc3\xa9"), "\"\\u0009\\u007f\xc3\xa9\""},
        {std::vector<std::int64_t>{}, "[]"},
        {std::vector<double>{1, 0.5}, "[1.0, 0.5]"},
    };
    for (const auto& [value, expected] : cases) {
        CHECK(to_toml(value) == expected);
    }
}

TEST_CASE("times are read with their unit and written so that they read back") {
    const std::pair<const char*, double> good[] = {
        {"500ms", 0.5},
        {"10s", 10},
        {"10 s", 10},
        {"30min", 1800},
        {"2h", 7200},
        {"1.5h", 5400},
        {"1d", 86400},
        {"0s", 0},
        {"1e3s", 1000},
    };
    for (const auto& [text, seconds] : good) {
        CAPTURE(text);
        REQUIRE(parse_duration(text).has_value());
        CHECK(parse_duration(text)->seconds == seconds);
    }
    for (const char* text :
         {"", "10", "s", "-1s", "10 seconds", "1h30min", "infs", "nans", "10S", " 10s", "1e999s"}) {
        CAPTURE(text);
        CHECK_FALSE(parse_duration(text).has_value());
    }
    for (const double seconds : {0.0,
                                 0.001,
                                 0.5,
                                 0.1,
                                 1.0 / 3,
                                 1.0,
                                 59.0,
                                 60.0,
                                 61.0,
                                 90.5,
                                 3600.0,
                                 5400.0,
                                 86400.0,
                                 123456789.0,
                                 1e-9,
                                 1e18,
                                 86400e15 + 64}) {
        CAPTURE(seconds);
        const std::string text = to_string(Duration{seconds});
        CAPTURE(text);
        REQUIRE(parse_duration(text).has_value());
        CHECK(parse_duration(text)->seconds == seconds);
    }
    CHECK(to_string(Duration{600}) == "10min");
    CHECK(to_string(Duration{90}) == "90s");
    CHECK(to_string(Duration{0.25}) == "250ms");
    CHECK(to_string(Duration{172800}) == "2d");
}

TEST_SUITE_END();

}  // namespace
}  // namespace dflash
