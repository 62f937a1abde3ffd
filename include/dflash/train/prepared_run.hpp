// SPDX-License-Identifier: Apache-2.0
// What a run works on, found and judged before anything is loaded on a device or written: target,
// tokenizer, data, devices, drafter, plan.
#pragma once

#include <dflash/data/chat_format.hpp>
#include <dflash/data/dataset.hpp>
#include <dflash/data/packer.hpp>
#include <dflash/data/tokenizer.hpp>
#include <dflash/gpu/device.hpp>
#include <dflash/target/config.hpp>
#include <dflash/train/checkpoint.hpp>
#include <dflash/train/draft_choice.hpp>
#include <dflash/train/evaluator.hpp>
#include <dflash/train/plan.hpp>
#include <dflash/train/settings.hpp>

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace dflash::train {

struct PreparedRun {
    target::TargetLocation location;
    target::TargetConfig target;
    std::shared_ptr<const data::Tokenizer> tokenizer;
    std::shared_ptr<const data::ChatFormat> format;
    std::vector<gpu::Device> devices;
    std::unique_ptr<data::Dataset> training;
    std::unique_ptr<data::Dataset> evaluation;  ///< null: held-out rows come from `training`
    std::vector<SampleId> train_ids;
    std::vector<SampleId> held_out_ids;
    std::optional<LoadedDraft> init;
    DraftChoice draft;
    data::PackOptions pack;
    RunPlan plan;

    const data::Dataset& held_out_data() const { return evaluation ? *evaluation : *training; }
};

/// Finds and judges. Throws Error with the kind of what is wrong.
PreparedRun prepare_run(const Settings& settings);

/// What must be equal when the run is resumed.
Identity identity_of(Settings& settings, const PreparedRun& run);

/// The lines a run starts with: target, drafter, split, data, settings that are not defaults.
void print_header(const PreparedRun& run, const std::vector<std::string>& changed_settings);

}  // namespace dflash::train
