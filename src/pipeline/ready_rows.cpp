// SPDX-License-Identifier: Apache-2.0
#include "ready_rows.hpp"

#include <chrono>
#include <utility>

namespace dflash::pipeline {

// A dropped row gives its slot back through the graph, so none is destroyed under the lock.

void ReadyRows::push(ReadyRow row) {
    const std::lock_guard lock(mutex_);
    if (!closed_) {
        rows_.push_back(std::move(row));
        changed_.notify_one();
    }
}

void ReadyRows::end() {
    const std::lock_guard lock(mutex_);
    ended_ = true;
    changed_.notify_one();
}

void ReadyRows::wake() {
    const std::lock_guard lock(mutex_);
    changed_.notify_one();
}

std::optional<ReadyRow> ReadyRows::pop() {
    const auto ready = [this] {
        return !rows_.empty() || ended_ || closed_ || first_error_.failed();
    };
    std::unique_lock lock(mutex_);
    if (!ready()) {
        waiting_since_ = Clock::now();
        changed_.wait(lock, ready);
        waited_s_ += std::chrono::duration<double>(Clock::now() - *waiting_since_).count();
        waiting_since_.reset();
    }
    if (rows_.empty() || first_error_.failed()) {
        return std::nullopt;
    }
    ReadyRow row = std::move(rows_.front());
    rows_.pop_front();
    ++num_popped_;
    return row;
}

void ReadyRows::close() {
    std::deque<ReadyRow> dropped;
    const std::lock_guard lock(mutex_);
    closed_ = true;
    dropped.swap(rows_);
}

double ReadyRows::pop_waited_s() const {
    const std::lock_guard lock(mutex_);
    return waiting_since_
               ? waited_s_ + std::chrono::duration<double>(Clock::now() - *waiting_since_).count()
               : waited_s_;
}

std::int64_t ReadyRows::num_popped() const {
    const std::lock_guard lock(mutex_);
    return num_popped_;
}

}  // namespace dflash::pipeline
