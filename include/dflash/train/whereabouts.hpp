// SPDX-License-Identifier: Apache-2.0
// Who waits for whom: what every part of a run does at the moment, in one place.
#pragma once

#include <dflash/comm/collective_board.hpp>
#include <dflash/core/activity.hpp>
#include <dflash/gpu/worker.hpp>
#include <dflash/pipeline/pipeline_board.hpp>

#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace dflash::train {

/// A worker, its part in the run, and the drafters' rank that it computes for, if any.
struct WatchedWorker {
    std::string role;  ///< "target 0", "drafter 1", "target 0 + drafter 0"
    std::optional<int> rank;
    std::shared_ptr<const gpu::WorkerBoard> board;
};

struct Roles;

/// A worker with the parts that the plan gives its device.
WatchedWorker watched_worker(const Roles& roles, const gpu::Worker& worker);

struct Picture {
    /// A line for every worker, node, slot, collective and thread.
    std::vector<std::string> lines;
    /// Parts that work on one thing since `stalled_s` or longer and wait for nobody, the likeliest
    /// first: "cpu1 (drafter 0): train row 17, for 301 s".
    std::vector<std::string> suspects;
};

/// Made before anything of the run, told of the parts as they are made, and gone after all of them.
class Whereabouts : NonCopyable {
  public:
    /// The thread that runs the training loop.
    Activity& loop() { return loop_; }

    const Activity& loop() const { return loop_; }

    /// A thread of its own, such as the one that writes checkpoints.
    Activity& add_thread(std::string name);

    void add_worker(WatchedWorker worker);
    void set_collectives(std::shared_ptr<const comm::CollectiveBoard> board);
    void set_pipeline(std::shared_ptr<const pipeline::PipelineBoard> board);

    /// Forgets all parts but the loop: they are gone, and others will come. What add_thread() gave
    /// must not be used any more.
    void forget_parts();

    /// Never blocks: what somebody just adds is left out. From any thread.
    Picture picture(double stalled_s) const;

  private:
    mutable std::mutex mutex_;  // guards: all below but loop_
    Activity loop_{"loop"};
    std::deque<Activity> threads_;
    std::vector<WatchedWorker> workers_;
    std::shared_ptr<const comm::CollectiveBoard> collectives_;
    std::shared_ptr<const pipeline::PipelineBoard> pipeline_;
};

}  // namespace dflash::train
