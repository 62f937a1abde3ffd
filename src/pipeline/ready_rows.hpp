// SPDX-License-Identifier: Apache-2.0
// Where the graph's last node and the training loop meet: rows in order, ready to be taken.
#pragma once

#include <dflash/core/first_error.hpp>
#include <dflash/core/scope.hpp>
#include <dflash/pipeline/stages.hpp>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>

namespace dflash::pipeline {

/// A row with the right to its slot: the slot goes back when the last copy of `slot_return` goes.
struct ReadyRow {
    std::shared_ptr<void> slot_return;
    RowPtr row;
    int slot = -1;
};

/// Filled by the graph, emptied by one thread, which waits.
class ReadyRows : NonCopyable {
  public:
    explicit ReadyRows(const FirstError& first_error) : first_error_(first_error) {}

    /// Adds the next row; once closed, drops it.
    void push(ReadyRow row);

    /// No row will follow.
    void end();

    /// To be called when the run has failed.
    void wake();

    /// Waits for the next row; empty at the end, when closed, and when the run has failed.
    std::optional<ReadyRow> pop();

    /// Drops what is here and what will come. The slots of the dropped rows go back.
    void close();

    double pop_waited_s() const;
    std::int64_t num_popped() const;

  private:
    using Clock = std::chrono::steady_clock;

    const FirstError& first_error_;
    mutable std::mutex mutex_;  // guards: all below
    std::condition_variable changed_;
    std::deque<ReadyRow> rows_;
    bool ended_ = false;
    bool closed_ = false;
    double waited_s_ = 0;                             // of waits that are over
    std::optional<Clock::time_point> waiting_since_;  // of the one that goes on
    std::int64_t num_popped_ = 0;
};

}  // namespace dflash::pipeline
