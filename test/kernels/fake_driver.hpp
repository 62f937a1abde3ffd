// SPDX-License-Identifier: Apache-2.0
// Devices that kernels can be loaded on without a GPU.
#pragma once

#include <dflash/kernels/compile_barrier.hpp>
#include <dflash/kernels/kernel_driver.hpp>

#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace dflash::kernels {

/// Counts what is loaded where. Any thread.
class FakeDriver final : public KernelDriver {
  public:
    Architecture architecture(const gpu::Device& device) const override {
        const auto found = architectures.find(device.ordinal);
        return found == architectures.end() ? Architecture::parse("sm_90a") : found->second;
    }

    void* load(const BuiltKernel& kernel, const gpu::Device& device) override {
        if (on_load) {
            on_load(kernel, device);
        }
        const std::lock_guard lock(mutex_);
        const auto key = std::pair(kernel.request.spec.id(), device.ordinal);
        return &++loads_[key];
    }

    std::int64_t num_loads() const override {
        const std::lock_guard lock(mutex_);
        std::int64_t total = 0;
        for (const auto& [key, count] : loads_) {
            total += count;
        }
        return total;
    }

    /// Loads of each (kernel id, ordinal).
    std::map<std::pair<std::string, int>, int> loads() const {
        const std::lock_guard lock(mutex_);
        return loads_;
    }

    // Set before the driver is used.
    std::map<int, Architecture> architectures;  // by ordinal; sm_90a where nothing is said
    std::function<void(const BuiltKernel&, const gpu::Device&)> on_load;

  private:
    mutable std::mutex mutex_;  // guards: loads_
    std::map<std::pair<std::string, int>, int> loads_;
};

inline gpu::Device fake_gpu(int position, int ordinal) {
    return {.kind = gpu::DeviceKind::Cuda,
            .position = position,
            .ordinal = ordinal,
            .name = "cuda:" + std::to_string(ordinal) + "/" + std::to_string(position)};
}

/// Drafters on `count` GPUs.
inline std::vector<Participant> fake_drafters(int count) {
    std::vector<Participant> participants;
    participants.reserve(static_cast<std::size_t>(count));
    for (int i = 0; i < count; ++i) {
        participants.push_back({fake_gpu(i, i), /*drafts=*/true});
    }
    return participants;
}

}  // namespace dflash::kernels
