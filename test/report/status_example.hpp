// SPDX-License-Identifier: Apache-2.0
// A run in the middle of its training.
#pragma once

#include <dflash/report/status.hpp>

#include <fmt/format.h>

namespace dflash::report::test {

constexpr double kNow = 1800000000;

inline DeviceStatus example_gpu(int position, bool target) {
    DeviceStatus device;
    device.name = fmt::format("cuda:{}", position);
    device.role = target ? "target" : "drafter";
    device.busy = target ? 0.97 : 0.5;
    device.tasks = target ? 2 : 0;
    device.waited = target ? 0.02 : 0.41;
    device.waits_for = target ? "slots" : "target";
    device.use = (target ? 0.98 : 0.55) - 0.01 * position;
    device.memory_used_bytes = 71LL << 30;
    device.memory_total_bytes = 140LL << 30;
    device.power_w = 612.4;
    device.sm_clock_mhz = 1830;
    device.temperature_c = 64;
    return device;
}

/// `targets` GPUs with a target, then `drafters` with a drafter.
inline RunStatus example_status(int targets, int drafters) {
    RunStatus status;
    status.state = RunState::Training;
    status.folder = "runs/Qwen3-8B-20260131-0930";
    status.version = "0.1.0";
    status.host = "node7";
    status.pid = 4242;
    status.process_start_ticks = 123456789;
    status.started_s = kNow - 11112;
    status.written_s = kNow - 3;
    status.every_s = 10;
    status.step = {.step = 1234,
                   .epoch = 1,
                   .tokens = 98765432,
                   .loss = 2.34567,
                   .accuracy = 0.4123,
                   .learning_rate = 5.9e-4,
                   .gradient_norm = 0.7,
                   .fraction_done = 0.124,
                   .drafter_tokens_per_s = 145020,
                   .target_tokens_per_s = 151344,
                   .drafter_waited = 0.41,
                   .target_waited = 0.02,
                   .seconds = 11000,
                   .left_s = 77700,
                   .at_s = kNow - 2};
    status.held_out = {
        .step = 1000, .loss = 2.5, .acceptance_length = 2.31, .bigram_acceptance_length = 1.48};
    status.saved = {.step = 1000, .at_s = kNow - 740};
    for (int i = 0; i < targets + drafters; ++i) {
        status.devices.push_back(example_gpu(i, i < targets));
    }
    status.process_cpu = 1.87;
    status.process_bytes = 5LL << 30;
    return status;
}

}  // namespace dflash::report::test
