// SPDX-License-Identifier: Apache-2.0
// For tests only: makes any part of a run fail or hang at a chosen place. Everything that a run
// tells of itself (Activity) is such a place, so what can be named in a report can be broken.
#pragma once

#include <dflash/core/error.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dflash::train {

struct Fault {
    std::optional<ErrorKind> kind;       ///< of the error that is thrown; none: the thread hangs
    std::string what;                    ///< "capture row"
    std::optional<std::int64_t> number;  ///< none: the first time
    std::optional<std::string> who;      ///< "cpu1"; none: whoever comes first
};

/// Reads faults, separated by semicolons: "hang capture row 3; storage save step 2 on loop". The
/// first word is "hang" or the kind of an error. Throws Error{Config}.
std::vector<Fault> parse_faults(std::string_view text);

/// The text of the error that a fault throws.
std::string fault_text(const Fault& fault);

/// Replaces the faults of this process; none: nothing is observed any more. Between runs only.
void set_faults(std::vector<Fault> faults);

/// set_faults() with what DFLASH_TEST_FAULTS says, if it is set.
void set_faults_from_environment();

}  // namespace dflash::train
