// SPDX-License-Identifier: Apache-2.0
// What a run works on, found and judged before anything is loaded on a device or written: target,
// tokenizer, data, devices, drafter, plan.
#pragma once

#include <dflash/data/chat_format.hpp>
#include <dflash/data/data_history.hpp>
#include <dflash/data/dataset.hpp>
#include <dflash/data/mixture.hpp>
#include <dflash/data/packer.hpp>
#include <dflash/data/tokenizer.hpp>
#include <dflash/gpu/device.hpp>
#include <dflash/model/head_precision.hpp>
#include <dflash/model/loss_weights.hpp>
#include <dflash/target/config.hpp>
#include <dflash/train/checkpoint.hpp>
#include <dflash/train/draft_choice.hpp>
#include <dflash/train/epoch_sizes.hpp>
#include <dflash/train/eval_prompts.hpp>
#include <dflash/train/evaluator.hpp>
#include <dflash/train/plan.hpp>
#include <dflash/train/settings.hpp>

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace dflash::train {

/// What a run that is resumed knew of its data, and whether they may have grown since.
struct SavedData {
    data::DataHistory history;
    data::Cursor cursor;
    bool extend = false;
    std::string run_folder;  ///< for messages
};

class RunAnswers;

struct PreparedRun {
    target::TargetLocation location;
    target::TargetConfig target;
    std::shared_ptr<const data::Tokenizer> tokenizer;
    std::shared_ptr<const data::ChatFormat> format;
    std::string format_origin;  ///< by what it was recognised
    std::vector<gpu::Device> devices;
    std::shared_ptr<RunAnswers> answers;  ///< of rows that the target answers; null: of none
    std::unique_ptr<data::Dataset> training;
    std::unique_ptr<data::Dataset> evaluation;  ///< null: held-out rows come from `training`
    std::optional<data::DataHistory> history;   ///< set by prepare_run
    std::string growth;               ///< for people: how the data grew; empty: it did not
    std::vector<SampleId> train_ids;  ///< rising; an epoch has the first ones of them
    std::vector<SampleId>
        held_out_ids;                ///< of the rows that the run began with, whatever came since
    EvalPrompts acceptance_prompts;  ///< of held-out samples, to be really decoded; may be empty
    data::Mixture mixture;
    EpochSizes epoch_ids{1};     ///< of how many of the train_ids an epoch is drawn
    EpochSizes epoch_sizes{1};   ///< and how many samples it has
    EpochSizes sizes_before{1};  ///< without what this start adds
    std::optional<LoadedDraft> init;
    DraftChoice draft;
    data::PackOptions pack;
    model::LossWeights loss_weights;
    model::HeadPrecision head_precision = model::HeadPrecision::Compute;
    RunPlan plan;

    const data::Dataset& held_out_data() const { return evaluation ? *evaluation : *training; }

    /// Training samples among the rows that the run began with.
    std::vector<SampleId> first_train_ids() const;
};

/// Sizes of the epochs under a history of the data. `train_ids` rise.
EpochSizes epoch_sizes_of(const std::vector<SampleId>& train_ids,
                          std::span<const data::DataState> states,
                          const data::Mixture& mixture);

/// Finds and judges. `saved`: of a run that is resumed; its data must be as they were, or have
/// grown at their end if that is allowed. New rows enter at the next epoch. Throws Error with the
/// kind of what is wrong.
///
/// Where the data has rows that the target is to answer (data.responses), their answers are those
/// of `answers`, or of new ones: those that `run_folder` holds (empty: none), all others still to
/// come.
PreparedRun prepare_run(const Settings& settings,
                        const std::optional<SavedData>& saved = std::nullopt,
                        std::shared_ptr<RunAnswers> answers = {},
                        const std::string& run_folder = {});

/// What tells a target from others: architecture, names and shapes of its weights, and some of
/// their bytes.
std::string target_fingerprint(const target::TargetConfig& target, const std::string& folder);

/// The entry of an Identity that holds the history of the data (DataHistory::to_text).
inline constexpr const char* kDataIdentity = "data";

/// The settings' choice of weights in the loss.
model::LossWeights loss_weights_of(const TrainSettings& settings);

/// What must be equal when the run is resumed, and the history of the data.
Identity identity_of(Settings& settings, const PreparedRun& run);

/// The lines about its data.
void print_data(const PreparedRun& run);

/// The lines a run starts with: target, drafter, split, data, settings that are not defaults.
void print_header(const PreparedRun& run, const std::vector<std::string>& changed_settings);

}  // namespace dflash::train
