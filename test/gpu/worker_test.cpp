// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/error.hpp>
#include <dflash/gpu/worker.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <doctest/doctest.h>
#include <iterator>
#include <memory>
#include <pthread.h>
#include <sched.h>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace dflash::gpu {
namespace {

using namespace std::chrono_literals;

Device cpu_device(int i, int list_size = 1) {
    return {.kind = DeviceKind::Cpu,
            .position = i,
            .ordinal = i,
            .name = "cpu:" + std::to_string(i),
            .list_size = list_size};
}

void store(FirstError& first_error, const std::string& text) {
    first_error.store(std::make_exception_ptr(std::runtime_error(text)));
}

/// The processors that the calling thread may use.
std::set<std::size_t> processors_of_thread() {
    cpu_set_t mask;
    CPU_ZERO(&mask);
    pthread_getaffinity_np(pthread_self(), sizeof(mask), &mask);
    std::set<std::size_t> processors;
    for (std::size_t i = 0; i < CPU_SETSIZE; ++i) {
        if (CPU_ISSET(i, &mask)) {
            processors.insert(i);
        }
    }
    return processors;
}

TEST_SUITE("gpu.worker") {
    TEST_CASE("worker: runs tasks one at a time in the order they were posted") {
        FirstError first_error;
        std::vector<int> order;  // written by the worker only, read after it has joined
        {
            Worker worker(cpu_device(0), first_error);
            for (int i = 0; i < 1000; ++i) {
                worker.post([&order, i] { order.push_back(i); });
            }
        }
        REQUIRE(order.size() == 1000);
        for (int i = 0; i < 1000; ++i) {
            CHECK(order[static_cast<std::size_t>(i)] == i);
        }
        CHECK(!first_error.failed());
    }

    TEST_CASE("worker: takes tasks from many threads") {
        FirstError first_error;
        int count = 0;
        {
            Worker worker(cpu_device(0), first_error);
            std::vector<std::thread> threads;
            threads.reserve(4);
            for (int t = 0; t < 4; ++t) {
                threads.emplace_back([&] {
                    for (int i = 0; i < 250; ++i) {
                        if (i % 50 == 0) {
                            worker.call([&] { ++count; });
                        } else {
                            worker.post([&] { ++count; });
                        }
                    }
                });
            }
            for (std::thread& thread : threads) {
                thread.join();
            }
        }
        CHECK(count == 1000);
    }

    TEST_CASE("worker: call returns the task's result, also references and move-only ones") {
        FirstError first_error;
        Worker worker(cpu_device(0), first_error);
        CHECK(worker.call([] { return 42; }) == 42);
        CHECK(*worker.call([] { return std::make_unique<int>(7); }) == 7);
        int value = 1;
        int& reference = worker.call([&]() -> int& { return value; });
        CHECK(&reference == &value);
    }

    TEST_CASE("worker: call rethrows the task's exception and the worker goes on") {
        FirstError first_error;
        Worker worker(cpu_device(0), first_error);
        CHECK_THROWS_WITH_AS(worker.call([] { throw std::runtime_error("in the task"); }),
                             "in the task",
                             std::runtime_error);
        CHECK(!first_error.failed());
        CHECK(worker.call([] { return 1; }) == 1);
    }

    TEST_CASE("worker: call from its own thread is an internal error instead of a hang") {
        FirstError first_error;
        Worker worker(cpu_device(0), first_error);
        CHECK_THROWS_AS(worker.call([&] { worker.call([] {}); }), Error);
        CHECK(worker.call([&] { return worker.is_current_thread(); }));
        CHECK(!worker.is_current_thread());
    }

    TEST_CASE("worker: two workers may call each other") {
        FirstError first_error;
        Worker a(cpu_device(0), first_error);
        Worker b(cpu_device(1), first_error);
        CHECK(a.call([&] { return b.call([] { return 5; }) + 1; }) == 6);
    }

    TEST_CASE(
        "worker: the exception of a posted task is the run's error, and later tasks are dropped") {
        FirstError first_error;
        std::atomic<int> ran = 0;
        {
            Worker worker(cpu_device(0), first_error);
            worker.post([] { throw std::runtime_error("posted"); });
            for (int i = 0; i < 100; ++i) {
                worker.post([&] { ++ran; });
            }
            CHECK_THROWS_WITH_AS(worker.call([] {}), "posted", std::runtime_error);
        }
        CHECK(ran == 0);
        CHECK_THROWS_WITH_AS(first_error.rethrow_if_failed(), "posted", std::runtime_error);
    }

    TEST_CASE("worker: a call in the queue is woken by an error elsewhere") {
        FirstError first_error;
        std::atomic<bool> release = false;
        Worker worker(cpu_device(0), first_error);
        worker.post([&] {
            while (!release) {
                std::this_thread::sleep_for(1ms);
            }
        });
        std::atomic<bool> ran = false;
        std::thread failing([&] {
            std::this_thread::sleep_for(20ms);
            store(first_error, "elsewhere");
        });
        const auto began = std::chrono::steady_clock::now();
        CHECK_THROWS_WITH_AS(worker.call([&] { ran = true; }), "elsewhere", std::runtime_error);
        CHECK(std::chrono::steady_clock::now() - began < 5s);
        failing.join();
        release = true;
        CHECK(!ran);
    }

    TEST_CASE("worker: a call that was started is waited for in spite of an error elsewhere") {
        FirstError first_error;
        Worker worker(cpu_device(0), first_error);
        const int result = worker.call([&] {
            store(first_error, "elsewhere");
            std::this_thread::sleep_for(20ms);
            return 3;
        });
        CHECK(result == 3);
        CHECK_THROWS_WITH_AS(worker.call([] {}), "elsewhere", std::runtime_error);
    }

    TEST_CASE("worker: dropped tasks are destroyed, so what they own is freed") {
        FirstError first_error;
        const auto token = std::make_shared<int>(0);
        {
            Worker worker(cpu_device(0), first_error);
            worker.post([] { std::this_thread::sleep_for(10ms); });
            for (int i = 0; i < 10; ++i) {
                worker.post([token] { static_cast<void>(*token); });
            }
            store(first_error, "elsewhere");
        }
        CHECK(token.use_count() == 1);
    }

    TEST_CASE("worker: starts under a run that failed already, and stops") {
        FirstError first_error;
        store(first_error, "before");
        Worker worker(cpu_device(0), first_error);
        std::atomic<bool> ran = false;
        worker.post([&] { ran = true; });
        CHECK_THROWS_WITH_AS(worker.call([] {}), "before", std::runtime_error);
        CHECK(!ran);
    }

    TEST_CASE("worker: on_start runs first on its thread, and its error is the run's") {
        FirstError first_error;
        bool started = false;
        Worker worker(cpu_device(0), first_error, {.on_start = [&] { started = true; }});
        CHECK(worker.call([&] { return started; }));

        Worker failing(
            cpu_device(0), first_error, {.on_start = [] { throw std::runtime_error("set-up"); }});
        CHECK_THROWS_WITH_AS(failing.call([] {}), "set-up", std::runtime_error);
    }

    TEST_CASE("worker: on_start may ask whether it runs on the worker") {
        for (int i = 0; i < 50; ++i) {
            FirstError first_error;
            Worker* self = nullptr;
            bool on_worker = false;
            std::atomic<bool> published = false;
            WorkerOptions options{.on_start =
                                      [&] {
                                          while (!published) {
                                          }
                                          on_worker = self->is_current_thread();
                                      },
                                  .pin = false};
            Worker worker(cpu_device(0), first_error, options);
            self = &worker;
            published = true;
            worker.call([] {});
            CHECK(on_worker);
        }
    }

    TEST_CASE("worker: its thread carries the device's name") {
        FirstError first_error;
        Device long_name = cpu_device(123);
        long_name.name = "cuda:123/255";
        const std::vector<std::pair<Device, std::string>> cases{{cpu_device(1), "dflash-cpu1"},
                                                                {long_name, "dflash-cuda123/"}};
        for (const auto& [device, expected] : cases) {
            Worker worker(device, first_error);
            const std::string name = worker.call([] {
                std::array<char, 16> text{};
                pthread_getname_np(pthread_self(), text.data(), text.size());
                return std::string(text.data());
            });
            CHECK(name == expected);
        }
    }

    TEST_CASE("worker: is pinned to a core of its own where there are cores for all devices") {
        FirstError first_error;
        const std::set<std::size_t> before = processors_of_thread();
        Worker a(cpu_device(0, 2), first_error);
        Worker b(cpu_device(1, 2), first_error);
        const auto of_a = a.call(processors_of_thread);
        const auto of_b = b.call(processors_of_thread);
        std::set<std::size_t> both;
        std::ranges::set_intersection(of_a, of_b, std::inserter(both, both.end()));
        // A single core with several hardware threads, as some machines have, stays whole.
        const bool left_alone = of_a == before && of_b == before;
        CHECK((both.empty() || (left_alone && before.size() <= 2)));
        CHECK(std::ranges::includes(before, of_a));
        CHECK(std::ranges::includes(before, of_b));
        CHECK(processors_of_thread() == before);
    }

    TEST_CASE("worker: is not pinned where there are fewer cores than devices, or on request") {
        FirstError first_error;
        const std::set<std::size_t> before = processors_of_thread();
        Worker crowded(cpu_device(0, 4096), first_error);
        CHECK(crowded.call(processors_of_thread) == before);
        Worker free(cpu_device(0, 1), first_error, {.on_start = {}, .pin = false});
        CHECK(free.call(processors_of_thread) == before);
    }

    TEST_CASE("worker: reports its load and the time it was busy") {
        FirstError first_error;
        Worker worker(cpu_device(0), first_error);
        std::atomic<bool> began = false;
        std::atomic<bool> release = false;
        worker.post([&] {
            began = true;
            began.notify_all();
            release.wait(false);
        });
        worker.post([] {});
        began.wait(false);
        CHECK(worker.load() == 2);
        std::this_thread::sleep_for(5ms);
        CHECK(worker.busy_s() >= 0.005);
        release = true;
        release.notify_all();
        worker.call([] {});
        CHECK(worker.load() <= 1);  // the call itself may still be leaving
    }

    TEST_CASE("worker: its board tells task and queue while a task hangs, and outlives it") {
        FirstError first_error;
        std::shared_ptr<const WorkerBoard> board;
        {
            Worker worker(cpu_device(0), first_error);
            board = worker.board();
            std::atomic<bool> began = false;
            std::atomic<bool> release = false;
            worker.post({"train row", 17}, [&] {
                began = true;
                began.notify_all();
                release.wait(false);
            });
            worker.post({"finish step", 3}, [] {});
            worker.post([] {});
            began.wait(false);
            CHECK(board->activity.who() == cpu_device(0).name);
            CHECK(board->activity.now().text() == "train row 17");
            CHECK(board->queued == 2);
            const std::uint64_t before = progress_noted();
            release = true;
            release.notify_all();
            CHECK(worker.call({"ask"}, [&] { return board->activity.now().text(); }) == "ask");
            CHECK(progress_noted() >= before + 3);  // of the tasks done
        }
        CHECK(board->activity.now().idle());
        CHECK(board->queued == 0);
    }
}

}  // namespace
}  // namespace dflash::gpu
