// SPDX-License-Identifier: Apache-2.0
// Which kernels a model needs: the lists that go into the compile barrier, and those that packs are
// built of.
#pragma once

#include <dflash/kernels/architecture.hpp>
#include <dflash/kernels/kernel_spec.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace dflash::kernels {

/// How layers of a drafter attend.
struct LayerKind {
    bool causal = false;    ///< slots of a block see only those up to themselves
    bool windowed = false;  ///< there is a sliding window

    bool operator==(const LayerKind&) const = default;
};

/// Sizes of a drafter that its kernels depend on. Lengths of rows, numbers of blocks and windows
/// are not among them.
struct DrafterKernelShape {
    std::int64_t hidden_size = 0;
    std::int64_t intermediate_size = 0;
    std::int64_t num_heads = 0;
    std::int64_t num_kv_heads = 0;
    std::int64_t head_dim = 0;
    std::int64_t block_size = 0;
    std::vector<LayerKind> layers;  ///< the kinds of all layers; repetitions do no harm
    bool float8_logits = false;     ///< the head's product is made in fp8 ...
    bool float8_gradient = false;   ///< ... and so is that of its gradient
};

/// Sizes of a target that the kernels of its forward depend on.
struct TargetKernelShape {
    std::int64_t hidden_size = 0;
    std::int64_t intermediate_size = 0;
    std::int64_t head_dim = 0;
    std::int64_t rotary_columns = 0;  ///< 0: all of a head
    bool head_norm = false;           ///< norms of q and k (Qwen3)
};

/// Throws Error{Config} naming the size that there are no kernels for: head size 32, 64, 128 or
/// 256, 1 to 8 query heads of a drafter for a key head, blocks of 2 to 32, hidden size 64 to 8192,
/// hidden and intermediate size multiples of 8.
void check_shape(const DrafterKernelShape& shape);
void check_shape(const TargetKernelShape& shape);

/// Kernels of a drafter's forward and backward. Throws as check_shape(), and for a head in fp8 on
/// an architecture that has none (has_float8).
std::vector<KernelSpec> drafter_kernels(const DrafterKernelShape& shape,
                                        const Architecture& architecture);

/// Kernels of a target's forward. Throws as check_shape().
std::vector<KernelSpec> target_kernels(const TargetKernelShape& shape);

/// A drafter that packs are built for.
struct ShippedDrafter {
    std::string name;  ///< of its target
    DrafterKernelShape drafter;
    TargetKernelShape target;
};

/// The published drafters (spec: config.json of z-lab's Qwen3-4B, Qwen3-8B, Qwen3.5-27B and
/// Qwen3.6-27B DFlash checkpoints), that of the demo, and one with heads of 256.
std::vector<ShippedDrafter> shipped_drafters();

/// The union of their kernels, with those for a head in fp8 where the architecture has it.
std::vector<KernelSpec> shipped_kernels(const Architecture& architecture);

}  // namespace dflash::kernels
