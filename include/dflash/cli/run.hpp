// SPDX-License-Identifier: Apache-2.0
// The program: parses the command line, runs a command, turns errors into messages and exit codes.
#pragma once

namespace dflash::cli {

/// Runs the program and returns its exit code: 0 done, 2 command line or configuration, 3 data, 4
/// device, library or compile failure, 5 numeric failure, 6 storage, 70 internal bug, 130 / 143
/// interrupted after saving. Does not throw.
int run(int argc, char** argv);

}  // namespace dflash::cli
