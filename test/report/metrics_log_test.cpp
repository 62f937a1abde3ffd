// SPDX-License-Identifier: Apache-2.0
#include "../io/caught_log.hpp"
#include "../io/expect_error.hpp"
#include "../io/file_size_limit.hpp"
#include "../io/temp_folder.hpp"

#include <dflash/core/random.hpp>
#include <dflash/report/metrics_log.hpp>

#include <algorithm>
#include <csignal>
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

namespace dflash::report {
namespace {

using io::Json;
using test::TempFolder;

Json step_object(std::int64_t step) {
    return Json::object({{"step", Json::integer(step)}, {"loss", Json::number(0.5)}});
}

std::string step_line(std::int64_t step) {
    return fmt::format("{{\"step\": {}, \"loss\": 0.5}}\n", step);
}

TEST_SUITE_BEGIN("report.metrics_log");

TEST_CASE("objects become lines at once") {
    const TempFolder folder;
    MetricsLog log(folder / "metrics.jsonl", 0);
    CHECK(log.path() == folder / "metrics.jsonl");
    log.write(step_object(1));
    CHECK(test::read_text(log.path()) == step_line(1));
    log.write(Json::object({{"step", Json::integer(2)}, {"text", Json::string("a\nb")}}));
    CHECK(test::read_text(log.path()) == step_line(1) + "{\"step\": 2, \"text\": \"a\\nb\"}\n");
    test::expect_error(ErrorKind::Internal, {"without a step"}, [&] { log.write(Json::object()); });
    test::expect_error(ErrorKind::Storage, {"No such file"}, [&] {
        const MetricsLog other(folder / "none/metrics.jsonl", 0);
    });
}

TEST_CASE("a resumed run keeps whole lines up to its step and nothing else") {
    const std::string good = step_line(0) + step_line(1) + step_line(2);
    const std::pair<std::string, std::string> cases[] = {
        {"", ""},
        {good, good},
        {good + step_line(3) + step_line(4), good},
        {good + "{\"step\": 2, \"lo", good},
        {good + "{\"step\": 2}", good},  // whole, but its line end is missing
        {good + std::string(100, '\0') + "\n", good},
        {good + std::string("{\"step\": 2, \"a\": \"\xff\"}\n"), good},
        {good + "{}\n[2]\n{\"step\": \"2\"}\n{\"step\": 2.5}\n\n", good},
        {step_line(1) + step_line(7) + step_line(2), step_line(1) + step_line(2)},
        {"{\"step\":2,  \"x\": 1e5}\n", "{\"step\":2,  \"x\": 1e5}\n"},
        {step_line(5), ""},
    };
    for (const auto& [before, after] : cases) {
        CAPTURE(before);
        const test::CaughtLog log_lines;
        const TempFolder folder;
        const std::string path = folder / "metrics.jsonl";
        test::write_text(path, before);
        {
            MetricsLog log(path, 2);
            CHECK(test::read_text(path) == after);
            CHECK(log_lines.others().size() == (before == after ? 0 : 1));
            log.write(step_object(3));
        }
        CHECK(test::read_text(path) == after + step_line(3));
        CHECK(test::names_in(folder.path()) == std::vector<std::string>{"metrics.jsonl"});
    }
}

TEST_CASE("a process killed at any moment leaves whole lines and at most one torn") {
    const TempFolder folder;
    const test::CaughtLog log_lines;
    const std::string path = folder / "metrics.jsonl";
    RandomStream random(16, Purpose::Test, 0, 0);
    std::int64_t step = 0;
    for (int kill = 0; kill < 20; ++kill) {
        const ::pid_t child = ::fork();
        REQUIRE(child >= 0);
        if (child == 0) {
            try {
                MetricsLog log(path, step);
                for (std::int64_t next = step + 1;; ++next) {
                    log.write(step_object(next));
                }
            } catch (...) {
                ::_exit(1);
            }
        }
        ::usleep(static_cast<::useconds_t>(random.below(6000)));
        ::kill(child, SIGKILL);
        int status = 0;
        REQUIRE(::waitpid(child, &status, 0) == child);
        CHECK(WIFSIGNALED(status));
        // Resume from some step that was reached.
        const std::string before = std::filesystem::exists(path) ? test::read_text(path) : "";
        const auto whole = std::count(before.begin(), before.end(), '\n');
        step = static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(whole) + 1));
        const MetricsLog log(path, step);
        std::string expected;
        for (std::int64_t s = 1; s <= step; ++s) {
            expected += step_line(s);
        }
        CHECK(test::read_text(path) == expected);
    }
}

TEST_CASE("lines that a full disk refused are written later, whole and in order") {
    const TempFolder folder;
    const test::CaughtLog log_lines;
    const std::string path = folder / "metrics.jsonl";
    {
        MetricsLog log(path, 0);
        log.write(step_object(1));
        {
            const test::FileSizeLimit limit(30);
            log.write(step_object(2));
            log.write(step_object(3));
            CHECK(log_lines.warnings().size() == 1);
            CHECK(log_lines.warnings()[0].find("File too large") != std::string::npos);
        }
        log.write(step_object(4));
        CHECK(log_lines.warnings().size() == 2);
        CHECK(log_lines.warnings()[1].find("written again; 0 lines were lost") !=
              std::string::npos);
        log.write(step_object(5));
    }
    CHECK(test::read_text(path) ==
          step_line(1) + step_line(2) + step_line(3) + step_line(4) + step_line(5));
}

TEST_SUITE_END();

}  // namespace
}  // namespace dflash::report
