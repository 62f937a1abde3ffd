// SPDX-License-Identifier: Apache-2.0
// The threads of the graph's arena. TBB starts a thread when work appears, from whichever thread
// brings the work; when that is a worker pinned to its GPU's cores, the new thread would stay on
// those cores for ever. So each thread that enters the arena gets a name and the cores that the
// process had when the pipeline was made.
#pragma once

#include <oneapi/tbb/task_arena.h>
#include <oneapi/tbb/task_scheduler_observer.h>
#include <sched.h>

namespace dflash::pipeline {

/// Names and unpins the TBB threads that enter `arena`. Must be destroyed before it.
class ArenaThreads final : public tbb::task_scheduler_observer {
  public:
    /// Remembers the cores that the calling thread may use.
    explicit ArenaThreads(tbb::task_arena& arena);
    ~ArenaThreads() override;
    ArenaThreads(const ArenaThreads&) = delete;
    ArenaThreads& operator=(const ArenaThreads&) = delete;

    void on_scheduler_entry(bool is_worker) override;

    /// The same for the calling thread, which is not TBB's.
    void adopt_this_thread() const noexcept;

  private:
    cpu_set_t cores_;
    bool cores_known_;
};

}  // namespace dflash::pipeline
