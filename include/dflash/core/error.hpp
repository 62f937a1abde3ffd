// SPDX-License-Identifier: Apache-2.0
// Errors of the program: one exception type with a kind that decides the exit code, and a message
// in parts, so that the report of a failed run can say what, where, why and what to do.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace dflash {

/// Who has to act on an error. The exit code of the program follows from it.
enum class ErrorKind {
    Config,     ///< command line, settings, target folder, resume mismatch, plan that does not fit:
                ///< exit 2
    Data,       ///< rows, files and weights that are wrong: exit 3
    Device,     ///< GPU, driver, library, collective: exit 4
    Compile,    ///< a kernel that could not be had: exit 4
    Numeric,    ///< non-finite loss or gradients: exit 5
    Storage,    ///< folder unwritable, disk full, input/output: exit 6
    Internal,   ///< a bug of ours: exit 70
    Cancelled,  ///< interrupted by the user after saving: exit 130 or 143
};

/// Lower-case name of a kind, as it is printed ("configuration", "data", ...).
std::string_view to_string(ErrorKind kind);

/// Exit code of the program for a kind; Cancelled gives 130 (the caller knows the signal).
int exit_code(ErrorKind kind);

/// The parts of a message. `what` says what happened with the value got and the value expected; the
/// others may be empty. No part ends in a full stop.
struct ErrorParts {
    std::string what;   ///< "train.rows_per_step: got 0, expected 1 or more"
    std::string where;  ///< "configs/tiny-cpu.toml:14:1", a path, a worker
    std::string cause;  ///< what a library said
    std::string hint;   ///< what to do
};

/// The exception of this program. what() joins the parts: "WHAT: CAUSE (WHERE). HINT."
class Error : public std::runtime_error {
  public:
    Error(ErrorKind kind, ErrorParts parts);

    ErrorKind kind() const noexcept { return kind_; }

    const ErrorParts& parts() const noexcept { return parts_; }

  private:
    ErrorKind kind_;
    ErrorParts parts_;
};

}  // namespace dflash
