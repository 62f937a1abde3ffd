// SPDX-License-Identifier: Apache-2.0
#include "../io/caught_log.hpp"
#include "../io/expect_error.hpp"
#include "../io/file_size_limit.hpp"
#include "../io/temp_folder.hpp"

#include <dflash/io/json.hpp>
#include <dflash/report/tensorboard.hpp>

#include <cstdlib>
#include <ctime>
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <sstream>

namespace dflash::report {
namespace {

using test::names_in;
using test::read_text;
using test::TempFolder;

TEST_SUITE_BEGIN("report.tensorboard");

TEST_CASE("numbers reach a file with TensorBoard's name") {
    const TempFolder folder;
    std::string path;
    {
        TensorBoardLog log(folder.path(), 0);
        path = log.path();
        log.add(1, 10.5, {{"train/loss", 3.0}, {"train/lr", 1e-4}});
        CHECK(read_text(path).find("train/loss") == std::string::npos);
        log.flush();
        const io::Scalar scalars[] = {{"train/loss", 3.0}, {"train/lr", 1e-4}};
        CHECK(read_text(path).ends_with(io::scalars_record(10.5, 1, scalars)));
        log.add(2, 11.5, {{"train/loss", 2.0}});
    }
    const io::Scalar last{"train/loss", 2.0};
    CHECK(read_text(path).ends_with(io::scalars_record(11.5, 2, {&last, 1})));
    const std::vector<std::string> names = names_in(folder.path());
    REQUIRE(names.size() == 1);
    CHECK(names[0].starts_with("events.out.tfevents."));
    CHECK(std::abs(std::stod(names[0].substr(20)) - static_cast<double>(std::time(nullptr))) < 60);
}

TEST_CASE("each start has a later file than all others") {
    const TempFolder folder;
    test::write_text(folder / "events.out.tfevents.9000000000.elsewhere", "");
    test::write_text(folder / "events.out.tfevents.text", "");
    const TensorBoardLog first(folder.path(), 0);
    const TensorBoardLog second(folder.path(), 5);
    CHECK(first.path().find("tfevents.9000000001.") != std::string::npos);
    CHECK(second.path().find("tfevents.9000000002.") != std::string::npos);
    test::expect_error(ErrorKind::Storage, {"No such file"}, [&] {
        const TensorBoardLog other(folder / "none", 0);
    });
}

TEST_CASE("numbers that a full disk refused are written later") {
    const TempFolder folder;
    const test::CaughtLog log_lines;
    TensorBoardLog log(folder.path(), 0);
    const std::string before = read_text(log.path());
    {
        const test::FileSizeLimit limit(before.size() + 3);
        log.add(1, 1, {{"a", 1}});
        log.flush();
        log.flush();
    }
    log.add(2, 2, {{"a", 2}});
    log.flush();
    REQUIRE(log_lines.warnings().size() == 2);
    CHECK(log_lines.warnings()[0].find("File too large") != std::string::npos);
    CHECK(log_lines.warnings()[1].find("written again") != std::string::npos);
    const io::Scalar one{"a", 1};
    const io::Scalar two{"a", 2};
    CHECK(read_text(log.path()) ==
          before + io::scalars_record(1, 1, {&one, 1}) + io::scalars_record(2, 2, {&two, 1}));
}

/// Name of a Python that has PyPI's tensorboard; null where there is none.
const char* tensorboard_python() {
    return std::getenv("DFLASH_TENSORBOARD_PYTHON");
}

TEST_CASE("the real TensorBoard reads a run and its resumption as one curve" *
          doctest::skip(tensorboard_python() == nullptr)) {
    const TempFolder folder;
    {
        TensorBoardLog log(folder.path(), 0);
        log.add(0, 100, {{"eval/accuracy", 0.125}});
        for (int step = 1; step <= 6; ++step) {
            log.add(step, 100.5 + step, {{"train/loss", 10.0 - step}, {"train/lr", 0.5 * step}});
        }
    }
    {
        // Resumed from step 4: 5 and 6 are discarded, as metrics.jsonl does it.
        TensorBoardLog log(folder.path(), 4);
        log.add(5, 200, {{"train/loss", 2.25}});
    }
    const std::string command = fmt::format("{} tools/golden/check_events.py {} > {}",
                                            tensorboard_python(),
                                            folder.path(),
                                            folder / "read.jsonl");
    REQUIRE(std::system(command.c_str()) == 0);
    std::string read;
    std::istringstream lines(read_text(folder / "read.jsonl"));
    for (std::string line; std::getline(lines, line);) {
        const io::Json point = io::Json::parse(line, "read.jsonl");
        read += fmt::format("{} {} {} {}\n",
                            point.find("tag")->as_string(),
                            point.require_integer("step", ""),
                            point.require_number("value", ""),
                            point.require_number("wall_time", ""));
    }
    CHECK(read ==
          "eval/accuracy 0 0.125 100\n"
          "train/loss 1 9 101.5\n"
          "train/loss 2 8 102.5\n"
          "train/loss 3 7 103.5\n"
          "train/loss 4 6 104.5\n"
          "train/loss 5 2.25 200\n"
          "train/lr 1 0.5 101.5\n"
          "train/lr 2 1 102.5\n"
          "train/lr 3 1.5 103.5\n"
          "train/lr 4 2 104.5\n");
}

TEST_SUITE_END();

}  // namespace
}  // namespace dflash::report
