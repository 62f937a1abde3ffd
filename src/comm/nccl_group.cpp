// SPDX-License-Identifier: Apache-2.0
#include <dflash/comm/nccl_group.hpp>
#include <dflash/core/check.hpp>
#include <dflash/core/error.hpp>
#include <dflash/core/log.hpp>
#include <dflash/gpu/check.hpp>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nccl.h>

namespace dflash::comm {
namespace {

using namespace std::chrono_literals;

constexpr auto kPollInterval = 200us;  // of calls under way
constexpr auto kWatchInterval = 50ms;  // of the watching thread
constexpr auto kDestroyTimeout = 5s;   // NCCL's finalisation has been seen to hang

[[noreturn]] void fail(const std::string& doing, ncclResult_t result, ncclComm_t communicator) {
    std::string cause = ncclGetErrorString(result);
    if (const char* detail = ncclGetLastError(communicator); detail != nullptr && *detail != 0) {
        cause += fmt::format("; {}", detail);
    }
    throw Error(ErrorKind::Device,
                {.what = fmt::format("NCCL failed in {}", doing),
                 .where = {},
                 .cause = std::move(cause),
                 .hint = "Run with NCCL_DEBUG=WARN for its own report"});
}

void check_nccl(const std::string& doing, ncclResult_t result, ncclComm_t communicator) {
    if (result != ncclSuccess && result != ncclInProgress) {
        fail(doing, result, communicator);
    }
}

std::string version_text(int code) {
    return fmt::format("{}.{}.{}", code / 10000, code / 100 % 100, code % 100);
}

}  // namespace

void set_nccl_defaults() {
    ::setenv("NCCL_NVLS_ENABLE", "0", /*overwrite=*/0);
}

std::string nccl_build_version() {
    return version_text(NCCL_VERSION_CODE);
}

std::string nccl_loaded_version() {
    int code = 0;
    check_nccl("ncclGetVersion", ncclGetVersion(&code), nullptr);
    return version_text(code);
}

NcclGroup::NcclGroup(int num_ranks, FirstError& first_error, std::chrono::milliseconds timeout)
    : first_error_(first_error),
      timeout_(timeout),
      threads_(num_ranks, first_error),
      unique_id_(sizeof(ncclUniqueId)),
      ranks_(narrow<std::size_t>(num_ranks)),
      board_(std::make_shared<CollectiveBoard>(num_ranks)),
      subscription_(first_error.on_error([this] {
          { const std::lock_guard lock(watch_mutex_); }
          wake_.notify_all();
      })) {
    for (int rank = 0; rank < num_ranks; ++rank) {
        done_notes_.push_back({board_.get(), rank});
    }
    if (nccl_loaded_version() != nccl_build_version()) {
        throw Error(ErrorKind::Device,
                    {.what = fmt::format("NCCL is not the one of the build: got {}, expected {}",
                                         nccl_loaded_version(),
                                         nccl_build_version()),
                     .where = "libnccl",
                     .cause = {},
                     .hint = "Look for another NCCL in LD_LIBRARY_PATH or LD_PRELOAD, or build "
                             "dflash again"});
    }
    ncclUniqueId id;
    check_nccl("ncclGetUniqueId", ncclGetUniqueId(&id), nullptr);
    std::copy_n(id.internal, sizeof id.internal, unique_id_.begin());
}

NcclGroup::~NcclGroup() {
    {
        const std::lock_guard lock(watch_mutex_);
        stopping_ = true;
    }
    wake_.notify_all();
    if (watcher_.joinable()) {
        watcher_.join();
    }
    if (first_error_.failed()) {
        abort_all();
        return;
    }
    // Finalising is a collective of its own: all are asked before any is waited for.
    for (const auto& rank : ranks_) {
        if (rank && rank->communicator != nullptr && !rank->aborted) {
            ncclCommFinalize(rank->communicator);
        }
    }
    const Clock::time_point deadline = Clock::now() + kDestroyTimeout;
    for (const auto& rank : ranks_) {
        if (!rank || rank->communicator == nullptr || rank->aborted) {
            continue;
        }
        ncclResult_t state = ncclInProgress;
        while (ncclCommGetAsyncError(rank->communicator, &state) == ncclSuccess &&
               state == ncclInProgress && Clock::now() < deadline) {
            std::this_thread::sleep_for(kPollInterval);
        }
        if (state == ncclSuccess) {
            ncclCommDestroy(rank->communicator);
        } else {
            log_warning("an NCCL communicator did not end by itself ({}); aborted",
                        ncclGetErrorString(state));
            ncclCommAbort(rank->communicator);
        }
        rank->communicator = nullptr;
    }
}

void NcclGroup::join(int rank) {
    const CollectiveScope scope(*board_, rank, "join");
    auto state = std::make_unique<Rank>();
    state->stream = std::make_unique<gpu::Stream>();
    ranks_[static_cast<std::size_t>(rank)] = std::move(state);
    // All are here, or the run has failed: the rendezvous of NCCL itself does not look at errors.
    threads_.barrier(rank);

    Rank& own = at(rank);
    const std::string doing = fmt::format("making the communicator of rank {}", rank);
    {
        ncclUniqueId id;
        std::copy(unique_id_.begin(), unique_id_.end(), id.internal);
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        config.blocking = 0;
        const std::lock_guard lock(own.mutex);
        check_nccl(doing,
                   ncclCommInitRankConfig(&own.communicator, num_ranks(), id, rank, &config),
                   own.communicator);
    }
    wait_until_ready(rank, doing);
    threads_.barrier(rank);
    if (rank == 0) {
        watcher_ = std::thread([this] { watch(); });
    }
    threads_.barrier(rank);
}

void NcclGroup::all_reduce(int rank, Buffer& buffer, gpu::StreamView stream) {
    collective(rank, "all_reduce", stream, [&](const Rank& own) {
        return ncclAllReduce(buffer.data(),
                             buffer.data(),
                             buffer.size(),
                             ncclFloat32,
                             ncclSum,
                             own.communicator,
                             own.stream->view().handle());
    });
}

void NcclGroup::broadcast(int rank, int root, Buffer& buffer, gpu::StreamView stream) {
    DFLASH_CHECK(root >= 0 && root < num_ranks(), "root {} of {}", root, num_ranks());
    collective(rank, "broadcast", stream, [&](const Rank& own) {
        return ncclBroadcast(buffer.data(),
                             buffer.data(),
                             buffer.size(),
                             ncclFloat32,
                             root,
                             own.communicator,
                             own.stream->view().handle());
    });
}

template <class Call>
void NcclGroup::collective(int rank, const char* name, gpu::StreamView stream, Call call) {
    DFLASH_CHECK(rank >= 0 && rank < num_ranks(), "rank {} of {}", rank, num_ranks());
    first_error_.rethrow_if_failed();
    Rank& own = at(rank);
    const gpu::StreamView ours = own.stream->view();
    own.entered.record(stream);
    own.entered.wait(ours);
    board_->enter(rank, name);
    const std::string doing = fmt::format("{} {} of rank {}", name, board_->started(rank), rank);
    {
        const std::lock_guard lock(own.mutex);
        if (!own.aborted) {
            check_nccl(doing, call(own), own.communicator);
        }
    }
    wait_until_ready(rank, doing);
    gpu::check(cudaLaunchHostFunc(
        ours.handle(),
        [](void* data) {
            const auto* note = static_cast<const DoneNote*>(data);
            note->board->leave(note->rank);
        },
        &done_notes_[static_cast<std::size_t>(rank)]));
    own.left.record(ours);
    own.left.wait(stream);
}

/// Waits until NCCL has taken the call, which it may do behind our back, or the run has failed.
void NcclGroup::wait_until_ready(int rank, const std::string& doing) {
    Rank& own = at(rank);
    const Clock::time_point deadline = Clock::now() + timeout_;
    while (true) {
        first_error_.rethrow_if_failed();
        {
            const std::lock_guard lock(own.mutex);
            if (!own.aborted) {
                ncclResult_t state = ncclSuccess;
                check_nccl(
                    doing, ncclCommGetAsyncError(own.communicator, &state), own.communicator);
                check_nccl(doing, state, own.communicator);
                if (state == ncclSuccess) {
                    return;
                }
            }
        }
        if (Clock::now() > deadline) {
            throw Error(ErrorKind::Device,
                        {.what = fmt::format("NCCL is not done with {} after {} s",
                                             doing,
                                             std::chrono::duration<double>(timeout_).count()),
                         .where = {},
                         .cause = {},
                         .hint = "Run with NCCL_DEBUG=INFO for its own report"});
        }
        std::this_thread::sleep_for(kPollInterval);
    }
}

void NcclGroup::watch() {
    waiting_since_ = Clock::now();
    std::unique_lock lock(watch_mutex_);
    while (!stopping_ && !first_error_.failed()) {
        wake_.wait_for(lock, kWatchInterval, [&] { return stopping_ || first_error_.failed(); });
        lock.unlock();
        try {
            check_communicators();
            check_time(Clock::now());
        } catch (...) {
            first_error_.store(std::current_exception());
        }
        lock.lock();
    }
    lock.unlock();
    if (first_error_.failed()) {
        abort_all();
    }
}

void NcclGroup::check_communicators() {
    for (int rank = 0; rank < num_ranks(); ++rank) {
        Rank& own = at(rank);
        const std::lock_guard lock(own.mutex);
        ncclResult_t state = ncclSuccess;
        if (!own.aborted && ncclCommGetAsyncError(own.communicator, &state) == ncclSuccess) {
            check_nccl(fmt::format("a collective of rank {}", rank), state, own.communicator);
        }
    }
}

/// The oldest collective that is not done on all ranks, once any rank has called it.
void NcclGroup::check_time(Clock::time_point now) {
    const std::optional<OpenCollective> open = board_->open();
    if (!open || open->number != waiting_for_) {
        waiting_for_ = open ? open->number : 0;
        waiting_since_ = now;
        return;
    }
    if (now - waiting_since_ < timeout_) {
        return;
    }
    throw Error(ErrorKind::Device,
                {.what = fmt::format("a collective did not end within {} s: {}",
                                     std::chrono::duration<double>(timeout_).count(),
                                     open->text()),
                 .where = {},
                 .cause = {},
                 .hint = "A drafter hangs or a link is down; NCCL_DEBUG=INFO tells more"});
}

void NcclGroup::abort_all() {
    for (const auto& rank : ranks_) {
        if (!rank) {
            continue;
        }
        const std::lock_guard lock(rank->mutex);
        if (rank->communicator != nullptr && !rank->aborted) {
            rank->aborted = true;
            ncclCommAbort(rank->communicator);
            rank->communicator = nullptr;
        }
    }
}

}  // namespace dflash::comm
