// SPDX-License-Identifier: Apache-2.0
// Collectives over NCCL: a communicator per rank, each used by its rank's worker only, on a stream
// of its own.
//
// Communicators are made without blocking, so an error of another rank ends the wait. A watching
// thread aborts all of them together on the run's first error, and ends the run when a rank does
// not come to a collective in time. Sums are the same bits on every rank and every time, since
// NCCL's choice of algorithm depends on the buffer's size and the machine alone.
#pragma once

#include <dflash/comm/in_process_group.hpp>
#include <dflash/gpu/event.hpp>

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

struct ncclComm;  // of nccl.h

namespace dflash::comm {

/// To be called once, before any thread starts: NVLink multicast (NVLS) stays off unless the user's
/// environment says otherwise, since it fails where the machine's fabric manager does not serve it.
void set_nccl_defaults();

/// NCCL's version: what was compiled against, and what is loaded; "2.28.9".
std::string nccl_build_version();
std::string nccl_loaded_version();

/// Ranks on GPUs of their own. Collectives only queue work: a rank that is late holds up the
/// streams of the others, not their threads.
class NcclGroup final : public ProcessGroup {
  public:
    /// `timeout`: of making the communicators, and of a collective from the first rank's call until
    /// it is done on all. Throws Error{Device} if NCCL cannot start.
    NcclGroup(int num_ranks, FirstError& first_error, std::chrono::milliseconds timeout);

    /// Destroys the communicators, or aborts what does not end within seconds. The workers' streams
    /// must have passed all collectives.
    ~NcclGroup() override;

    int num_ranks() const override { return static_cast<int>(ranks_.size()); }

    /// Throws Error{Device} naming the ranks that did not come in time.
    void join(int rank) override;

    void barrier(int rank) override { threads_.barrier(rank); }

    void all_reduce(int rank, Buffer& buffer, gpu::StreamView stream = {}) override;

    void broadcast(int rank, int root, Buffer& buffer, gpu::StreamView stream = {}) override;

    /// Knows join() as the first collective.
    std::shared_ptr<const CollectiveBoard> board() const override { return board_; }

  private:
    using Clock = std::chrono::steady_clock;

    struct Rank {
        std::mutex mutex;  // guards: communicator, aborted
        ncclComm* communicator = nullptr;
        bool aborted = false;
        std::unique_ptr<gpu::Stream> stream;
        gpu::Event entered;  // what the collective needs is queued on the rank's stream
        gpu::Event left;     // the collective is queued on ours
    };

    /// For the driver's thread that tells when a stream has passed a collective.
    struct DoneNote {
        CollectiveBoard* board;
        int rank;
    };

    template <class Call>
    void collective(int rank, const char* name, gpu::StreamView stream, Call call);
    void wait_until_ready(int rank, const std::string& doing);
    void watch();
    void check_time(Clock::time_point now);
    void check_communicators();
    void abort_all();

    Rank& at(int rank) { return *ranks_[static_cast<std::size_t>(rank)]; }

    FirstError& first_error_;
    std::chrono::milliseconds timeout_;
    InProcessGroup threads_;
    std::vector<char> unique_id_;
    std::vector<std::unique_ptr<Rank>> ranks_;
    std::shared_ptr<CollectiveBoard> board_;
    std::vector<DoneNote> done_notes_;  // [D]

    std::mutex watch_mutex_;  // guards: stopping_
    std::condition_variable wake_;
    bool stopping_ = false;
    // Of the watching thread: the collective that it waits for, and since when.
    std::int64_t waiting_for_ = 0;
    Clock::time_point waiting_since_;
    FirstError::Subscription subscription_;
    std::thread watcher_;
};

}  // namespace dflash::comm
