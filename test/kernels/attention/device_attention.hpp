// SPDX-License-Identifier: Apache-2.0
// The attention kernels on one case on the GPU, with every buffer between guard bands.
#pragma once

#include "attention_case.hpp"
#include "attention_reference.hpp"

#include <dflash/gpu/device.hpp>
#include <dflash/gpu/stream.hpp>
#include <dflash/kernels/attention.hpp>
#include <dflash/kernels/kernel_builder.hpp>
#include <dflash/kernels/kernel_driver.hpp>

#include <deque>
#include <memory>
#include <optional>
#include <vector>

namespace dflash::kernels::test {

/// Builds and loads kernels for the first GPU, each shape once. Kernels that were compiled before
/// are taken from the cache of this user, or from the folder that DFLASH_KERNEL_CACHE names.
class KernelShelf {
  public:
    KernelShelf();

    /// Builds those of many shapes at once, in parallel, with the tiles of `tiles_of` or by default
    /// of this GPU.
    void prepare(const std::vector<AttentionShape>& shapes,
                 std::optional<Architecture> tiles_of = std::nullopt);

    const AttentionKernels& get(const AttentionShape& shape,
                                std::optional<Architecture> tiles_of = std::nullopt);

    gpu::StreamView stream() const { return stream_.view(); }

  private:
    const LoadedKernel* find(const KernelSpec& spec) const;

    gpu::Device device_;
    gpu::Stream stream_;
    KernelBuilder builder_;
    std::unique_ptr<KernelDriver> driver_;
    std::deque<BuiltKernel> built_;

    struct Entry {
        AttentionShape shape;
        Architecture tiles_of;
        AttentionKernels kernels;
    };

    std::vector<LoadedKernel> loaded_;
    std::deque<Entry> kernels_;
};

KernelShelf& kernel_shelf();  ///< of this program

/// Results as they lie in memory.
struct DeviceResults {
    std::vector<Bf16> o;
    std::vector<float> lse;
    std::vector<Bf16> dq;
    std::vector<Bf16> dk_context;
    std::vector<Bf16> dv_context;
    std::vector<Bf16> dk_block;
    std::vector<Bf16> dv_block;

    bool operator==(const DeviceResults&) const = default;
    AttentionResults values() const;
};

/// Where tokens and heads lie: dense, or with gaps that nobody may touch.
enum class Layout { Dense, Gaps };

/// A case on the device. Results are poison until run() has been called.
class DeviceAttention {
  public:
    DeviceAttention(const AttentionCase& c,
                    const AttentionInputs& in,
                    Layout layout,
                    std::optional<Architecture> tiles_of = std::nullopt);
    ~DeviceAttention();

    /// Takes the context's keys from elsewhere.
    void replace_context_keys(const HeadTensor& k_context);

    void forward();   ///< asynchronous
    void backward();  ///< asynchronous, after forward()

    /// Waits, and fetches the results. Fails the running test if a gap or a guard band of a result
    /// changed.
    DeviceResults fetch();

    /// Fails the running test if an input or a guard band of scratch memory changed.
    void check_inputs();

  private:
    struct Buffers;
    std::unique_ptr<Buffers> buffers_;
};

/// Forward and backward.
DeviceResults run_attention(const AttentionCase& c,
                            const AttentionInputs& in,
                            Layout layout = Layout::Gaps,
                            std::optional<Architecture> tiles_of = std::nullopt);

}  // namespace dflash::kernels::test
