// SPDX-License-Identifier: Apache-2.0
// Checkpoints written while training goes on: the optimizer's tensors are copied into buffers on
// the host, and a thread of its own brings them to the disk. A disk that cannot be written is no
// error of the run: the writer tries again, and what was saved last stands.
#pragma once

#include <dflash/core/activity.hpp>
#include <dflash/core/first_error.hpp>
#include <dflash/gpu/device.hpp>
#include <dflash/train/checkpoint.hpp>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace dflash::train {

/// Buffers for the optimizer's state of `num_parameters`, on the host, page-locked for a GPU; 12
/// bytes a parameter. On the worker of `device`. Logs a line where they cannot be page-locked.
OptimizerState make_snapshot_buffers(std::int64_t num_parameters, const gpu::Device& device);

/// A checkpoint that was saved.
struct SaveReport {
    Progress progress;
    std::string folder;
    double stall_s = 0;  ///< that the drafter did not train because of it
    SaveCost cost;
    std::int64_t tries = 1;
};

struct CheckpointWriterOptions {
    /// Called on the writer's thread when a checkpoint is in its place; nothing else is written
    /// before it returns. What it throws is logged.
    std::function<void(std::int64_t step, const std::string& folder)> on_saved;
    Activity* activity = nullptr;                  ///< what the writer's thread does, for reports
    std::chrono::milliseconds first_retry{5'000};  ///< doubled after every failure
    std::chrono::milliseconds last_retry{60'000};  ///< up to this
    std::chrono::milliseconds grace{5'000};  ///< for a save under way when the run ends by an error
};

/// Owns the thread. One save at a time: begin(), fill the buffers, write(). Members may be called
/// from any thread; a save is begun by one thread at a time.
class CheckpointWriter : NonCopyable {
  public:
    /// `store` and `first_error` must outlive the writer. Errors that are no error of the disk go
    /// to `first_error`.
    CheckpointWriter(CheckpointStore& store,
                     OptimizerState buffers,
                     FirstError& first_error,
                     CheckpointWriterOptions options = {});

    /// A save under way gets the grace to end; then it is given up, with a line.
    ~CheckpointWriter();

    /// Whether a save may begin now: none is being written, or the last one waits for a disk, in
    /// which case the newer takes its place.
    bool ready() const;

    /// Waits until ready(). Throws the run's first error.
    void wait_until_ready();

    /// Begins a save and returns the buffers, which the caller fills with the state of
    /// `checkpoint`, whose own tensors are not used. Requires ready().
    OptimizerState& begin(const Checkpoint& checkpoint, std::optional<double> acceptance);

    /// Hands the filled buffers to the thread. `stall_s`: for the report.
    void write(double stall_s);

    /// What was written since the last call.
    std::vector<SaveReport> take_reports();

    /// Waits for the save that was begun. While the disk cannot be written it is tried again for
    /// `patience`. Throws Error{Storage} naming the last checkpoint that stands if that was not
    /// enough, and the run's first error.
    void finish(std::chrono::duration<double> patience);

  private:
    using Clock = std::chrono::steady_clock;

    enum class State {
        Idle,
        Filling,  // between begin() and write()
        Writing,
        Waiting,  // for the next try
    };

    void run();
    void try_once(std::unique_lock<std::mutex>& lock);
    void saved(const SaveCost& cost);
    void failed(const Error& error);
    void stop_if_given_up() const;
    std::string last_good() const;

    CheckpointStore& store_;
    FirstError& first_error_;
    CheckpointWriterOptions options_;
    mutable std::mutex mutex_;  // guards all below; not held while files are written
    std::condition_variable changed_;
    State state_ = State::Idle;
    Checkpoint checkpoint_;
    std::optional<double> acceptance_;
    double stall_s_ = 0;
    std::int64_t tries_ = 0;                  // of this save
    std::optional<Clock::time_point> since_;  // when the disk began to fail
    std::optional<Error> last_failure_;       // of this save
    Clock::time_point next_try_;
    bool hurry_ = false;     // finish() waits: no pause before the next try
    bool stopping_ = false;  // no new try
    std::atomic<bool> given_up_ = false;
    std::vector<SaveReport> reports_;
    FirstError::Subscription subscription_;
    std::thread thread_;
};

}  // namespace dflash::train
