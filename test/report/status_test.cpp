// SPDX-License-Identifier: Apache-2.0
#include "../io/expect_error.hpp"
#include "status_example.hpp"

#include <dflash/report/status.hpp>

#include <cmath>
#include <doctest/doctest.h>

namespace dflash::report {
namespace {

RunStatus through_text(const RunStatus& status) {
    return status_from_json(io::Json::parse(to_json(status).dump_pretty(), "status.json"),
                            "status.json");
}

}  // namespace

TEST_SUITE("report.status") {
    TEST_CASE("what is written is read back") {
        RunStatus status = test::example_status(1, 2);
        status.state = RunState::Failed;
        status.doing = "step";
        status.background = "saving step 1000";
        status.warnings = 2;
        status.last_warning = "a \"disk\" is full";
        status.failure = {ErrorKind::Storage,
                          {.what = "w", .where = "x", .cause = "y", .hint = "z"}};
        status.exit_code = 6;
        status.decoded = {.step = 1000, .tau = 2.25, .first_tau = 1.5, .lookup_tau = 1.125};
        const RunStatus read = through_text(status);
        CHECK(read.state == RunState::Failed);
        CHECK(read.doing == status.doing);
        CHECK(read.background == status.background);
        CHECK(read.folder == status.folder);
        CHECK(read.version == status.version);
        CHECK(read.host == status.host);
        CHECK(read.pid == status.pid);
        CHECK(read.process_start_ticks == status.process_start_ticks);
        CHECK(read.started_s == status.started_s);
        CHECK(read.written_s == status.written_s);
        CHECK(read.every_s == status.every_s);
        CHECK(read.step == status.step);
        CHECK(read.held_out == status.held_out);
        CHECK(read.decoded == status.decoded);
        CHECK(read.saved == status.saved);
        CHECK(read.devices == status.devices);
        CHECK(read.process_cpu == status.process_cpu);
        CHECK(read.process_bytes == status.process_bytes);
        CHECK(read.warnings == 2);
        CHECK(read.last_warning == status.last_warning);
        REQUIRE(read.failure);
        CHECK(read.failure->kind == ErrorKind::Storage);
        CHECK(read.failure->parts.what == "w");
        CHECK(read.failure->parts.where == "x");
        CHECK(read.failure->parts.cause == "y");
        CHECK(read.failure->parts.hint == "z");
        CHECK(read.exit_code == 6);
    }

    TEST_CASE("what is not known yet is not there") {
        const RunStatus read = through_text(RunStatus{});
        CHECK(read.state == RunState::Starting);
        CHECK_FALSE(read.step);
        CHECK_FALSE(read.held_out);
        CHECK_FALSE(read.saved);
        CHECK_FALSE(read.failure);
        CHECK_FALSE(read.exit_code);
        CHECK(read.devices.empty());
    }

    TEST_CASE("a loss that is no number is null, and no number when it is read") {
        RunStatus status = test::example_status(0, 0);
        status.step->loss = NAN;
        CHECK(to_json(status).find("step")->find("loss")->is_null());
        CHECK(std::isnan(through_text(status).step->loss));
    }

    TEST_CASE("every state has a name of its own, and the last three are no longer live") {
        for (const RunState state : {RunState::Starting,
                                     RunState::Training,
                                     RunState::Evaluating,
                                     RunState::Saving,
                                     RunState::Stopping,
                                     RunState::Done,
                                     RunState::Stopped,
                                     RunState::Failed}) {
            RunStatus status;
            status.state = state;
            CHECK(through_text(status).state == state);
            CHECK(is_live(state) == (state < RunState::Done));
        }
    }

    TEST_CASE("another file, and one of a later version, are refused with their place") {
        const auto read = [](const char* text) {
            return [text] { status_from_json(io::Json::parse(text, "s.json"), "s.json"); };
        };
        dflash::test::expect_error(ErrorKind::Config, {"schema", "s.json"}, read("{}"));
        dflash::test::expect_error(
            ErrorKind::Data, {"schema", "got 99", "s.json"}, read(R"({"schema": 99})"));
        dflash::test::expect_error(ErrorKind::Data,
                                   {"state", "\"dancing\"", "s.json"},
                                   read(R"({"schema": 1, "state": "dancing"})"));
    }

    TEST_CASE("keys of a later version are passed over") {
        io::Json json = to_json(test::example_status(1, 1));
        json.set("mood", io::Json::string("good"));
        CHECK(status_from_json(json, "s.json").devices.size() == 2);
    }
}

}  // namespace dflash::report
