// SPDX-License-Identifier: Apache-2.0
// The first exception of many threads. Every thread function of the program ends in
//     catch (...) { first_error.store(std::current_exception()); }
// and everything that waits for another thread is woken through a subscription, so a failure
// anywhere ends the run with that error and never in a hang.
#pragma once

#include <dflash/core/scope.hpp>

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <mutex>

namespace dflash {

/// Keeps the first error of a run. All members may be called from any thread.
class FirstError : NonCopyable {
  public:
    /// Keeps `error` if it is the first, and then calls all subscribers once, in this thread.
    /// Returns whether it was the first; later ones are dropped, since they follow from the first.
    bool store(std::exception_ptr error) noexcept;

    /// Whether an error was stored. Cheap: one atomic load.
    bool failed() const noexcept { return failed_.load(std::memory_order_acquire); }

    /// The error, or null.
    std::exception_ptr get() const;

    /// Throws the stored error, if there is one.
    void rethrow_if_failed() const;

    /// Ends a subscription when destroyed; after that the subscriber is not running and will not be
    /// called.
    class Subscription : NonCopyable {
      public:
        Subscription(Subscription&& other) noexcept : owner_(other.owner_), id_(other.id_) {
            other.owner_ = nullptr;
        }

        ~Subscription();

      private:
        friend class FirstError;

        Subscription(FirstError* owner, std::uint64_t id) : owner_(owner), id_(id) {}

        FirstError* owner_;
        std::uint64_t id_;
    };

    /// Calls `wake` when the first error is stored, and at once, in this thread, if there is one
    /// already; in a race it may be called twice. `wake` must not throw and must not subscribe or
    /// unsubscribe. Typically it locks and notifies a condition variable.
    [[nodiscard]] Subscription on_error(std::function<void()> wake);

  private:
    mutable std::mutex mutex_;  // guards: error_
    std::exception_ptr error_;
    std::atomic<bool> failed_ = false;
    std::mutex
        subscribers_mutex_;  // guards: subscribers_, next_id_; held while subscribers are called
    std::map<std::uint64_t, std::function<void()>> subscribers_;
    std::uint64_t next_id_ = 0;
};

}  // namespace dflash
