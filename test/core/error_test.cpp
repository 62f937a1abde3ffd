// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/check.hpp>
#include <dflash/core/error.hpp>
#include <dflash/core/log.hpp>
#include <dflash/core/scope.hpp>

#include <cstdint>
#include <doctest/doctest.h>
#include <limits>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

namespace dflash {
namespace {

TEST_SUITE_BEGIN("core.error");

TEST_CASE("every kind has a name and an exit code") {
    const std::tuple<ErrorKind, const char*, int> cases[] = {
        {ErrorKind::Config, "configuration", 2},
        {ErrorKind::Data, "data", 3},
        {ErrorKind::Device, "device", 4},
        {ErrorKind::Compile, "compile", 4},
        {ErrorKind::Numeric, "numeric", 5},
        {ErrorKind::Storage, "storage", 6},
        {ErrorKind::Internal, "internal", 70},
        {ErrorKind::Cancelled, "cancelled", 130},
    };
    for (const auto& [kind, name, code] : cases) {
        CAPTURE(name);
        CHECK(to_string(kind) == name);
        CHECK(exit_code(kind) == code);
    }
}

TEST_CASE("the message joins the parts that are there") {
    const std::tuple<ErrorParts, const char*> cases[] = {
        {{"a", "", "", ""}, "a."},
        {{"a", "f:1", "", ""}, "a (f:1)."},
        {{"a", "", "c", ""}, "a: c."},
        {{"a", "", "", "H"}, "a. H."},
        {{"a", "f:1", "c", "H"}, "a: c (f:1). H."},
    };
    for (const auto& [parts, message] : cases) {
        const Error error(ErrorKind::Data, parts);
        CHECK(std::string(error.what()) == message);
        CHECK(error.kind() == ErrorKind::Data);
        CHECK(error.parts().what == "a");
        CHECK(error.parts().hint == parts.hint);
    }
}

/// Message of the internal error that a function throws.
template <class F>
std::string internal_error(F&& call) {
    try {
        std::forward<F>(call)();
    } catch (const Error& error) {
        CHECK(error.kind() == ErrorKind::Internal);
        return error.what();
    }
    FAIL_CHECK("nothing was thrown");
    return {};
}

TEST_CASE("a failed check names expression, message and place") {
    const int rows = 3;
    const std::string message =
        internal_error([&] { DFLASH_CHECK(rows == 4, "{} rows, {} expected", rows, 4); });
    CHECK(message.find("rows == 4: 3 rows, 4 expected") != std::string::npos);
    CHECK(message.find("error_test.cpp:") != std::string::npos);
    CHECK(message.find("report") != std::string::npos);
    DFLASH_CHECK(rows == 3, "not evaluated");
}

TEST_CASE("narrow keeps the value or fails") {
    CHECK(narrow<std::int32_t>(std::int64_t{-5}) == -5);
    CHECK(narrow<std::uint8_t>(255) == 255);
    CHECK(narrow<std::uint64_t>(std::numeric_limits<std::int64_t>::max()) == 0x7fffffffffffffffU);
    const std::string negative = internal_error([] { (void)narrow<std::uint32_t>(-1); });
    CHECK(negative.find("-1 does not fit") != std::string::npos);
    CHECK(internal_error([] { (void)narrow<std::uint8_t>(256); }).find("256") != std::string::npos);
    CHECK(internal_error([] { (void)narrow<std::int64_t>(~std::uint64_t{0}); }) != "");
}

TEST_CASE("div_exact divides or fails") {
    CHECK(div_exact(12, 4) == 3);
    CHECK(div_exact(std::int64_t{0}, std::int64_t{7}) == 0);
    CHECK(internal_error([] { (void)div_exact(7, 2); }).find("7 is not a multiple of 2") !=
          std::string::npos);
    CHECK(internal_error([] { (void)div_exact(7, 0); }) != "");
}

TEST_SUITE_END();

TEST_SUITE_BEGIN("core.scope");

TEST_CASE("a guard runs at the end of its scope, unless dismissed") {
    std::string order;
    {
        const ScopeGuard outer([&] { order += "outer"; });
        ScopeGuard dismissed([&] { order += "never"; });
        const ScopeGuard inner([&] { order += "inner "; });
        dismissed.dismiss();
        CHECK(order.empty());
    }
    CHECK(order == "inner outer");
    try {
        const ScopeGuard guard([&] { order = "unwound"; });
        throw 1;
    } catch (int) {
        CHECK(order == "unwound");
    }
}

TEST_SUITE_END();

TEST_SUITE_BEGIN("core.log");

TEST_CASE("lines reach the sink one at a time, with their level") {
    std::vector<std::string> lines;
    const LogSink former = set_log_sink([&](LogLevel level, std::string_view line) {
        lines.push_back(fmt::format("{} {}", static_cast<int>(level), line));
    });
    log_debug("d {}", 1);
    log_info("i");
    log_warning("w {}", "x");
    log_line(LogLevel::Error, "e {}");
    CHECK(lines == std::vector<std::string>{"0 d 1", "1 i", "2 w x", "3 e {}"});
    lines.clear();
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
        threads.emplace_back([] {
            for (int i = 0; i < 250; ++i) {
                log_info("line");
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    CHECK(lines.size() == 1000);
    CHECK(set_log_sink(former) != nullptr);
}

TEST_SUITE_END();

}  // namespace
}  // namespace dflash
