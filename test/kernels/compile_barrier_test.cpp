// SPDX-License-Identifier: Apache-2.0
#include "captured_log.hpp"
#include "fake_driver.hpp"
#include "scratch_folder.hpp"
#include "tiny_kernel.hpp"

#include <dflash/core/error.hpp>
#include <dflash/kernels/compile_barrier.hpp>
#include <dflash/kernels/kernel_error.hpp>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <doctest/doctest.h>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace dflash::kernels {
namespace {

using namespace std::chrono_literals;

KernelList tiny_list(int count) {
    return [count](const Architecture&) { return tiny_kernels(count); };
}

/// All participants arrive at the same moment, each on a thread of its own; what each threw.
std::vector<std::exception_ptr> arrive_together(CompileBarrier& barrier,
                                                const std::vector<Participant>& participants) {
    std::vector<std::exception_ptr> errors(participants.size());
    std::barrier start(static_cast<std::ptrdiff_t>(participants.size()));
    {
        std::vector<std::jthread> threads;
        threads.reserve(participants.size());
        for (std::size_t i = 0; i < participants.size(); ++i) {
            threads.emplace_back([&, i] {
                start.arrive_and_wait();
                try {
                    barrier.arrive(participants[i].device);
                } catch (...) {
                    errors[i] = std::current_exception();
                }
            });
        }
    }
    return errors;
}

bool none(const std::vector<std::exception_ptr>& errors) {
    return std::all_of(errors.begin(), errors.end(), [](const auto& error) { return !error; });
}

std::string text_of(const std::exception_ptr& error) {
    try {
        std::rethrow_exception(error);
    } catch (const std::exception& exception) {
        return exception.what();
    }
}

TEST_SUITE("kernels.compile_barrier") {
    TEST_CASE("arrive: 3 and 8 threads on a cold cache compile each kernel exactly once") {
        constexpr int kRounds = 12;
        constexpr int kKernels = 3;
        const CapturedLog log;
        for (const int num_threads : {3, 8}) {
            for (int round = 0; round < kRounds; ++round) {
                CAPTURE(num_threads);
                CAPTURE(round);
                const ScratchFolder folder;
                const KernelBuilder builder(tiny_sources(), {.folder = folder.path()});
                FakeDriver driver;
                FirstError first_error;
                const std::vector<Participant> participants = fake_drafters(num_threads);
                CompileBarrier barrier(participants, builder, &driver, first_error);
                barrier.require("drafter", tiny_list(kKernels));
                const std::int64_t before = Compiler::num_compilations();
                REQUIRE(none(arrive_together(barrier, participants)));
                CHECK(Compiler::num_compilations() - before == kKernels);
                CHECK(driver.loads().size() == static_cast<std::size_t>(num_threads * kKernels));
                for (const auto& [key, count] : driver.loads()) {
                    CHECK(count == 1);
                }
            }
        }
        CHECK(log.warnings().empty());
    }

    TEST_CASE("arrive: every device gets the union of all roles' kernels for its architecture") {
        const KernelBuilder builder(tiny_sources(), {.folder = ""});
        const CapturedLog log;
        FakeDriver driver;
        driver.architectures = {{1, Architecture::parse("sm_120a")}};
        FirstError first_error;
        const std::vector<Participant> participants = fake_drafters(3);
        CompileBarrier barrier(participants, builder, &driver, first_error);
        barrier.require("drafter", tiny_list(2));
        barrier.require("target", [](const Architecture& architecture) {
            return std::vector<KernelSpec>{tiny_kernel(1), tiny_kernel(architecture.number())};
        });
        REQUIRE(none(arrive_together(barrier, participants)));
        for (const Participant& participant : participants) {
            const int number = participant.device.ordinal == 1 ? 120 : 90;
            CAPTURE(participant.device.name);
            CHECK(barrier.architecture(participant.device).number() == number);
            for (const std::int64_t value : {0, 1, number}) {
                const LoadedKernel kernel = barrier.kernel(tiny_kernel(value), participant.device);
                CHECK(kernel);
                CHECK(kernel.spec() == tiny_kernel(value));
                CHECK(kernel.ordinal() == participant.device.ordinal);
            }
            CHECK_THROWS_AS(barrier.kernel(tiny_kernel(210 - number), participant.device), Error);
        }
        CHECK(driver.loads().size() == 9);
    }

    TEST_CASE("arrive: logical devices on one GPU share its kernels") {
        const KernelBuilder builder(tiny_sources(), {.folder = ""});
        const CapturedLog log;
        FakeDriver driver;
        FirstError first_error;
        const std::vector<Participant> participants = {
            {fake_gpu(0, 0), true}, {fake_gpu(1, 0), true}, {fake_gpu(2, 0), true}};
        CompileBarrier barrier(participants, builder, &driver, first_error);
        barrier.require("drafter", tiny_list(2));
        REQUIRE(none(arrive_together(barrier, participants)));
        CHECK(driver.num_loads() == 2);
        CHECK(barrier.kernel(tiny_kernel(1), participants[2].device).function() ==
              barrier.kernel(tiny_kernel(1), participants[0].device).function());
    }

    TEST_CASE("arrive: targets wait for a drafter to be elected") {
        const KernelBuilder builder(tiny_sources(), {.folder = ""});
        const CapturedLog log;
        FakeDriver driver;
        FirstError first_error;
        const std::vector<Participant> participants = {
            {fake_gpu(0, 0), false}, {fake_gpu(1, 1), false}, {fake_gpu(2, 2), true}};
        CompileBarrier barrier(participants, builder, &driver, first_error);
        barrier.require("drafter", tiny_list(1));
        const std::int64_t before = Compiler::num_compilations();
        {
            std::vector<std::jthread> threads;
            threads.emplace_back([&] { barrier.arrive(participants[0].device); });
            threads.emplace_back([&] { barrier.arrive(participants[1].device); });
            std::this_thread::sleep_for(50ms);
            CHECK(Compiler::num_compilations() == before);
            barrier.arrive(participants[2].device);
        }
        CHECK(barrier.report().elected == participants[2].device.name);
        CHECK(Compiler::num_compilations() == before + 1);
    }

    TEST_CASE("arrive: no thread returns before every device is loaded") {
        const KernelBuilder builder(tiny_sources(), {.folder = ""});
        const CapturedLog log;
        FakeDriver driver;
        std::atomic<bool> slow_loaded = false;
        driver.on_load = [&](const BuiltKernel&, const gpu::Device& device) {
            if (device.ordinal == 1) {
                std::this_thread::sleep_for(50ms);
                slow_loaded = true;
            }
        };
        FirstError first_error;
        const std::vector<Participant> participants = fake_drafters(2);
        CompileBarrier barrier(participants, builder, &driver, first_error);
        barrier.require("drafter", tiny_list(1));
        bool loaded_on_return = false;
        std::jthread other([&] { barrier.arrive(participants[1].device); });
        barrier.arrive(participants[0].device);
        loaded_on_return = slow_loaded;
        CHECK(loaded_on_return);
    }

    TEST_CASE("arrive: CPU devices pass without kernels, a driver or a compiler") {
        const KernelBuilder builder(tiny_sources(), {.folder = ""}, {}, {"libnvrtc-of-nobody.so"});
        FirstError first_error;
        std::vector<Participant> participants = fake_drafters(3);
        for (Participant& participant : participants) {
            participant.device.kind = gpu::DeviceKind::Cpu;
        }
        CompileBarrier barrier(participants, builder, nullptr, first_error);
        barrier.require("drafter", tiny_list(2));
        CHECK(none(arrive_together(barrier, participants)));
        barrier.seal();
        barrier.check_steady();
        CHECK(barrier.report().to_lines().empty());
        CHECK_THROWS_AS(barrier.kernel(tiny_kernel(0), participants[0].device), Error);
    }

    TEST_CASE("errors: a failed compilation reaches every waiter as the same error") {
        SourceSet sources = tiny_sources();
        sources.set("tiny_value.cuh", "#pragma once\n#error broken on purpose\n");
        const KernelBuilder builder(sources, {.folder = ""});
        for (int round = 0; round < 5; ++round) {
            FakeDriver driver;
            FirstError first_error;
            const std::vector<Participant> participants = fake_drafters(8);
            CompileBarrier barrier(participants, builder, &driver, first_error);
            barrier.require("drafter", tiny_list(1));
            const std::int64_t before = Compiler::num_compilations();
            const std::vector<std::exception_ptr> errors = arrive_together(barrier, participants);
            CHECK(Compiler::num_compilations() - before == 1);
            for (const std::exception_ptr& error : errors) {
                REQUIRE(error);
                CHECK(error == errors.front());
            }
            CHECK(first_error.get() == errors.front());
            CHECK(text_of(errors.front()).find("broken on purpose") != std::string::npos);
            CHECK(driver.num_loads() == 0);
            CHECK_THROWS_AS(barrier.seal(), Error);
        }
    }

    TEST_CASE("errors: a device that cannot load ends the wait of the others") {
        const KernelBuilder builder(tiny_sources(), {.folder = ""});
        const CapturedLog log;
        FakeDriver driver;
        driver.on_load = [](const BuiltKernel&, const gpu::Device& device) {
            if (device.ordinal == 1) {
                throw KernelError(KernelFault::SharedMemory,
                                  {.what = "too small", .where = {}, .cause = {}, .hint = {}});
            }
        };
        FirstError first_error;
        const std::vector<Participant> participants = fake_drafters(3);
        CompileBarrier barrier(participants, builder, &driver, first_error);
        barrier.require("drafter", tiny_list(1));
        for (const std::exception_ptr& error : arrive_together(barrier, participants)) {
            REQUIRE(error);
            CHECK(text_of(error).find("too small") != std::string::npos);
        }
    }

    TEST_CASE("errors: a failure elsewhere in the run frees all who wait") {
        const KernelBuilder builder(tiny_sources(), {.folder = ""});
        FakeDriver driver;
        FirstError first_error;
        const std::vector<Participant> participants = fake_drafters(3);
        CompileBarrier barrier(participants, builder, &driver, first_error);
        barrier.require("drafter", tiny_list(1));
        std::vector<std::exception_ptr> errors(2);
        {
            const CapturedLog log;
            std::vector<std::jthread> threads;
            for (std::size_t i = 0; i < 2; ++i) {  // the third never comes
                threads.emplace_back([&, i] {
                    try {
                        barrier.arrive(participants[i].device);
                    } catch (...) {
                        errors[i] = std::current_exception();
                    }
                });
            }
            std::this_thread::sleep_for(100ms);
            first_error.store(std::make_exception_ptr(std::runtime_error("the disk burns")));
        }
        for (const std::exception_ptr& error : errors) {
            REQUIRE(error);
            CHECK(text_of(error) == "the disk burns");
        }
    }

    TEST_CASE("seal: any request afterwards fails, and so does a kernel that was not required") {
        const KernelBuilder builder(tiny_sources(), {.folder = ""});
        const CapturedLog log;
        FakeDriver driver;
        FirstError first_error;
        const std::vector<Participant> participants = fake_drafters(2);
        CompileBarrier barrier(participants, builder, &driver, first_error);
        barrier.require("drafter", tiny_list(1));
        CHECK_THROWS_AS(barrier.seal(), Error);  // nobody has arrived
        CHECK_THROWS_AS(barrier.kernel(tiny_kernel(0), participants[0].device), Error);
        REQUIRE(none(arrive_together(barrier, participants)));
        CHECK_THROWS_AS(barrier.counters_after_seal(), Error);
        CHECK_THROWS_AS(barrier.require("late", tiny_list(2)), Error);
        CHECK_FALSE(barrier.sealed());
        barrier.seal();
        CHECK(barrier.sealed());
        const std::int64_t before = Compiler::num_compilations();
        CHECK_THROWS_AS(barrier.require("late", tiny_list(2)), Error);
        CHECK_THROWS_AS(barrier.arrive(participants[0].device), Error);
        CHECK_THROWS_AS(barrier.seal(), Error);
        try {
            barrier.kernel(tiny_kernel(1), participants[0].device);
            FAIL("expected an error");
        } catch (const Error& error) {
            CHECK(error.kind() == ErrorKind::Internal);
            CHECK(std::string(error.what()).find("tiny[VALUE=1]") != std::string::npos);
            CHECK(std::string(error.what()).find("sealed") != std::string::npos);
        }
        CHECK(barrier.kernel(tiny_kernel(0), participants[1].device));
        CHECK(Compiler::num_compilations() == before);
        CHECK(driver.num_loads() == 2);
    }

    TEST_CASE("counters: what happens after the seal is counted and refused") {
        const KernelBuilder builder(tiny_sources(), {.folder = ""});
        const CapturedLog log;
        FakeDriver driver;
        FirstError first_error;
        const std::vector<Participant> participants = fake_drafters(2);
        CompileBarrier barrier(participants, builder, &driver, first_error);
        barrier.require("drafter", tiny_list(1));
        std::atomic<std::int64_t> mallocs = 40;
        barrier.watch("cudaMalloc", [&] { return mallocs.load(); });
        REQUIRE(none(arrive_together(barrier, participants)));
        mallocs += 2;  // the start may allocate
        barrier.seal();
        barrier.check_steady();
        CHECK(barrier.counters_after_seal() == std::vector<CounterReading>{{"compilations", 0},
                                                                           {"kernel loads", 0},
                                                                           {"cudaMalloc", 0}});
        mallocs += 3;
        Compiler(tiny_sources()).compile(tiny_kernel(5), kTestArchitecture);
        CHECK(barrier.counters_after_seal() == std::vector<CounterReading>{{"compilations", 1},
                                                                           {"kernel loads", 0},
                                                                           {"cudaMalloc", 3}});
        try {
            barrier.check_steady();
            FAIL("expected an error");
        } catch (const Error& error) {
            CHECK(error.kind() == ErrorKind::Internal);
            CHECK(std::string(error.what()).find("1 compilations, 3 cudaMalloc") !=
                  std::string::npos);
        }
    }

    TEST_CASE("report: says per kernel who compiled it in what time, or where it came from") {
        const ScratchFolder folder;
        const CapturedLog log;
        for (const bool cold : {true, false}) {
            CAPTURE(cold);
            const KernelBuilder builder(tiny_sources(), {.folder = folder.path()});
            FakeDriver driver;
            FirstError first_error;
            const std::vector<Participant> participants = fake_drafters(3);
            CompileBarrier barrier(participants, builder, &driver, first_error);
            barrier.require("drafter", tiny_list(2));
            REQUIRE(none(arrive_together(barrier, participants)));
            const StartupReport report = barrier.report();
            CHECK(report.num_devices == 3);
            CHECK(report.build_s > 0);
            REQUIRE(report.kernels.size() == 2);
            CHECK(report.num_of(KernelOrigin::Compiled) == (cold ? 2 : 0));
            CHECK(report.num_of(KernelOrigin::Cache) == (cold ? 0 : 2));
            for (const KernelStart& kernel : report.kernels) {
                CHECK(kernel.architecture == "sm_90a");
                CHECK(kernel.seconds > 0);
                CHECK(kernel.resources.registers > 0);
            }
            const std::vector<std::string> lines = report.to_lines();
            REQUIRE(lines.size() == 3);
            CAPTURE(lines[0]);
            CAPTURE(lines[1]);
            CHECK(lines[0].find("2 on 3 GPUs: " + std::string(cold ? "2" : "0") + " compiled") !=
                  std::string::npos);
            CHECK(lines[0].find(report.elected) != std::string::npos);
            CHECK(lines[1].find("tiny[VALUE=0] sm_90a") != std::string::npos);
            CHECK(lines[1].find(cold ? "compiled by dflash-nvrtc"
                                     : "from the cache, " + folder.path()) != std::string::npos);
        }
    }

    /// CPU workers, which go through the barrier without kernels.
    struct Workers {
        explicit Workers(int count) {
            for (int i = 0; i < count; ++i) {
                gpu::Device device{.kind = gpu::DeviceKind::Cpu,
                                   .position = i,
                                   .ordinal = i,
                                   .name = "cpu:" + std::to_string(i)};
                participants.push_back({device, true});
                owners.push_back(std::make_unique<gpu::Worker>(
                    device, first_error, gpu::WorkerOptions{.on_start = {}, .pin = false}));
                views.push_back(owners.back().get());
            }
        }

        FirstError first_error;
        std::vector<Participant> participants;
        std::vector<gpu::Worker*> views;
        std::vector<std::unique_ptr<gpu::Worker>> owners;
    };

    TEST_CASE("prepare: all workers warm up at the same time, after all have arrived") {
        const KernelBuilder builder(tiny_sources(), {.folder = ""});
        Workers workers(3);
        CompileBarrier barrier(workers.participants, builder, nullptr, workers.first_error);
        std::barrier together(3);  // a collective: it hangs unless all are in it
        std::atomic<int> warmed_up = 0;
        barrier.prepare(workers.views, [&](gpu::Worker& worker) {
            CHECK(worker.is_current_thread());
            together.arrive_and_wait();
            ++warmed_up;
        });
        CHECK(warmed_up == 3);
        barrier.seal();
    }

    TEST_CASE("prepare: a failed warm-up is the error of the start") {
        const KernelBuilder builder(tiny_sources(), {.folder = ""});
        Workers workers(3);
        CompileBarrier barrier(workers.participants, builder, nullptr, workers.first_error);
        try {
            barrier.prepare(workers.views, [](gpu::Worker& worker) {
                if (worker.device().position == 1) {
                    throw std::runtime_error("no warmth");
                }
            });
            FAIL("expected an error");
        } catch (const std::runtime_error& error) {
            CHECK(std::string(error.what()) == "no warmth");
        }
        workers.owners.clear();  // joins; the barrier outlives them
    }

    TEST_CASE("prepare: fewer workers than participants are a bug, not a hang") {
        const KernelBuilder builder(tiny_sources(), {.folder = ""});
        Workers workers(2);
        CompileBarrier barrier(workers.participants, builder, nullptr, workers.first_error);
        workers.views.pop_back();
        CHECK_THROWS_AS(barrier.prepare(workers.views), Error);
    }
}

}  // namespace
}  // namespace dflash::kernels
