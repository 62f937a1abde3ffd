// SPDX-License-Identifier: Apache-2.0
#include "step_profile.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <torch/csrc/autograd/profiler_kineto.h>
#include <utility>

namespace dflash::bench {
namespace {

namespace kineto = torch::autograd::profiler;
namespace impl = torch::profiler::impl;

bool has_any(std::string_view name, std::initializer_list<std::string_view> parts) {
    return std::any_of(parts.begin(), parts.end(), [&](std::string_view part) {
        return name.find(part) != std::string_view::npos;
    });
}

std::string part_of(std::string_view name) {
    if (has_any(name, {"attention_"})) {
        return "attention";
    }
    if (has_any(name, {"adamw_", "gradient_norm"})) {
        return "optimizer";
    }
    if (has_any(name, {"cross_entropy"})) {
        return "loss";
    }
    if (has_any(name, {"rms_norm", "head_norm", "norm_weight_gradient", "swiglu"})) {
        return "norms, rotation, activation";
    }
    // Names of cuBLAS: nvjet_tst_128x256..., sm90_xmma_gemm_..., cutlass_80_tensorop_...,
    // cublasLt::splitKreduce_kernel.
    if (has_any(name, {"nvjet", "gemm", "cutlass", "cublas", "splitKreduce"})) {
        return "GEMM";
    }
    if (has_any(name, {"Memcpy", "Memset"})) {
        return "copies";
    }
    return "other elementwise";
}

struct Interval {
    std::uint64_t begin;
    std::uint64_t end;
};

/// Length of the union.
double busy_ms(std::vector<Interval> intervals) {
    std::sort(intervals.begin(), intervals.end(), [](const Interval& a, const Interval& b) {
        return a.begin < b.begin;
    });
    std::uint64_t covered = 0;
    std::uint64_t reached = 0;
    for (const Interval& interval : intervals) {
        const std::uint64_t from = std::max(reached, interval.begin);
        if (interval.end > from) {
            covered += interval.end - from;
            reached = interval.end;
        }
    }
    return static_cast<double>(covered) * 1e-6;
}

}  // namespace

Profile profile(const std::function<void()>& work) {
    const impl::ProfilerConfig config(impl::ProfilerState::KINETO);
    const std::set<impl::ActivityType> activities{impl::ActivityType::CUDA};
    kineto::prepareProfiler(config, activities);
    kineto::enableProfiler(config, activities);
    work();
    const std::unique_ptr<kineto::ProfilerResult> recorded = kineto::disableProfiler();

    Profile result;
    std::vector<Interval> intervals;
    std::map<std::string, KernelTime> kernels;
    std::map<std::string, double> parts;
    for (const kineto::KinetoEvent& event : recorded->events()) {
        if (event.deviceType() != c10::DeviceType::CUDA || event.durationNs() == 0) {
            continue;
        }
        const double ms = static_cast<double>(event.durationNs()) * 1e-6;
        intervals.push_back({event.startNs(), event.endNs()});
        const std::string name = event.name();
        KernelTime& kernel = kernels[name];
        kernel.name = name;
        kernel.part = part_of(name);
        kernel.count += 1;
        kernel.ms += ms;
        parts[kernel.part] += ms;
    }
    if (intervals.empty()) {
        return result;
    }
    std::uint64_t first = intervals.front().begin;
    std::uint64_t last = 0;
    for (const Interval& interval : intervals) {
        first = std::min(first, interval.begin);
        last = std::max(last, interval.end);
    }
    result.span_ms = static_cast<double>(last - first) * 1e-6;
    result.busy_ms = busy_ms(std::move(intervals));
    for (const auto& [part, ms] : parts) {
        result.parts.push_back({part, ms});
    }
    for (auto& [name, kernel] : kernels) {
        result.kernels.push_back(std::move(kernel));
    }
    const auto longest_first = [](const auto& a, const auto& b) { return a.ms > b.ms; };
    std::sort(result.parts.begin(), result.parts.end(), longest_first);
    std::sort(result.kernels.begin(), result.kernels.end(), longest_first);
    return result;
}

}  // namespace dflash::bench
