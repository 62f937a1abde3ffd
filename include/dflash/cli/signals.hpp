// SPDX-License-Identifier: Apache-2.0
// Signals of the operating system as wishes of the user.
#pragma once

#include <dflash/train/stop_signals.hpp>

namespace dflash::cli {

/// Installs the handlers: SIGINT and SIGTERM (and SIGHUP, unless it was ignored at start, as under
/// nohup) ask the run to stop after the step; a second one ends the process at once with 128 +
/// signal. SIGUSR1 asks for a save. SIGPIPE is ignored: a reader of our output that goes away must
/// not end a run. After SIGCONT (Ctrl-Z and fg) the live block begins anew. `signals` must live as
/// long as the process.
void install_signal_handlers(train::StopSignals& signals);

}  // namespace dflash::cli
