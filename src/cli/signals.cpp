// SPDX-License-Identifier: Apache-2.0
#include <dflash/cli/signals.hpp>
#include <dflash/report/console.hpp>

#include <atomic>
#include <csignal>
#include <unistd.h>

namespace dflash::cli {
namespace {

// A handler has no argument of ours, so the object it writes to is reached through a global.
std::atomic<train::StopSignals*> installed = nullptr;
static_assert(std::atomic<train::StopSignals*>::is_always_lock_free &&
              std::atomic<int>::is_always_lock_free);

void on_stop(int signal) {
    train::StopSignals* signals = installed.load();
    int none = 0;
    if (signals == nullptr || !signals->stop_signal.compare_exchange_strong(none, signal)) {
        report::reset_colours();
        ::_exit(128 + signal);
    }
}

void on_save(int /*signal*/) {
    if (train::StopSignals* signals = installed.load()) {
        signals->save_now = true;
    }
}

void on_continue(int /*signal*/) {
    report::note_continued();
}

void handle(int signal, void (*handler)(int)) {
    struct sigaction action = {};
    action.sa_handler = handler;
    action.sa_flags = SA_RESTART;
    sigemptyset(&action.sa_mask);
    sigaction(signal, &action, nullptr);
}

}  // namespace

void install_signal_handlers(train::StopSignals& signals) {
    installed = &signals;
    handle(SIGINT, on_stop);
    handle(SIGTERM, on_stop);
    struct sigaction hangup = {};
    sigaction(SIGHUP, nullptr, &hangup);
    if (hangup.sa_handler != SIG_IGN) {
        handle(SIGHUP, on_stop);
    }
    handle(SIGUSR1, on_save);
    handle(SIGCONT, on_continue);
    handle(SIGPIPE, SIG_IGN);
}

}  // namespace dflash::cli
