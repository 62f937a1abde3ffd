// SPDX-License-Identifier: Apache-2.0
// What the user asks of a running program. Written by signal handlers, read by the training loop
// between steps.
#pragma once

#include <atomic>

namespace dflash::train {

struct StopSignals {
    std::atomic<int> stop_signal = 0;    ///< the first of SIGINT, SIGTERM, SIGHUP; 0: go on
    std::atomic<bool> save_now = false;  ///< SIGUSR1

    bool stop_requested() const { return stop_signal.load() != 0; }
};

}  // namespace dflash::train
