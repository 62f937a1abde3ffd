// SPDX-License-Identifier: Apache-2.0
#include "cold_cache_race.hpp"

#include "fake_driver.hpp"

#include <atomic>
#include <barrier>
#include <thread>
#include <vector>

namespace dflash::kernels {

RaceResult race(int num_threads, const KernelBuilder& builder, const KernelList& kernels) {
    const std::vector<Participant> participants = fake_drafters(num_threads);
    FakeDriver driver;
    FirstError first_error;
    CompileBarrier barrier(participants, builder, &driver, first_error);
    barrier.require("drafter", kernels);
    const std::int64_t before = Compiler::num_compilations();
    std::atomic<std::int64_t> num_errors = 0;
    std::barrier start(num_threads);
    {
        std::vector<std::jthread> threads;
        threads.reserve(participants.size());
        for (const Participant& participant : participants) {
            threads.emplace_back([&] {
                start.arrive_and_wait();
                try {
                    barrier.arrive(participant.device);
                } catch (...) {
                    ++num_errors;
                }
            });
        }
    }
    return {.num_kernels = static_cast<std::int64_t>(
                kernels(driver.architecture(participants.front().device)).size()),
            .num_compilations = Compiler::num_compilations() - before,
            .num_loads = driver.num_loads(),
            .num_errors = num_errors};
}

}  // namespace dflash::kernels
