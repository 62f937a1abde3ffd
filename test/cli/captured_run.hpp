// SPDX-License-Identifier: Apache-2.0
// The program run inside the test, with what it writes.
#pragma once

#include <string>
#include <vector>

namespace dflash::cli {

struct Outcome {
    int code = -1;
    std::string output;  ///< standard output and standard error, as they came
};

/// Runs the program; `arguments` are those behind its name.
Outcome captured_run(std::vector<std::string> arguments);

}  // namespace dflash::cli
