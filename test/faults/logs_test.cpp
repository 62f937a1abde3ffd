// SPDX-License-Identifier: Apache-2.0
// The files that a run appends to, on a disk that is full for a while: nothing is torn, nothing is
// lost below the limit of what is kept, and what is lost is counted.
#include "../io/caught_log.hpp"
#include "../io/temp_folder.hpp"
#include "fault_rules.hpp"

#include <dflash/io/jsonl.hpp>
#include <dflash/report/console.hpp>
#include <dflash/report/metrics_log.hpp>
#include <dflash/report/tensorboard.hpp>

#include <doctest/doctest.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <string>
#include <unistd.h>

namespace dflash::report {
namespace {

using test::FaultRules;
using test::TempFolder;

io::Json line_of(std::int64_t step, std::size_t padding = 0) {
    return io::Json::object(
        {{"step", io::Json::integer(step)}, {"text", io::Json::string(std::string(padding, 'x'))}});
}

TEST_SUITE_BEGIN("faults.logs");

TEST_CASE("metrics of a full disk come later, whole and in order") {
    const FaultRules rules;
    const TempFolder folder;
    MetricsLog log(folder / "metrics.jsonl", 0);
    log.write(line_of(1));
    for (const char* action : {"ENOSPC", "EIO", "EINTR", "short"}) {
        rules.set(fmt::format("write metrics.jsonl {} 0 5", action));
        for (int i = 0; i < 7; ++i) {
            log.write(line_of(2));
        }
        rules.set("");
        log.write(line_of(3));
    }
    const io::JsonLines lines(folder / "metrics.jsonl");
    CHECK(lines.size() == 1 + 4 * 8);
    for (std::int64_t i = 1; i <= lines.size(); ++i) {
        CHECK_NOTHROW(io::Json::parse(lines.line(i).text, lines.place(i)));
    }
}

TEST_CASE("metrics beyond what is kept are counted, and told at the end at the latest") {
    const FaultRules rules;
    const TempFolder folder;
    test::CaughtLog caught;
    {
        MetricsLog log(folder / "metrics.jsonl", 0);
        log.write(line_of(1));
        rules.set("write metrics.jsonl ENOSPC 0 -1");
        for (int i = 0; i < 30; ++i) {
            log.write(line_of(2, 100'000));
        }
        CHECK(caught.warned("No space left on device"));
        SUBCASE("the disk works again") {
            rules.set("");
            log.write(line_of(3));
            CHECK(caught.warned("is written again; 19 lines were lost"));
            CHECK(io::JsonLines(folder / "metrics.jsonl").size() == 1 + 11 + 1);
        }
        SUBCASE("it stays full") {
            log.finish();
            CHECK(caught.warned("could not be written to the end: 30 lines were lost"));
            CHECK(io::JsonLines(folder / "metrics.jsonl").size() == 1);
        }
        rules.set("");
    }
}

TEST_CASE("TensorBoard's numbers of a full disk come later") {
    const FaultRules rules;
    const TempFolder folder;
    const TempFolder other;
    TensorBoardLog log(folder.path(), 0);
    TensorBoardLog whole(other.path(), 0);
    rules.set("write " + folder.path() + " ENOSPC 0 -1");
    for (int step = 1; step <= 20; ++step) {
        log.add(step, 1.0, {{"a", 2.0}});
        whole.add(step, 1.0, {{"a", 2.0}});
        log.flush();
    }
    rules.set("");
    log.flush();
    whole.flush();
    const auto size = [](const TempFolder& f) {
        return test::read_text(f / test::names_in(f.path()).at(0)).size();
    };
    CHECK(size(folder) == size(other));
}

TEST_CASE("console.log says how many lines it lacks") {
    const FaultRules rules;
    const TempFolder folder;
    const int nowhere = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
    {
        Console console(nowhere);
        console.attach(folder / "console.log");
        console.print("first");
        rules.set("write console.log ENOSPC 0 3");
        for (int i = 0; i < 3; ++i) {
            console.print("lost");
        }
        console.print("last");
    }
    ::close(nowhere);
    const std::string text = test::read_text(folder / "console.log");
    CHECK(text.find("first\n") != std::string::npos);
    CHECK(text.find("lost\n") == std::string::npos);
    CHECK(text.find("(3 lines lost here)\n") != std::string::npos);
    CHECK(text.find("last\n") != std::string::npos);
}

TEST_SUITE_END();

}  // namespace
}  // namespace dflash::report
