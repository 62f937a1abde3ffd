// SPDX-License-Identifier: Apache-2.0
// The rows that left the graph for a while: at the target, or at the training loop. Each holds a
// reservation that keeps the graph from ending, and gives it back exactly once: when the row comes
// back, or all together when the run fails. After that a row that still comes back meets a closed
// door, so nobody touches a graph that may be gone.
#pragma once

#include <dflash/core/first_error.hpp>
#include <dflash/core/scope.hpp>
#include <dflash/pipeline/stages.hpp>

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <oneapi/tbb/flow_graph.h>
#include <string>
#include <utility>

namespace dflash::pipeline {

/// A node whose rows come back from outside the graph.
using RowNode = tbb::flow::async_node<RowPtr, RowPtr>;
using RowGateway = RowNode::gateway_type;

/// Keeps the graph from ending while a row is outside.
class WaitLease {
  public:
    explicit WaitLease(RowGateway& gateway) : gateway_(&gateway) { gateway.reserve_wait(); }

    WaitLease(WaitLease&& other) noexcept : gateway_(std::exchange(other.gateway_, nullptr)) {}

    WaitLease& operator=(WaitLease&&) = delete;

    ~WaitLease() {
        if (gateway_ != nullptr) {
            gateway_->release_wait();
        }
    }

    void put(const RowPtr& row) { gateway_->try_put(row); }

  private:
    RowGateway* gateway_;
};

/// Shared by the graph and by everyone who may bring a row back; thread-safe.
class RowsInFlight : NonCopyable {
  public:
    /// `place` for messages: where the rows are. `on_leave` runs for each row that comes back, in
    /// the thread that brings it, while the graph still waits for it.
    RowsInFlight(FirstError& first_error, std::string place, std::function<void()> on_leave)
        : first_error_(first_error), place_(std::move(place)), on_leave_(std::move(on_leave)) {}

    /// Lets a row out of the graph; false, and nothing happened, if the run has failed.
    bool enter(std::int64_t row_index, RowGateway& gateway);

    /// Puts a row back into the graph. Does nothing if closed; a row that is not here (it came back
    /// twice) is an internal error, which goes to FirstError.
    void leave(const RowPtr& row) noexcept;

    /// Gives all reservations back, and lets no row in or out from now on.
    void close() noexcept;

  private:
    FirstError& first_error_;  // may be gone once closed
    std::string place_;
    std::function<void()> on_leave_;
    std::mutex mutex_;  // guards: leases_, closed_
    std::map<std::int64_t, WaitLease> leases_;
    bool closed_ = false;
};

}  // namespace dflash::pipeline
