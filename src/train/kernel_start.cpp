// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/log.hpp>
#include <dflash/tensor/bridge.hpp>
#include <dflash/tensor/kernel_row_ops.hpp>
#include <dflash/train/kernel_start.hpp>
#include <dflash/train/run_data.hpp>
#include <dflash/train/run_kernels.hpp>

#include <ATen/Context.h>
#include <algorithm>
#include <c10/cuda/CUDACachingAllocator.h>
#include <fmt/format.h>
#include <utility>

namespace dflash::train {
namespace {

bool any_gpu(const std::vector<gpu::Device>& devices) {
    return std::any_of(
        devices.begin(), devices.end(), [](const gpu::Device& device) { return device.is_cuda(); });
}

std::vector<kernels::Participant> participants(const PreparedRun& run) {
    const std::vector<int>& drafters = run.plan.roles.drafters;
    std::vector<kernels::Participant> result;
    for (const gpu::Device& device : run.devices) {
        const bool drafts =
            std::find(drafters.begin(), drafters.end(), device.position) != drafters.end();
        result.push_back({device, drafts});
    }
    return result;
}

std::vector<kernels::Participant> participants(const std::vector<gpu::Device>& devices) {
    std::vector<kernels::Participant> result;
    for (const gpu::Device& device : devices) {
        result.push_back({device, /*drafts=*/false});
    }
    return result;
}

/// Calls of cudaMalloc and cudaFree by LibTorch's allocator, on all GPUs of the run.
std::int64_t device_memory_calls(const std::vector<gpu::Device>& devices) {
    at::globalContext().lazyInitDevice(at::kCUDA);  // before it the allocator knows no device
    std::int64_t calls = 0;
    for (const gpu::Device& device : devices) {
        if (device.is_cuda()) {
            const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(
                static_cast<c10::DeviceIndex>(device.ordinal));
            calls += stats.num_device_alloc + stats.num_device_free;
        }
    }
    return calls;
}

}  // namespace

kernels::CacheOptions kernel_cache_options(const CacheSettings& settings) {
    return kernels::cache_options_in(cache_root(settings));
}

KernelStart::KernelStart(const std::vector<gpu::Device>& devices,
                         std::vector<kernels::Participant> participants,
                         const CacheSettings& settings,
                         FirstError& first_error)
    : builder_(kernels::SourceSet::embedded(), kernel_cache_options(settings)),
      driver_(any_gpu(devices) ? kernels::make_cuda_driver() : nullptr),
      barrier_(std::move(participants), builder_, driver_.get(), first_error) {
    if (driver_ != nullptr) {
        barrier_.watch("cudaMalloc and cudaFree",
                       [devices] { return device_memory_calls(devices); });
    }
}

KernelStart::KernelStart(const PreparedRun& run,
                         const CacheSettings& settings,
                         FirstError& first_error)
    : KernelStart(run.devices, participants(run), settings, first_error) {
    require_drafter(run.draft.config, run.head_precision);
    require_target(run.target);
}

KernelStart::KernelStart(const std::vector<gpu::Device>& devices,
                         const target::TargetConfig& target,
                         const CacheSettings& settings,
                         FirstError& first_error)
    : KernelStart(devices, participants(devices), settings, first_error) {
    require_target(target);
}

KernelStart::KernelStart(const std::vector<gpu::Device>& devices,
                         const target::TargetConfig& target,
                         const model::DraftConfig& draft,
                         const CacheSettings& settings,
                         FirstError& first_error)
    : KernelStart(devices, target, settings, first_error) {
    require_drafter(draft, model::HeadPrecision::Compute);
}

void KernelStart::require_drafter(const model::DraftConfig& draft,
                                  model::HeadPrecision head_precision) {
    barrier_.require(
        "drafter",
        [shape = kernel_shape(draft, head_precision)](const kernels::Architecture& architecture) {
            return kernels::drafter_kernels(shape, architecture);
        });
}

void KernelStart::require_target(const target::TargetConfig& target) {
    barrier_.require("target", [shape = kernel_shape(target)](const kernels::Architecture&) {
        return kernels::target_kernels(shape);
    });
}

void KernelStart::prepare(const std::vector<std::unique_ptr<gpu::Worker>>& workers) {
    std::vector<gpu::Worker*> all;
    for (const auto& worker : workers) {
        all.push_back(worker.get());
    }
    barrier_.prepare(all);
    if (driver_ != nullptr) {
        for (const std::string& line : barrier_.report().to_lines()) {
            log_info("kernels   {}", line);
        }
    }
}

model::DrafterPaths KernelStart::make_drafter_paths(
    const model::DraftConfig& config,
    const gpu::Device& device,
    std::shared_ptr<kernels::TunedGemm> gemm) const {
    const at::Device on = tensor::torch_device(device);
    if (!device.is_cuda()) {
        return model::make_torch_paths(on);
    }
    const kernels::FindKernel find = find_kernel_on(device);
    return {
        std::make_unique<model::KernelAttention>(config, on, barrier_.architecture(device), find),
        std::make_unique<tensor::KernelRowOps>(on, find, std::move(gemm)),
        find};
}

std::shared_ptr<tensor::RowOps> KernelStart::make_row_ops(const gpu::Device& device) const {
    if (!device.is_cuda()) {
        return std::make_shared<tensor::TorchRowOps>();
    }
    return std::make_shared<tensor::KernelRowOps>(tensor::torch_device(device),
                                                  find_kernel_on(device));
}

kernels::FindKernel KernelStart::find_kernel_on(const gpu::Device& device) const {
    return
        [this, device](const kernels::KernelSpec& spec) { return barrier_.kernel(spec, device); };
}

void KernelStart::watch(std::string name, std::function<std::int64_t()> read) {
    barrier_.watch(std::move(name), std::move(read));
}

void KernelStart::seal() {
    barrier_.seal();
}

std::vector<std::string> KernelStart::changes_since_seal() const {
    std::vector<std::string> changes;
    for (const kernels::CounterReading& counter : barrier_.counters_after_seal()) {
        if (counter.count != 0) {
            changes.push_back(fmt::format("{} {}", counter.count, counter.name));
        }
    }
    return changes;
}

}  // namespace dflash::train
