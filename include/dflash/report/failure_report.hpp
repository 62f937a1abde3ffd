// SPDX-License-Identifier: Apache-2.0
// The last lines of a run that failed.
#pragma once

#include <dflash/core/error.hpp>

#include <exception>
#include <string>
#include <vector>

namespace dflash::report {

class Console;

/// What is known of an exception: an Error as it is; std::bad_alloc as a device error (the machine
/// has not enough memory), std::filesystem::filesystem_error as a storage error, anything else as
/// an internal one. Of nested exceptions the outermost Error gives the kind and parts, and the
/// others follow in the cause, from outside to inside.
struct Failure {
    ErrorKind kind = ErrorKind::Internal;
    ErrorParts parts;
};

Failure describe_failure(const std::exception_ptr& error);

/// Exactly eight lines: a blank one, a headline, then kind (with the exit code), what, where,
/// cause, what to do, log; "-" where nothing is known. Parts of several lines are cut to the first.
std::vector<std::string> failure_lines(const Failure& failure, const std::string& log_path);

/// Prints the failure (before the eight lines also the parts that are longer than a line), flushes
/// the console, and returns the exit code of the program. Does not throw.
int report_failure(const std::exception_ptr& error, Console& console) noexcept;

}  // namespace dflash::report
