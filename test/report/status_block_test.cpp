// SPDX-License-Identifier: Apache-2.0
#include "status_example.hpp"
#include "text_width.hpp"

#include <dflash/report/status_block.hpp>

#include <algorithm>
#include <cmath>
#include <doctest/doctest.h>

namespace dflash::report {
namespace {

using Lines = std::vector<std::string>;
using test::example_status;
using test::kNow;

Lines lines_of(const RunStatus& status, int columns, int lines, bool colours = false) {
    return block_lines(status, {.columns = columns, .lines = lines, .colours = colours}, kNow);
}

/// Line by line, so that a failure shows them.
void check_lines(const Lines& lines, const Lines& expected) {
    CHECK(lines.size() == expected.size());
    for (std::size_t i = 0; i < std::min(lines.size(), expected.size()); ++i) {
        CHECK(lines[i] == expected[i]);
    }
}

bool any(const Lines& lines, const std::string& part) {
    return std::ranges::any_of(
        lines, [&](const std::string& line) { return line.find(part) != std::string::npos; });
}

}  // namespace

TEST_SUITE("report.status_block") {
    TEST_CASE("on 80x24 a run on two GPUs shows what it does, learns, reaches and uses") {
        check_lines(
            lines_of(example_status(1, 1), 79, 10),
            {
                "training  step 1,234  12.4 %  21 h 35 min left  up 3:05:12",
                "loss 2.3457  accuracy 41.2 %  lr 5.90e-04",
                "held-out acceptance 2.310 at step 1,000 (bigram 1.480)",
                "drafter 145,020 tok/s  target 151,344 tok/s  waited: drafter 41 %, target 2 %",
                "saved step 1,000 12 min 20 s ago  process 187 % CPU, 5.00 GiB",
                "cuda:0  target   use  98 %  71.0/140.0 GiB  waits  2 % (slots)   612 W 1830 MHz",
                "cuda:1  drafter  use  54 %  71.0/140.0 GiB  waits 41 % (target)  612 W 1830 MHz",
            });
    }

    TEST_CASE("a wide terminal shows temperatures too") {
        CHECK(lines_of(example_status(1, 1), 119, 10).back() ==
              "cuda:1  drafter  use  54 %  71.0/140.0 GiB  waits 41 % (target)  612 W 1830 MHz  64 "
              "C");
    }

    TEST_CASE("a block never exceeds the room there is") {
        for (const int devices : {0, 1, 2, 5, 8, 9, 16, 64}) {
            for (int columns = 1; columns < 130; columns += 7) {
                for (int lines = 1; lines <= 10; ++lines) {
                    CAPTURE(devices);
                    CAPTURE(columns);
                    CAPTURE(lines);
                    RunStatus status = example_status((devices + 1) / 2, devices / 2);
                    status.warnings = 3;
                    status.last_warning = "something with a long text that is cut";
                    status.background = "saving step 1000";
                    const Lines shown = lines_of(status, columns, lines, /*colours=*/true);
                    CHECK(shown.size() >= 1);
                    CHECK(std::ssize(shown) <= lines);
                    for (const std::string& line : shown) {
                        CHECK(display_width(line) <= columns);
                        CHECK(line.find('\n') == std::string::npos);
                    }
                }
            }
        }
    }

    TEST_CASE("eight GPUs have a line each; more share lines by role, and say so") {
        const Lines eight = lines_of(example_status(5, 3), 79, 10);
        REQUIRE(eight.size() == 10);
        for (int i = 0; i < 8; ++i) {
            CHECK(eight[static_cast<std::size_t>(2 + i)].starts_with(fmt::format("cuda:{}", i)));
        }
        CHECK(eight[0] ==
              "training  step 1,234  12.4 %  21 h 35 min left  up 3:05:12  loss 2.3457");

        const Lines sixteen = lines_of(example_status(10, 6), 99, 10);
        CHECK(any(sixteen, "cuda:0 - cuda:9    target   use 89-98 %"));
        CHECK(any(sixteen, "cuda:10 - cuda:15  drafter  use 40-45 %"));

        RunStatus striped = example_status(10, 10);
        for (std::size_t i = 0; i < striped.devices.size(); ++i) {
            striped.devices[i].role = i % 2 == 0 ? "target" : "drafter";
        }
        const Lines folded = lines_of(striped, 79, 10);
        CHECK(folded.size() == 10);
        CHECK(folded.back() == "and 13 more devices");
    }

    TEST_CASE("a narrow pane shows the first fields, each whole") {
        const Lines lines = lines_of(example_status(2, 2), 39, 9);
        CHECK(lines.front() == "training  step 1,234  12.4 %");
        CHECK(any(lines, "cuda:3  drafter  use  52 %"));
        for (const std::string& line : lines) {
            CHECK(display_width(line) <= 39);
            CHECK_FALSE(line.ends_with("tok"));
            CHECK_FALSE(line.ends_with(" 145,0"));
        }
    }

    TEST_CASE("a start says what is being done, and for how long") {
        RunStatus status;
        status.doing = "loading the target";
        status.started_s = kNow - 75;
        CHECK(lines_of(status, 79, 10) == Lines{"starting: loading the target  up 0:01:15"});
    }

    TEST_CASE("an ended run shows what it learned, and no speed, use or time left") {
        RunStatus status = example_status(1, 1);
        status.state = RunState::Done;
        check_lines(lines_of(status, 79, 10),
                    {
                        "done  step 1,234  12.4 %  up 3:05:12",
                        "loss 2.3457  accuracy 41.2 %  lr 5.90e-04",
                        "held-out acceptance 2.310 at step 1,000 (bigram 1.480)",
                        "saved step 1,000 12 min 20 s ago",
                    });
    }

    TEST_CASE("a run that stands still says since when; an evaluation is no standstill") {
        RunStatus status = example_status(1, 1);
        status.step->at_s = kNow - 190;
        CHECK(any(lines_of(status, 79, 10), "no step for 3 min 10 s"));
        CHECK_FALSE(any(lines_of(status, 79, 10), "left"));
        status.state = RunState::Evaluating;
        CHECK_FALSE(any(lines_of(status, 79, 10), "no step"));
        status.state = RunState::Training;
        status.step->seconds = 1234 * 100;  // steps take minutes
        CHECK_FALSE(any(lines_of(status, 79, 10), "no step"));
    }

    TEST_CASE("figures that are not there leave no hole, and none that is no number hides") {
        RunStatus status = example_status(1, 1);
        for (DeviceStatus& device : status.devices) {
            device = {.name = device.name, .role = device.role, .busy = 0.5};
        }
        status.step->loss = NAN;
        status.step->left_s.reset();
        const Lines lines = lines_of(status, 79, 10);
        CHECK(lines.back() == "cuda:1  drafter  busy  50 %");
        CHECK(any(lines, "loss nan"));
    }

    TEST_CASE("colours are there only when they may be, and end with their field") {
        RunStatus status = example_status(1, 1);
        status.warnings = 1;
        status.last_warning = "hot";
        CHECK_FALSE(any(lines_of(status, 79, 10), "\033"));
        const Lines coloured = lines_of(status, 79, 10, /*colours=*/true);
        CHECK(coloured.front().starts_with("\033[1mtraining\033[m  "));
        CHECK(any(coloured, "\033[33m1 warning: hot\033[m"));
    }

    TEST_CASE("foreign text cannot steer the terminal") {
        RunStatus status = example_status(1, 1);
        status.doing = "a\033[2Jb";
        status.warnings = 1;
        status.last_warning = "c\nd";
        const Lines lines = lines_of(status, 79, 10);
        CHECK(any(lines, "training: a?[2Jb"));
        CHECK(any(lines, "c?d"));
    }

    TEST_CASE("a report of who waits names every device") {
        check_lines(waiting_lines(example_status(1, 1)),
                    {
                        "cuda:0  target   97 % of the time in tasks, 2 queued or running; waits  2 "
                        "% (slots)",
                        "cuda:1  drafter   50 % of the time in tasks, 0 queued or running; waits "
                        "41 % (target)",
                    });
    }
}

}  // namespace dflash::report
