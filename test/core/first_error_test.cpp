// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/error.hpp>
#include <dflash/core/first_error.hpp>

#include <atomic>
#include <condition_variable>
#include <doctest/doctest.h>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace dflash {
namespace {

std::exception_ptr error_of(const std::string& text) {
    return std::make_exception_ptr(std::runtime_error(text));
}

std::string message_of(const FirstError& error) {
    try {
        error.rethrow_if_failed();
    } catch (const std::exception& exception) {
        return exception.what();
    }
    return {};
}

TEST_SUITE_BEGIN("core.first_error");

TEST_CASE("the first error is kept, later ones are dropped") {
    FirstError error;
    CHECK_FALSE(error.failed());
    CHECK(error.get() == nullptr);
    error.rethrow_if_failed();
    CHECK(error.store(error_of("first")));
    CHECK_FALSE(error.store(error_of("second")));
    CHECK(error.failed());
    CHECK(error.get() != nullptr);
    CHECK(message_of(error) == "first");
}

TEST_CASE("a failure without an exception is an error all the same") {
    FirstError error;
    CHECK(error.store(nullptr));
    CHECK(error.failed());
    CHECK_THROWS_AS(error.rethrow_if_failed(), Error);
}

TEST_CASE("subscribers are woken once, after the error can be seen") {
    FirstError error;
    int woken = 0;
    const auto subscription = error.on_error([&] {
        ++woken;
        CHECK(error.failed());
        CHECK(error.get() != nullptr);
    });
    CHECK(woken == 0);
    error.store(error_of("first"));
    CHECK(woken == 1);
    error.store(error_of("second"));
    CHECK(woken == 1);
    int late = 0;
    const auto after = error.on_error([&] { ++late; });
    CHECK(late == 1);
}

TEST_CASE("an ended or moved subscription is not called, or once") {
    FirstError error;
    int ended = 0;
    int moved = 0;
    {
        const auto subscription = error.on_error([&] { ++ended; });
    }
    std::vector<FirstError::Subscription> kept;
    {
        auto subscription = error.on_error([&] { ++moved; });
        kept.push_back(std::move(subscription));
    }
    error.store(error_of("x"));
    CHECK(ended == 0);
    CHECK(moved == 1);
}

TEST_CASE("of many threads exactly one is first, and every waiter is woken") {
    for (int round = 0; round < 50; ++round) {
        FirstError error;
        std::mutex mutex;
        std::condition_variable changed;
        std::atomic<int> first{0};
        std::atomic<int> woken{0};
        std::vector<std::thread> threads;
        for (int t = 0; t < 3; ++t) {
            threads.emplace_back([&] {
                const auto subscription = error.on_error([&] {
                    const std::lock_guard lock(mutex);
                    changed.notify_all();
                });
                std::unique_lock lock(mutex);
                changed.wait(lock, [&] { return error.failed(); });
                ++woken;
            });
        }
        for (int t = 0; t < 3; ++t) {
            threads.emplace_back([&, t] {
                if (error.store(error_of(std::to_string(t)))) {
                    first = t + 1;
                }
            });
        }
        for (std::thread& thread : threads) {
            thread.join();
        }
        CHECK(woken == 3);
        CHECK(message_of(error) == std::to_string(first - 1));
    }
}

TEST_SUITE_END();

}  // namespace
}  // namespace dflash
