// SPDX-License-Identifier: Apache-2.0
// The plan of a run: who does what, how large a step is, what it needs of memory and disk, and
// about how long it takes. Made before anything is loaded; refuses with numbers what cannot fit.
#pragma once

#include <dflash/core/types.hpp>
#include <dflash/data/dataset.hpp>
#include <dflash/gpu/device.hpp>
#include <dflash/model/config.hpp>
#include <dflash/target/config.hpp>
#include <dflash/train/settings.hpp>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace dflash::train {

/// Which logical devices hold a target, and which train. Positions in the list of devices; they may
/// overlap.
struct Roles {
    std::vector<int> targets;
    std::vector<int> drafters;
    std::string reason;
};

/// FLOPs of one mean packed row, for the two roles.
struct RowCost {
    double target_flops = 0;
    double draft_flops = 0;
};

/// Real decoding at evaluations: what it needs on every device that shares memory with a target.
struct AcceptanceNeed {
    std::int64_t prompts = 0;
    std::int64_t answer_tokens = 0;  ///< at most
    std::int64_t slots = 0;          ///< prompts at a time on a device
    std::int64_t capacity = 0;       ///< tokens of the longest prompt with its answer
    std::int64_t pass_tokens = 0;    ///< of the largest pass over prompts
};

struct DevicePlan {
    gpu::Device device;
    bool has_target = false;
    bool has_drafter = false;
    Bytes target_weights = 0;
    Bytes draft_state =
        0;  ///< weights, gradients, master weights, moments, frozen embedding and head
    Bytes float8_head = 0;  ///< the part of draft_state that is the head in 8 bits
    Bytes activations = 0;
    Bytes recompute_saves = 0;  ///< what activations would take beside that without recomputing
    Bytes feature_slots = 0;
    Bytes acceptance = 0;  ///< real decoding: the target's other layers, a drafter, caches

    Bytes needed() const {
        return target_weights + draft_state + activations + feature_slots + acceptance;
    }
};

struct RunPlan {
    Roles roles;
    RowCost cost;
    int num_slots = 0;
    std::int64_t max_row_tokens = 0;
    std::int64_t max_row_blocks = 0;
    double rows_per_epoch = 0;  ///< estimate: the packer decides
    double tokens_per_row = 0;
    double anchors_per_row = 0;
    std::int64_t recompute_layers = 0;
    double recompute_share = 0;  ///< of the drafter's work without it
    double steps = 0;            ///< estimate for the whole run; 0 if it is bounded by hours
    double seconds = 0;          ///< rough: 40 % of a device's peak
    Bytes checkpoint_bytes = 0;  ///< one whole save
    Bytes disk_needed = 0;
    Bytes save_buffers = 0;  ///< host memory from which checkpoints are written
    std::vector<DevicePlan> devices;
    std::optional<AcceptanceNeed> acceptance;  ///< nothing: no real decoding ...
    std::string acceptance_off;                ///< ... and why, where nobody asked for that

    /// The lines that are printed before a run and by `dflash plan`.
    std::vector<std::string> to_lines() const;
};

struct PlanInput {
    const Settings& settings;
    const target::TargetConfig& target;
    const model::DraftConfig& draft;
    const data::DataReport& data;  ///< of the training data
    std::int64_t num_train_samples = 0;
    std::vector<gpu::Device> devices;
    /// Free memory of a device; injected so that tests can plan machines that are not there.
    std::function<gpu::DeviceMemory(const gpu::Device&)> memory;
    std::optional<AcceptanceNeed> acceptance{};
    std::string acceptance_off{};
};

/// Roles by the override (run.split, run.target_gpus, run.draft_gpus) or by cost: the split T + D
/// that minimises max(target cost / T, drafter cost / D); one device does both. Throws
/// Error{Config} for an override that does not fit.
Roles choose_roles(const RunSettings& settings, int num_devices, const RowCost& cost);

/// Cost of a mean row from the shapes; spec: forward and backward of trainable products count three
/// times, of the frozen head twice, attention 3.5 times.
RowCost row_cost(const target::TargetConfig& target,
                 const model::DraftConfig& draft,
                 double tokens_per_row,
                 double documents_per_row,
                 double anchors_per_row);

/// Makes the plan. Throws Error{Config} with the bytes needed and there if a device cannot hold its
/// role. Real decoding for which there is no room is left out, with the reason.
RunPlan make_plan(const PlanInput& input);

/// Throws Error{Storage} if `folder`'s file system has less than plan.disk_needed; what a run that
/// is resumed has saved there counts as free, since it makes room.
void check_free_disk(const RunPlan& plan, const std::string& folder);

}  // namespace dflash::train
