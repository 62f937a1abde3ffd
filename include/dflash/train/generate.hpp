// SPDX-License-Identifier: Apache-2.0
// dflash generate: rows in, rows with the target's answers out.
#pragma once

#include <dflash/train/settings.hpp>
#include <dflash/train/stop_signals.hpp>

#include <string>

namespace dflash::train {

struct GenerateRequest {
    Settings settings;  ///< run.target, run.data, run.output (the file), run.gpus, generate.*
    bool all = false;   ///< answers that rows have are replaced
    std::string command_line;
};

/// Answers all rows and writes the output, or goes on where another start was ended. Returns 0, or
/// 130 / 143 if a signal ended it: what is done is kept then. Throws Error.
int generate(const GenerateRequest& request, StopSignals& signals);

}  // namespace dflash::train
