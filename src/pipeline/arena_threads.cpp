// SPDX-License-Identifier: Apache-2.0
#include "arena_threads.hpp"

#include <pthread.h>

namespace dflash::pipeline {

ArenaThreads::ArenaThreads(tbb::task_arena& arena)
    : tbb::task_scheduler_observer(arena),
      // Fails where the machine has more cores than a cpu_set_t; then threads stay as they start.
      cores_known_(sched_getaffinity(0, sizeof cores_, &cores_) == 0) {
    observe(true);
}

ArenaThreads::~ArenaThreads() {
    observe(false);
}

void ArenaThreads::on_scheduler_entry(bool is_worker) {
    if (is_worker) {
        adopt_this_thread();
    }
}

void ArenaThreads::adopt_this_thread() const noexcept {
    pthread_setname_np(pthread_self(), "dflash-graph");
    if (cores_known_) {
        // May fail if the process lost cores meanwhile; the graph works on any.
        (void)sched_setaffinity(0, sizeof cores_, &cores_);
    }
}

}  // namespace dflash::pipeline
