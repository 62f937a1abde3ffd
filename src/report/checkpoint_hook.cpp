// SPDX-License-Identifier: Apache-2.0
#include "hook_process.hpp"

#include <dflash/core/activity.hpp>
#include <dflash/core/log.hpp>
#include <dflash/core/text.hpp>
#include <dflash/report/checkpoint_hook.hpp>

#include <chrono>
#include <filesystem>
#include <optional>
#include <pthread.h>
#include <system_error>
#include <utility>

namespace dflash::report {
namespace {

using Clock = std::chrono::steady_clock;

/// How often somebody looks whether a command has ended, or has to be left.
constexpr double kLookEvery = 0.05;

}  // namespace

CheckpointHook::CheckpointHook(std::string command, std::string output)
    : command_(std::move(command)), output_(std::move(output)), thread_([this] { work(); }) {}

CheckpointHook::~CheckpointHook() {
    finish(0);
}

std::string CheckpointHook::command_for(const std::string& command, const std::string& folder) {
    constexpr std::string_view kPlace = "{dir}";
    std::string text;
    std::size_t at = 0;
    for (std::size_t found = command.find(kPlace); found != std::string::npos;
         found = command.find(kPlace, at)) {
        text += command.substr(at, found - at) + shell_word(folder);
        at = found + kPlace.size();
    }
    return text + command.substr(at);
}

void CheckpointHook::saved(std::int64_t step, const std::string& folder) {
    // The command may change its folder, and the program's may be a relative one.
    std::error_code ignored;
    const std::filesystem::path absolute = std::filesystem::absolute(folder, ignored);
    {
        const std::lock_guard lock(mutex_);
        queue_.push_back({step, absolute.empty() ? folder : absolute.string()});
    }
    changed_.notify_all();
}

void CheckpointHook::finish(double seconds) {
    if (!thread_.joinable()) {
        return;
    }
    // What is left is told after the thread has ended, so that it follows what that tells.
    std::deque<Job> left;
    {
        std::unique_lock lock(mutex_);
        const auto idle = [this] { return queue_.empty() && !running_; };
        if (!idle() && seconds > 0) {
            log_info("waiting for hooks.checkpoint ({} to run), at most {}",
                     queue_.size() + (running_ ? 1 : 0),
                     format_seconds(seconds));
        }
        const auto until = Clock::now() + std::chrono::duration<double>(seconds);
        while (!idle() && Clock::now() < until) {
            changed_.wait_for(lock, std::chrono::duration<double>(kLookEvery));
            note_progress();  // this wait has a limit of its own
        }
        stopping_ = true;
        left.swap(queue_);
    }
    changed_.notify_all();
    thread_.join();
    for (const Job& job : left) {
        log_warning("hooks.checkpoint was not run for step {}; by hand: {}",
                    job.step,
                    command_for(command_, job.folder));
    }
}

void CheckpointHook::work() {
    ::pthread_setname_np(::pthread_self(), "dflash-hook");
    std::unique_lock lock(mutex_);
    for (;;) {
        changed_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
        if (stopping_) {
            return;
        }
        // One at a time: uploads that share a link do not end sooner, and keep the order of saves.
        const Job job = std::move(queue_.front());
        queue_.pop_front();
        running_ = true;
        lock.unlock();
        run_command(job);
        lock.lock();
        running_ = false;
        changed_.notify_all();
    }
}

void CheckpointHook::run_command(const Job& job) {
    std::error_code ignored;
    if (!std::filesystem::exists(job.folder, ignored)) {
        log_warning("hooks.checkpoint is not run for step {}: {} was removed before its turn came",
                    job.step,
                    job.folder);
        return;
    }
    const Clock::time_point begin = Clock::now();
    try {
        HookProcess process(
            command_for(command_, job.folder), HookProcess::Input::Nothing, output_);
        std::optional<int> code;
        while (!(code = process.wait(kLookEvery)) && !stopping()) {
        }
        if (!code) {
            log_warning(
                "hooks.checkpoint for step {} still runs as process {} and is left alone; "
                "its output is in {}",
                job.step,
                process.pid(),
                output_);
        } else if (*code != 0) {
            log_warning("hooks.checkpoint failed for step {} ({}); its output is in {}: {}",
                        job.step,
                        describe_exit(*code),
                        output_,
                        last_line_of(output_));
        } else {
            log_info("hooks.checkpoint is done for step {} in {}",
                     job.step,
                     format_seconds(std::chrono::duration<double>(Clock::now() - begin).count()));
        }
    } catch (const std::exception& error) {
        log_warning(
            "hooks.checkpoint could not be started for step {}: {}", job.step, error.what());
    }
}

bool CheckpointHook::stopping() {
    const std::lock_guard lock(mutex_);
    return stopping_;
}

}  // namespace dflash::report
