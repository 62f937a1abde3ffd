// SPDX-License-Identifier: Apache-2.0
// Judges a drafter by real decoding: draft and verify on prompts, beside prompt look-up and plain
// decoding of the same prompts in the same program.
#pragma once

#include <dflash/eval/acceptance.hpp>
#include <dflash/eval/greedy_check.hpp>
#include <dflash/eval/teacher_forced.hpp>
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

struct AcceptanceRequest {
    Settings settings;  ///< run.target, run.data, run.gpus, run.seed, eval, data, cache, watchdog
    std::string draft;  ///< folder of the drafter, or ORG/NAME in the Hugging Face cache
    int show = 0;       ///< texts that the report holds
    /// Gets lines about what is being done, from any thread, one at a time.
    std::function<void(const std::string&)> on_progress{};
};

/// One way to decode the prompts.
struct DecodingResult {
    eval::Acceptance acceptance;
    std::int64_t round_tokens = 0;  ///< without the first of each text
    double rounds_s = 0;            ///< of all devices together

    /// Of one device.
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

/// A prompt decoded both ways. Texts of tokens; a piece that ends within a character shows it as
/// U+FFFD.
struct ShownText {
    /// Of a round: drafts that were kept, those that were refused, and the target's own token.
    struct Piece {
        std::string kept;
        std::string refused;
        std::string own;
        std::int64_t num_kept = 0;
    };

    std::string place;
    std::string prompt;
    std::string plain;
    std::int64_t plain_passes = 0;
    std::string first;  ///< the token that the prompt's own pass gives
    std::vector<Piece> rounds;
};

struct AcceptanceReport {
    std::string target;
    std::string draft;
    model::DraftConfig config;  ///< with the block size that was used
    EvalSettings eval;          ///< with the numbers that were used
    std::int64_t seed = 0;
    std::vector<std::string> devices;  ///< "cuda:0: NVIDIA H200"
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
    /// Rounds of those texts, and those that kept what the forward of training has right.
    eval::RoundAgreement agreement;
    std::optional<TeacherForcedResult> answers;  ///< on the rows' own answers
    std::vector<ShownText> shown;
    std::vector<std::string> warnings;

    io::Json to_json() const;

    /// A table for people.
    std::vector<std::string> to_lines() const;
};

/// Decodes on all of settings.run.gpus: prompts are dealt to them in groups of eval.batch, so the
/// result does not depend on their number. Plain decoding is the target's generator. Ends the
/// process when nothing moves for watchdog.after. Throws Error: Config for a drafter that does not
/// belong to the target, a block size above the drafter's, a context without room for an answer;
/// Data if no row can be answered; Internal if greedy text is not that of plain decoding.
AcceptanceReport judge_acceptance(const AcceptanceRequest& request);

}  // namespace dflash::train
