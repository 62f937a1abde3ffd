// SPDX-License-Identifier: Apache-2.0
// Several replicas of the target behind one stage: each row goes to the first free one. Which
// replica computes a row follows from timing, what comes out of it does not.
#pragma once

#include <dflash/core/first_error.hpp>
#include <dflash/core/scope.hpp>
#include <dflash/pipeline/stages.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace dflash::pipeline {

/// One copy of the target.
struct Replica {
    /// As TargetStage::start; one call at a time per replica, from any thread. It may call `done`
    /// before it returns.
    std::function<void(RowPtr row, int slot, std::function<void()> done)> start;
    int capacity = 1;  ///< rows that it takes at the same time; more than 1 to prefetch
};

/// What a replica has done so far, and does now.
struct ReplicaStats {
    int rows_in_flight = 0;  ///< 0: idle
    std::int64_t rows_done = 0;
    double idle_s = 0;  ///< seconds without a row since the dispatcher was made
};

/// A row goes to the free replica with the fewest rows in flight, of equals to the first one; while
/// there is none it queues, first come first served. All members from any thread.
class ReplicaDispatcher final : public TargetStage, NonCopyable {
  public:
    /// What a replica's `start` throws goes to `first_error`, which must outlive all `done` calls;
    /// after an error there, no row is started any more.
    ReplicaDispatcher(std::vector<Replica> replicas, FirstError& first_error);
    ~ReplicaDispatcher() override;

    void start(RowPtr row, int slot, std::function<void()> done) override;
    int num_replicas() const override;

    /// Rows that wait for a replica.
    std::int64_t num_queued() const;

    std::vector<ReplicaStats> stats() const;

  private:
    class State;
    std::shared_ptr<State> state_;  // shared with the `done` calls that are out
};

}  // namespace dflash::pipeline
