// SPDX-License-Identifier: Apache-2.0
// The kernels of a run: which ones its models need, compiled once and loaded on every GPU before
// the first step.
#pragma once

#include <dflash/gpu/worker.hpp>
#include <dflash/kernels/compile_barrier.hpp>
#include <dflash/kernels/tuned_gemm.hpp>
#include <dflash/model/drafter.hpp>
#include <dflash/model/kernel_attention.hpp>
#include <dflash/train/prepared_run.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace dflash::train {

/// Where kernels are kept and looked for, from cache.dir.
kernels::CacheOptions kernel_cache_options(const CacheSettings& settings);

/// Owns the compile barrier and what it needs. On CPU devices the barrier has no kernels. Must live
/// longer than the workers.
class KernelStart : NonCopyable {
  public:
    KernelStart(const PreparedRun& run, const CacheSettings& settings, FirstError& first_error);

    /// For a target alone.
    KernelStart(const std::vector<gpu::Device>& devices,
                const target::TargetConfig& target,
                const CacheSettings& settings,
                FirstError& first_error);

    /// For a target and a drafter on every device.
    KernelStart(const std::vector<gpu::Device>& devices,
                const target::TargetConfig& target,
                const model::DraftConfig& draft,
                const CacheSettings& settings,
                FirstError& first_error);

    /// Compiles what is missing and loads everything, on all workers at the same time; logs where
    /// every kernel came from. Throws KernelError (exit 4) with the compiler's log.
    void prepare(const std::vector<std::unique_ptr<gpu::Worker>>& workers);

    /// How a drafter computes on that device: by kernels on a GPU, by Torch operations on the CPU.
    /// Without `gemm` LibTorch makes its products.
    model::DrafterPaths make_drafter_paths(
        const model::DraftConfig& config,
        const gpu::Device& device,
        std::shared_ptr<kernels::TunedGemm> gemm = nullptr) const;

    /// The same for a target.
    std::shared_ptr<tensor::RowOps> make_row_ops(const gpu::Device& device) const;

    /// Adds something that must not happen after the start. Called before seal(); `read` is called
    /// from the thread that asks.
    void watch(std::string name, std::function<std::int64_t()> read);

    /// Ends the start: after it kernels, modules and device memory are there to stay, and what
    /// changes is counted.
    void seal();

    /// What was counted since, one text for each that is not 0: "3 cudaMalloc".
    std::vector<std::string> changes_since_seal() const;

  private:
    KernelStart(const std::vector<gpu::Device>& devices,
                std::vector<kernels::Participant> participants,
                const CacheSettings& settings,
                FirstError& first_error);
    void require_drafter(const model::DraftConfig& draft, model::HeadPrecision head_precision);
    void require_target(const target::TargetConfig& target);
    kernels::FindKernel find_kernel_on(const gpu::Device& device) const;

    kernels::KernelBuilder builder_;
    std::unique_ptr<kernels::KernelDriver> driver_;
    kernels::CompileBarrier barrier_;
};

}  // namespace dflash::train
