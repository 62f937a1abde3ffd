// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/check.hpp>
#include <dflash/core/error.hpp>
#include <dflash/core/log.hpp>
#include <dflash/core/text.hpp>
#include <dflash/gpu/host_memory.hpp>
#include <dflash/io/storage_error.hpp>
#include <dflash/train/checkpoint_writer.hpp>
#include <dflash/train/torch_worker.hpp>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fmt/format.h>
#include <memory>
#include <pthread.h>
#include <utility>

namespace dflash::train {
namespace {

constexpr std::chrono::milliseconds kPauseInHurry{1'000};

/// Thrown between two pieces of a save that is not wanted any more.
struct GivenUp {};

at::Tensor make_buffer(std::int64_t num_parameters, const gpu::Device& device) {
    const auto size = static_cast<std::size_t>(num_parameters) * sizeof(float);
    auto memory = std::make_shared<gpu::HostMemory>(size, device);
    if (!memory->reason().empty()) {
        log_warning(
            "{} of host memory for saves cannot be page-locked for {} ({}): copies to it "
            "take longer",
            format_bytes(static_cast<std::int64_t>(size)),
            device.name,
            memory->reason());
    }
    void* const address = memory->bytes().data();
    return at::from_blob(
        address, {num_parameters}, [memory](void*) {}, at::TensorOptions(at::kFloat));
}

/// A failure of the disk, whoever noticed it.
Error disk_error(const std::filesystem::filesystem_error& error) {
    return io::storage_error("cannot use", error.path1().string(), error.code().value());
}

}  // namespace

OptimizerState make_snapshot_buffers(std::int64_t num_parameters, const gpu::Device& device) {
    OptimizerState state;
    state.master = make_buffer(num_parameters, device);
    state.exp_avg = make_buffer(num_parameters, device);
    state.exp_avg_sq = make_buffer(num_parameters, device);
    return state;
}

CheckpointWriter::CheckpointWriter(CheckpointStore& store,
                                   OptimizerState buffers,
                                   FirstError& first_error,
                                   CheckpointWriterOptions options)
    : store_(store),
      first_error_(first_error),
      options_(std::move(options)),
      subscription_(first_error.on_error([this] {
          const std::lock_guard lock(mutex_);
          changed_.notify_all();
      })) {
    checkpoint_.optimizer = std::move(buffers);
    thread_ = std::thread([this] {
        ::pthread_setname_np(::pthread_self(), "dflash-save");
        try {
            set_up_torch({.kind = gpu::DeviceKind::Cpu});
            run();
        } catch (...) {
            first_error_.store(std::current_exception());
            const std::lock_guard lock(mutex_);
            state_ = State::Idle;  // behind the error, so that nobody takes it for a success
            changed_.notify_all();
        }
    });
}

CheckpointWriter::~CheckpointWriter() {
    std::unique_lock lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
    if (!changed_.wait_for(lock, options_.grace, [this] { return state_ != State::Writing; })) {
        given_up_ = true;
    }
    lock.unlock();
    thread_.join();
    if (state_ == State::Waiting) {
        log_warning("step {} was not saved; {}", checkpoint_.progress.step, last_good());
    }
}

bool CheckpointWriter::ready() const {
    const std::lock_guard lock(mutex_);
    return state_ == State::Idle || state_ == State::Waiting;
}

void CheckpointWriter::wait_until_ready() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] {
        return state_ == State::Idle || state_ == State::Waiting || first_error_.failed();
    });
    lock.unlock();
    first_error_.rethrow_if_failed();
}

OptimizerState& CheckpointWriter::begin(const Checkpoint& checkpoint,
                                        std::optional<double> acceptance) {
    const std::lock_guard lock(mutex_);
    DFLASH_CHECK(state_ == State::Idle || state_ == State::Waiting,
                 "a save of step {} begins while that of step {} is under way",
                 checkpoint.progress.step,
                 checkpoint_.progress.step);
    if (state_ == State::Waiting && checkpoint_.progress.step != checkpoint.progress.step) {
        log_info("step {} could not be saved; step {} takes its place",
                 checkpoint_.progress.step,
                 checkpoint.progress.step);
    }
    state_ = State::Filling;
    // All but the buffers, which stay and are filled now.
    OptimizerState buffers = std::move(checkpoint_.optimizer);
    checkpoint_ = checkpoint;
    checkpoint_.optimizer = std::move(buffers);
    acceptance_ = acceptance;
    tries_ = 0;
    last_failure_.reset();
    return checkpoint_.optimizer;
}

void CheckpointWriter::write(double stall_s) {
    const std::lock_guard lock(mutex_);
    DFLASH_CHECK(state_ == State::Filling, "there is no save whose buffers were filled");
    stall_s_ = stall_s;
    state_ = State::Writing;
    changed_.notify_all();
}

std::vector<SaveReport> CheckpointWriter::take_reports() {
    const std::lock_guard lock(mutex_);
    return std::exchange(reports_, {});
}

void CheckpointWriter::finish(std::chrono::duration<double> patience) {
    const Clock::time_point deadline =
        Clock::now() + std::chrono::duration_cast<Clock::duration>(patience);
    std::unique_lock lock(mutex_);
    hurry_ = true;
    next_try_ = Clock::now();
    changed_.notify_all();
    const auto over = [this] { return state_ == State::Idle || first_error_.failed(); };
    // A save that is making its way is waited for; only a disk that fails uses the patience up.
    while (!over()) {
        if (state_ != State::Waiting) {
            changed_.wait(lock);
        } else if (Clock::now() >= deadline) {
            break;
        } else {
            changed_.wait_until(lock, deadline);
        }
    }
    hurry_ = false;
    if (state_ == State::Waiting && !first_error_.failed()) {
        ErrorParts parts = last_failure_->parts();
        parts.what = fmt::format("step {} could not be saved in {} tries over {}: {}",
                                 checkpoint_.progress.step,
                                 tries_,
                                 format_seconds(patience.count()),
                                 parts.what);
        parts.hint = fmt::format("{}. {}", last_good(), parts.hint);
        parts.hint.front() = static_cast<char>(std::toupper(parts.hint.front()));
        state_ = State::Idle;
        throw Error(ErrorKind::Storage, std::move(parts));
    }
    lock.unlock();
    first_error_.rethrow_if_failed();
}

void CheckpointWriter::run() {
    std::unique_lock lock(mutex_);
    for (;;) {
        if (state_ == State::Writing) {
            try_once(lock);
        } else if (stopping_ || first_error_.failed()) {
            return;
        } else if (state_ == State::Waiting) {
            const Clock::time_point until = next_try_;
            if (Clock::now() >= until) {
                state_ = State::Writing;
            } else {
                changed_.wait_until(lock, until);
            }
        } else {
            changed_.wait(lock);
        }
    }
}

void CheckpointWriter::try_once(std::unique_lock<std::mutex>& lock) {
    ++tries_;
    lock.unlock();
    std::optional<Error> failure;
    SaveCost cost;
    try {
        std::optional<Activity::Scope> activity;
        if (options_.activity != nullptr) {
            activity.emplace(*options_.activity, "write step", checkpoint_.progress.step);
        }
        cost = store_.save(checkpoint_, acceptance_, [this] { stop_if_given_up(); });
    } catch (const GivenUp&) {
        lock.lock();
        state_ = State::Idle;
        log_warning("the save of step {} is given up with the run; {}",
                    checkpoint_.progress.step,
                    last_good());
        return;
    } catch (const Error& error) {
        if (error.kind() == ErrorKind::Internal) {
            throw;
        }
        failure = error;
    } catch (const std::filesystem::filesystem_error& error) {
        failure = disk_error(error);
    }
    if (failure) {
        lock.lock();
        failed(*failure);
        return;
    }
    const std::string folder = store_.folder_of(checkpoint_.progress.step);
    if (options_.on_saved && cost.bytes > 0) {
        try {
            options_.on_saved(checkpoint_.progress.step, folder);
        } catch (const std::exception& error) {
            log_warning("after the save of step {}: {}", checkpoint_.progress.step, error.what());
        }
    }
    lock.lock();
    saved(cost);
}

void CheckpointWriter::saved(const SaveCost& cost) {
    if (since_) {
        log_info("the disk can be written again: step {} is saved, after {} of failures",
                 checkpoint_.progress.step,
                 format_seconds(std::chrono::duration<double>(Clock::now() - *since_).count()));
        since_.reset();
    }
    if (cost.bytes > 0) {  // else it was saved before, and perhaps its acceptance added
        reports_.push_back({.progress = checkpoint_.progress,
                            .folder = store_.folder_of(checkpoint_.progress.step),
                            .stall_s = stall_s_,
                            .cost = cost,
                            .tries = tries_});
    }
    state_ = State::Idle;
    changed_.notify_all();
}

void CheckpointWriter::failed(const Error& error) {
    // Doubled with every failure in a row.
    const auto doublings = std::min<std::int64_t>(tries_ - 1, 20);
    const auto pause =
        std::min(options_.first_retry * (std::int64_t{1} << doublings), options_.last_retry);
    // One line an episode; the next comes when the disk works again, or with the end of the run.
    if (!since_) {
        since_ = Clock::now();
        log_warning(
            "step {} cannot be saved: {} Training goes on and the save is tried again, "
            "first in {}; {}",
            checkpoint_.progress.step,
            error.what(),
            format_seconds(std::chrono::duration<double>(pause).count()),
            last_good());
    }
    note_progress();  // tries have a limit of their own
    last_failure_ = error;
    // Somebody waits for the end of the run: no long pauses then.
    next_try_ = Clock::now() + (hurry_ ? std::min(pause, kPauseInHurry) : pause);
    state_ = State::Waiting;
    changed_.notify_all();
}

void CheckpointWriter::stop_if_given_up() const {
    if (given_up_) {
        throw GivenUp{};
    }
}

std::string CheckpointWriter::last_good() const {
    const std::vector<std::int64_t> steps = store_.steps();
    return steps.empty() ? std::string("nothing is saved yet")
                         : fmt::format("the last good save is {}", store_.folder_of(steps.back()));
}

}  // namespace dflash::train
