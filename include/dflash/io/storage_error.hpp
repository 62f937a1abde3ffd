// SPDX-License-Identifier: Apache-2.0
// Failed system calls on files, as errors of the program.
#pragma once

#include <dflash/core/error.hpp>

#include <string>
#include <string_view>

namespace dflash::io {

/// The Error of a failed call on `path`: `what` ("cannot write"), the path as its place, the text
/// of `error_number` (an errno value) as its cause. For a full disk the cause names the free bytes
/// of the file system, and the hint says what to do where that is known (full, read-only, no
/// permission, too many open files).
///
/// `kind` is Storage unless the file is something the user named, where Config or Data fits better.
Error storage_error(std::string_view what,
                    const std::string& path,
                    int error_number,
                    ErrorKind kind = ErrorKind::Storage);

}  // namespace dflash::io
