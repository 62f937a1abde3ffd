// SPDX-License-Identifier: Apache-2.0
#include "../io/temp_folder.hpp"

#include <dflash/report/console.hpp>
#include <dflash/report/failure_report.hpp>

#include <doctest/doctest.h>
#include <fcntl.h>
#include <filesystem>
#include <new>
#include <stdexcept>
#include <system_error>
#include <unistd.h>

namespace dflash::report {
namespace {

using Lines = std::vector<std::string>;

template <class E>
std::exception_ptr thrown(E exception) {
    return std::make_exception_ptr(std::move(exception));
}

TEST_SUITE_BEGIN("report.failure_report");

TEST_CASE("the last eight lines say kind, what, where, cause, what to do, and log") {
    const Failure failure = describe_failure(thrown(Error(ErrorKind::Data,
                                                          {.what = "no usable row",
                                                           .where = "rows.jsonl",
                                                           .cause = "12 refused",
                                                           .hint = "Look at them"})));
    CHECK(failure_lines(failure, "runs/a/console.log") == Lines{"",
                                                                "The run failed.",
                                                                "kind        data (exit code 3)",
                                                                "what        no usable row",
                                                                "where       rows.jsonl",
                                                                "cause       12 refused",
                                                                "what to do  Look at them",
                                                                "log         runs/a/console.log"});
}

TEST_CASE("what is not known is a dash, and what is long is cut to a line") {
    const Failure failure{ErrorKind::Cancelled,
                          {.what = "stopped", .where = {}, .cause = "one\ntwo", .hint = {}}};
    CHECK(failure_lines(failure, "") == Lines{"",
                                              "The run was interrupted.",
                                              "kind        cancelled (exit code 130)",
                                              "what        stopped",
                                              "where       -",
                                              "cause       one ... (whole text above)",
                                              "what to do  -",
                                              "log         -"});
}

TEST_CASE("foreign exceptions have a kind as well") {
    struct Case {
        std::exception_ptr error;
        ErrorKind kind;
        std::string what;
    };

    const auto fs_error = std::filesystem::filesystem_error(
        "cannot copy", "/a/b", std::make_error_code(std::errc::no_space_on_device));
    const Case cases[] = {
        {thrown(std::bad_alloc()), ErrorKind::Device, "the machine has not enough memory (RAM)"},
        {thrown(fs_error), ErrorKind::Storage, "a file operation failed"},
        {thrown(std::system_error(std::make_error_code(std::errc::no_space_on_device))),
         ErrorKind::Storage,
         "the operating system refused a request"},
        {thrown(std::out_of_range("index")), ErrorKind::Internal, "index"},
        {thrown(42), ErrorKind::Internal, "an exception of unknown type"},
        {nullptr, ErrorKind::Internal, "a failure without an exception"},
    };
    for (const Case& c : cases) {
        CAPTURE(c.what);
        const Failure failure = describe_failure(c.error);
        CHECK(failure.kind == c.kind);
        CHECK(failure.parts.what == c.what);
        CHECK((failure.parts.hint.find("report it") != std::string::npos) ==
              (c.kind == ErrorKind::Internal));
    }
    CHECK(describe_failure(thrown(fs_error)).parts.where == "/a/b");
}

std::exception_ptr nested_failure() {
    try {
        try {
            try {
                throw std::runtime_error("socket closed");
            } catch (...) {
                std::throw_with_nested(Error(ErrorKind::Device,
                                             {.what = "all-reduce failed",
                                              .where = "gpu 3",
                                              .cause = "code 6",
                                              .hint = "h"}));
            }
        } catch (...) {
            std::throw_with_nested(std::runtime_error("step 12"));
        }
    } catch (...) {
        return std::current_exception();
    }
    return nullptr;
}

TEST_CASE("nested exceptions follow in the cause, from outside to inside") {
    const Failure failure = describe_failure(nested_failure());
    CHECK(failure.kind == ErrorKind::Device);
    CHECK(failure.parts.what == "all-reduce failed");
    CHECK(failure.parts.where == "gpu 3");
    CHECK(failure.parts.hint == "h");
    CHECK(failure.parts.cause == "code 6; step 12; socket closed");
}

TEST_CASE("a failure is printed, logged, and gives the exit code") {
    const test::TempFolder folder;
    const std::string shown = folder / "shown";
    const int descriptor = ::open(shown.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    {
        Console console(descriptor);
        console.attach(folder / "console.log");
        CHECK(report_failure(
                  thrown(Error(
                      ErrorKind::Compile,
                      {.what = "no kernel", .where = {}, .cause = "line 1\nline 2", .hint = {}})),
                  console) == 4);
    }
    ::close(descriptor);
    CHECK(test::read_text(shown) ==
          "line 1\nline 2\n\nThe run failed.\nkind        compile (exit code 4)\n"
          "what        no kernel\nwhere       -\ncause       line 1 ... (whole text above)\n"
          "what to do  -\nlog         " +
              (folder / "console.log") + "\n");
    CHECK(test::read_text(folder / "console.log").find("Z line 2\n") != std::string::npos);
}

TEST_SUITE_END();

}  // namespace
}  // namespace dflash::report
