// SPDX-License-Identifier: Apache-2.0
#include <dflash/report/console.hpp>
#include <dflash/report/failure_report.hpp>

#include <filesystem>
#include <fmt/format.h>
#include <new>
#include <optional>
#include <system_error>
#include <utility>

namespace dflash::report {
namespace {

constexpr const char* kBugHint = "This is a bug of dflash; please report it with the lines above";

/// The exception as a failure, without what is nested in it.
Failure describe_one(const std::exception& exception) {
    if (const auto* error = dynamic_cast<const Error*>(&exception)) {
        return {error->kind(), error->parts()};
    }
    if (dynamic_cast<const std::bad_alloc*>(&exception) != nullptr) {
        return {ErrorKind::Device,
                {.what = "the machine has not enough memory (RAM)",
                 .where = {},
                 .cause = exception.what(),
                 .hint = "Free memory, or train with smaller rows (data.row_tokens)"}};
    }
    if (const auto* error = dynamic_cast<const std::filesystem::filesystem_error*>(&exception)) {
        return {ErrorKind::Storage,
                {.what = "a file operation failed",
                 .where = error->path1().string(),
                 .cause = exception.what(),
                 .hint = {}}};
    }
    if (const auto* error = dynamic_cast<const std::system_error*>(&exception)) {
        if (error->code() == std::errc::resource_unavailable_try_again) {
            return {ErrorKind::Device,
                    {.what = "the operating system gives this process no more threads",
                     .where = {},
                     .cause = error->what(),
                     .hint = "Raise the limit (ulimit -u; pids.max of a container)"}};
        }
        // What fmt throws when a file or a descriptor refuses.
        return {ErrorKind::Storage,
                {.what = "the operating system refused a request",
                 .where = {},
                 .cause = error->what(),
                 .hint = {}}};
    }
    return {ErrorKind::Internal,
            {.what = exception.what(), .where = {}, .cause = {}, .hint = kBugHint}};
}

/// The exceptions of a chain, from outside to inside.
void collect(const std::exception_ptr& pointer,
             std::vector<Failure>& chain,
             std::optional<std::size_t>& first_error) {
    try {
        std::rethrow_exception(pointer);
    } catch (const std::exception& exception) {
        if (!first_error && dynamic_cast<const Error*>(&exception) != nullptr) {
            first_error = chain.size();
        }
        chain.push_back(describe_one(exception));
        const auto* nested = dynamic_cast<const std::nested_exception*>(&exception);
        if (nested != nullptr && nested->nested_ptr() != nullptr) {
            collect(nested->nested_ptr(), chain, first_error);
        }
    } catch (...) {
        chain.push_back(
            {ErrorKind::Internal,
             {.what = "an exception of unknown type", .where = {}, .cause = {}, .hint = kBugHint}});
    }
}

std::string one_line(const ErrorParts& parts) {
    return parts.cause.empty() ? parts.what : parts.what + ": " + parts.cause;
}

/// The report has eight lines, whatever a compiler or a library said.
std::string first_line(const std::string& text) {
    const std::size_t end = text.find('\n');
    if (text.empty()) {
        return "-";
    }
    return end == std::string::npos ? text : text.substr(0, end) + " ... (whole text above)";
}

}  // namespace

Failure describe_failure(const std::exception_ptr& error) {
    if (error == nullptr) {
        return {
            ErrorKind::Internal,
            {.what = "a failure without an exception", .where = {}, .cause = {}, .hint = kBugHint}};
    }
    std::vector<Failure> chain;
    std::optional<std::size_t> first_error;
    collect(error, chain, first_error);
    const std::size_t main = first_error.value_or(0);
    Failure failure = chain[main];
    for (std::size_t i = 0; i < chain.size(); ++i) {
        if (i != main) {
            failure.parts.cause += failure.parts.cause.empty() ? "" : "; ";
            failure.parts.cause += one_line(chain[i].parts);
        }
    }
    return failure;
}

std::vector<std::string> failure_lines(const Failure& failure, const std::string& log_path) {
    const ErrorParts& parts = failure.parts;
    return {
        "",
        failure.kind == ErrorKind::Cancelled ? "The run was interrupted." : "The run failed.",
        fmt::format(
            "kind        {} (exit code {})", to_string(failure.kind), exit_code(failure.kind)),
        "what        " + first_line(parts.what),
        "where       " + first_line(parts.where),
        "cause       " + first_line(parts.cause),
        "what to do  " + first_line(parts.hint),
        "log         " + first_line(log_path),
    };
}

int report_failure(const std::exception_ptr& error, Console& console) noexcept {
    try {
        console.end_blocks();
        const Failure failure = describe_failure(error);
        const ErrorParts& parts = failure.parts;
        for (const std::string* part : {&parts.what, &parts.where, &parts.cause, &parts.hint}) {
            if (part->find('\n') != std::string::npos) {
                console.print(*part);
            }
        }
        for (const std::string& line : failure_lines(failure, console.log_path())) {
            console.print(line);
        }
        console.flush();
        console.tell_failure(error);
        return exit_code(failure.kind);
    } catch (...) {
        // Not even the report could be made: the memory is gone.
        return exit_code(ErrorKind::Device);
    }
}

}  // namespace dflash::report
