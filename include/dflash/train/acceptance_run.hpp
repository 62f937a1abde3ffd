// SPDX-License-Identifier: Apache-2.0
// Judges a drafter by real decoding: draft and verify on prompts, beside prompt look-up and plain
// decoding of the same prompts in the same program.
#pragma once

#include <dflash/eval/acceptance.hpp>
#include <dflash/eval/greedy_check.hpp>
#include <dflash/io/json.hpp>
#include <dflash/model/config.hpp>
#include <dflash/train/eval_prompts.hpp>
#include <dflash/train/settings.hpp>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace dflash::train {

struct AcceptanceOptions {
    std::int64_t prompts = 64;  ///< at most; drawn by the seed where the files have more
    std::int64_t max_new_tokens = 256;
    double temperature = 0;  ///< of target and drafter; 0: greedy
    double top_p = 1;
    std::int64_t top_k = 0;                  ///< 0: off
    std::optional<std::int64_t> block_size;  ///< at most the drafter's, which is the default
    std::int64_t batch = 8;                  ///< prompts at a time
    std::optional<bool> thinking;            ///< of rows that do not say themselves
};

struct AcceptanceRequest {
    Settings settings;
    AcceptanceOptions options;
    std::string draft;  ///< folder of the drafter, or ORG/NAME in the Hugging Face cache
    /// Gets lines about what is being done.
    std::function<void(const std::string&)> on_progress{};
};

/// One way to decode the prompts.
struct DecodingResult {
    eval::Acceptance acceptance;
    std::int64_t round_tokens = 0;  ///< without the first of each text
    double rounds_s = 0;

    double tokens_per_s() const {
        return rounds_s > 0 ? static_cast<double>(round_tokens) / rounds_s : 0;
    }
};

/// Prompts that have something in common.
struct PromptGroup {
    std::string name;
    std::int64_t prompts = 0;
    eval::Acceptance drafter;
    eval::Acceptance lookup;
};

/// The drafter judged as training judges it, on finished texts.
struct TeacherForcedResult {
    std::int64_t texts = 0;
    std::vector<double> right_by_slot;
    double walked_tau = 0;
};

struct AcceptanceReport {
    std::string target;
    std::string draft;
    model::DraftConfig config;  ///< with the block size that was used
    AcceptanceOptions options;
    std::int64_t seed = 0;
    std::string device;
    std::int64_t num_prompts = 0;
    std::int64_t num_rows = 0;
    std::map<std::string, SkippedRows> left_out;
    DecodingResult drafter;
    DecodingResult lookup;
    DecodingResult plain;
    std::vector<PromptGroup> categories;
    std::vector<PromptGroup> modes;
    std::optional<eval::GreedyComparison> greedy;  ///< at temperature 0
    /// On the texts that were just written; at temperature 0.
    std::optional<TeacherForcedResult> written;
    std::int64_t compared_rounds = 0;  ///< of those texts ...
    std::int64_t equal_rounds = 0;     ///< ... that kept what the forward of training has right
    std::optional<TeacherForcedResult> answers;  ///< on the rows' own answers
    std::vector<std::string> warnings;

    io::Json to_json() const;

    /// A table for people.
    std::vector<std::string> to_lines() const;
};

/// Real decoding and the forward of training see the same features, so they may differ by the
/// rounding of near ties only: in fewer rounds than this share.
inline constexpr double kRoundsByRounding = 0.05;

/// On the data's own answers the expected acceptance is that of a target which would have written
/// them. A target that writes otherwise is easier or harder to draft for; below this share of the
/// expectation it is more than that.
inline constexpr double kLeastOfAnswers = 0.7;

/// Decodes on the first of settings.run.gpus, on cpu:N with N threads. Throws Error: Config for a
/// drafter that does not belong to the target, a block size above the drafter's, a context without
/// room for an answer; Data if no row can be answered; Internal if greedy text is not that of plain
/// decoding.
AcceptanceReport judge_acceptance(const AcceptanceRequest& request);

}  // namespace dflash::train
