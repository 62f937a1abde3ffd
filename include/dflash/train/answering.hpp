// SPDX-License-Identifier: Apache-2.0
// Devices that answer: a worker, a replica of the whole target and a generator on each. Lives only
// as long as there is something to answer, since it takes all of their memory.
#pragma once

#include <dflash/target/generator.hpp>
#include <dflash/train/kernel_start.hpp>
#include <dflash/train/response_source.hpp>
#include <dflash/train/stop_signals.hpp>
#include <dflash/train/whereabouts.hpp>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

namespace dflash::train {

class Watchdog;

struct AnsweringOptions {
    std::vector<gpu::Device> devices;
    std::vector<TokenId> stop_tokens;
    std::int64_t capacity = 1;  ///< tokens of prompt and answer
    std::optional<std::int64_t> batch{};
    CacheSettings cache{};
};

/// Belongs to one thread.
class Answering : NonCopyable {
  public:
    /// Loads the target on all devices. `whereabouts` learns of the workers, `watchdog` of an error
    /// of theirs. Throws Error{Config} with the bytes if the answers do not fit a device.
    Answering(const RunText& text,
              AnsweringOptions options,
              Whereabouts& whereabouts,
              Watchdog& watchdog);
    ~Answering();

    /// Answers at a time, over all devices.
    std::int64_t slots() const;

    /// Tokens a second of full batches, from a step of each device.
    double tokens_per_second();

    /// Answers what the source has, until nothing is left or a stop is asked for: within a step of
    /// the target then, and unfinished answers are dropped. `look` is called five times a second.
    /// Throws the first error of a worker.
    void run(ResponseSource& source,
             const StopSignals& signals,
             const std::function<void()>& look = {});

    /// Tokens of answers since the beginning. From any thread.
    std::int64_t tokens_chosen() const;

    /// Calls a function with the first device's model and generator, on its worker, and waits.
    void with_first(const char* what,
                    const std::function<void(target::TargetModel&, target::Generator&)>& use);

  private:
    void load(const std::string& folder);
    void make_generators();
    std::int64_t slots_on(const gpu::Device& device, Bytes free) const;
    void start(ResponseSource& source);
    bool wait();

    target::TargetConfig config_;
    AnsweringOptions options_;
    FirstError first_error_;
    FirstError::Subscription failure_watch_;
    KernelStart kernels_;
    std::vector<std::unique_ptr<target::TargetModel>> models_;
    std::vector<std::unique_ptr<target::Generator>> generators_;
    std::vector<std::int64_t> slots_;
    std::atomic<bool> stopping_ = false;
    std::mutex mutex_;  // guards: running_
    std::condition_variable ended_;
    std::size_t running_ = 0;
    FirstError::Subscription wake_;
    std::vector<std::unique_ptr<gpu::Worker>> workers_;
};

}  // namespace dflash::train
