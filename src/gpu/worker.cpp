// SPDX-License-Identifier: Apache-2.0
#include "pinning.hpp"

#include <dflash/core/check.hpp>
#include <dflash/core/log.hpp>
#include <dflash/gpu/check.hpp>
#include <dflash/gpu/worker.hpp>

#include <algorithm>
#include <pthread.h>

namespace dflash::gpu {

namespace {

void name_current_thread(const Device& device) {
    std::string name = "dflash-" + device.name;
    std::erase(name, ':');
    constexpr std::size_t kMaxName = 15;  // of the kernel
    name.resize(std::min(name.size(), kMaxName));
    pthread_setname_np(pthread_self(), name.c_str());
}

}  // namespace

Worker::Worker(Device device, FirstError& first_error, WorkerOptions options)
    : device_(std::move(device)),
      first_error_(first_error),
      board_(std::make_shared<WorkerBoard>(device_.name)),
      subscription_(first_error.on_error([this] {
          // With the lock held nobody is between looking at FirstError and falling asleep.
          { const std::lock_guard lock(mutex_); }
          wake_.notify_all();
          finished_.notify_all();
      })) {
    // The new thread begins with this lock, so that it finds thread_ assigned.
    const std::lock_guard lock(mutex_);
    thread_ = std::thread([this, options = std::move(options)] { run(options); });
}

Worker::~Worker() {
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
    }
    wake_.notify_all();
    thread_.join();
}

void Worker::post(TaskName name, std::function<void()> task) {
    static_cast<void>(enqueue({name, std::move(task)}));
}

bool Worker::enqueue(Task task) {
    {
        const std::lock_guard lock(mutex_);
        if (stopping_ || first_error_.failed()) {
            return false;
        }
        tasks_.push_back(std::move(task));
        board_->queued.store(tasks_.size(), std::memory_order_relaxed);
    }
    wake_.notify_one();
    return true;
}

void Worker::enqueue_and_wait(Task task) {
    DFLASH_CHECK(!is_current_thread(), "{} would wait for itself", device_.name);
    enum class State { Queued, Running, Done, Abandoned };
    const auto state = std::make_shared<State>(State::Queued);
    auto run = [this, state, run_task = std::move(task.run)]() mutable {
        {
            const std::lock_guard lock(mutex_);
            if (*state == State::Abandoned) {
                return;
            }
            *state = State::Running;
        }
        run_task();
        run_task = nullptr;  // before the caller goes on: the task may own or refer to what is the
                             // caller's
        {
            const std::lock_guard lock(mutex_);
            *state = State::Done;
        }
        finished_.notify_all();
    };
    const bool queued = enqueue({task.name, std::move(run)});
    if (!queued) {
        first_error_.rethrow_if_failed();
        DFLASH_CHECK(queued, "{} is being stopped", device_.name);
    }

    std::unique_lock lock(mutex_);
    finished_.wait(lock, [&] {
        return *state == State::Done || (*state == State::Queued && first_error_.failed());
    });
    if (*state == State::Queued) {
        *state = State::Abandoned;
        lock.unlock();
        first_error_.rethrow_if_failed();
    }
}

std::size_t Worker::load() const {
    const std::lock_guard lock(mutex_);
    return tasks_.size() + (task_began_ ? 1 : 0);
}

double Worker::busy_s() const {
    const std::lock_guard lock(mutex_);
    Clock::duration busy = busy_;
    if (task_began_) {
        busy += Clock::now() - *task_began_;
    }
    return std::chrono::duration<double>(busy).count();
}

void Worker::run(const WorkerOptions& options) {
    { const std::lock_guard lock(mutex_); }
    try {
        const Activity::Scope activity(board_->activity, "start");
        set_up(options);
    } catch (...) {
        first_error_.store(std::current_exception());
    }
    run_tasks();
}

void Worker::set_up(const WorkerOptions& options) {
    name_current_thread(device_);
    if (device_.is_cuda()) {
        check(cudaSetDevice(device_.ordinal));
    }
    if (options.pin) {
        const std::string cores = pin_current_thread(device_);
        log_debug("worker {} {}",
                  device_.name,
                  cores.empty() ? "is not pinned" : "is pinned to processors " + cores);
    }
    if (options.on_start) {
        options.on_start();
    }
}

void Worker::run_tasks() {
    std::unique_lock lock(mutex_);
    for (;;) {
        wake_.wait(lock, [this] { return stopping_ || !tasks_.empty() || first_error_.failed(); });
        if (first_error_.failed()) {
            // Destroyed without the lock: what tasks own may do anything when it goes.
            std::deque<Task> dropped = std::exchange(tasks_, {});
            board_->queued.store(0, std::memory_order_relaxed);
            lock.unlock();
            dropped.clear();
            lock.lock();
            wake_.wait(lock, [this] { return stopping_; });
            return;
        }
        if (tasks_.empty()) {
            return;
        }
        Task task = std::move(tasks_.front());
        tasks_.pop_front();
        board_->queued.store(tasks_.size(), std::memory_order_relaxed);
        task_began_ = Clock::now();
        lock.unlock();
        run_task(std::move(task));
        lock.lock();
        busy_ += Clock::now() - *task_began_;
        task_began_.reset();
    }
}

void Worker::run_task(Task task) noexcept {
    try {
        const Activity::Scope activity(board_->activity, task.name.what, task.name.number);
        task.run();
    } catch (...) {
        first_error_.store(std::current_exception());
    }
    note_progress();
}

}  // namespace dflash::gpu
