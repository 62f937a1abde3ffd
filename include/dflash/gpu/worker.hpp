// SPDX-License-Identifier: Apache-2.0
// One thread per logical device. All work on a device, and all CUDA calls for it, are tasks of its
// worker; nothing else ever sets a current device. A task never waits for another task of its own
// worker.
#pragma once

#include <dflash/core/activity.hpp>
#include <dflash/core/first_error.hpp>
#include <dflash/gpu/device.hpp>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <type_traits>
#include <utility>

namespace dflash::gpu {

struct WorkerOptions {
    /// Runs first on the worker's thread, after the device is current: thread-local state of
    /// libraries above this layer (Torch's thread count, stream, grad mode). Errors go to
    /// FirstError.
    std::function<void()> on_start;
    /// Pins the thread to the cores near its GPU, or CPU device i to core i. Where the process may
    /// use fewer cores than the list has devices, threads are never pinned. Pin only after TBB has
    /// started, or TBB inherits the mask.
    bool pin = true;
};

/// What a task is called in reports: {"capture row", 17}. `what` is a literal.
struct TaskName {
    TaskName() = default;

    TaskName(const char* text, std::int64_t n = Activity::kNoNumber) : what(text), number(n) {}

    const char* what = "a task";
    std::int64_t number = Activity::kNoNumber;
};

/// What a worker does, for everybody to read at any time without a lock; lives on when the worker
/// has gone.
struct WorkerBoard {
    explicit WorkerBoard(const std::string& device_name) : activity(device_name) {}

    Activity activity;                    ///< the task under way
    std::atomic<std::size_t> queued = 0;  ///< tasks behind it
};

/// Owns the thread, which is named after the device ("dflash-cuda0", "dflash-cpu1"). Tasks run one
/// at a time in the order they were posted. post() and call() may be used from any thread. Starting
/// never throws for the device's sake: what fails on the new thread goes to FirstError.
class Worker : NonCopyable {
  public:
    Worker(Device device, FirstError& first_error, WorkerOptions options = {});
    ~Worker();  ///< runs what is queued (drops it if the run failed), then joins

    const Device& device() const { return device_; }

    /// Queues a task and returns at once. An exception of the task goes to FirstError. After a
    /// failure of the run, and after the destructor started, tasks are dropped.
    void post(TaskName name, std::function<void()> task);

    void post(std::function<void()> task) { post({}, std::move(task)); }

    /// Queues a task, waits for it and returns its result; rethrows its exception, or the run's
    /// first error if that comes before the task was started. A task that was started is always
    /// waited for until it is destroyed, so it may refer to what the caller owns. Not from the
    /// worker's own thread (internal error).
    template <class F>
    auto call(TaskName name, F&& task) -> std::invoke_result_t<F&> {
        using Result = std::invoke_result_t<F&>;
        auto packaged = std::make_shared<std::packaged_task<Result()>>(std::forward<F>(task));
        std::future<Result> future = packaged->get_future();
        enqueue_and_wait({name, [packaged] { (*packaged)(); }});
        return future.get();
    }

    template <class F>
    auto call(F&& task) -> std::invoke_result_t<F&> {
        return call(TaskName(), std::forward<F>(task));
    }

    bool is_current_thread() const { return std::this_thread::get_id() == thread_.get_id(); }

    /// Tasks queued or running.
    std::size_t load() const;

    /// Seconds spent in tasks since the start, the running one included.
    double busy_s() const;

    std::shared_ptr<const WorkerBoard> board() const { return board_; }

    /// For a task that says in more detail what it does, or that it waits. Only from a task.
    Activity& activity() { return board_->activity; }

  private:
    using Clock = std::chrono::steady_clock;

    struct Task {
        TaskName name;
        std::function<void()> run;
    };

    void run(const WorkerOptions& options);
    void set_up(const WorkerOptions& options);
    void run_tasks();
    void run_task(Task task) noexcept;
    [[nodiscard]] bool enqueue(Task task);
    void enqueue_and_wait(Task task);

    Device device_;
    FirstError& first_error_;
    std::shared_ptr<WorkerBoard> board_;
    mutable std::mutex mutex_;  // guards: tasks_, stopping_, task_began_, busy_, states of calls
    std::condition_variable wake_;      // the worker waits for tasks
    std::condition_variable finished_;  // callers wait for their task
    std::deque<Task> tasks_;
    bool stopping_ = false;
    std::optional<Clock::time_point> task_began_;  // of the running task
    Clock::duration busy_{};                       // of finished tasks
    FirstError::Subscription subscription_;
    std::thread thread_;
};

}  // namespace dflash::gpu
