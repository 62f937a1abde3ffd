// SPDX-License-Identifier: Apache-2.0
// Real decoding inside training: the drafter as it is now drafts, and the run's own targets verify,
// greedily, on held-out prompts. Beside it what the forward of training expects of the same texts.
#pragma once

#include <dflash/eval/acceptance.hpp>
#include <dflash/eval/greedy_check.hpp>
#include <dflash/eval/teacher_forced.hpp>
#include <dflash/train/decoding_pool.hpp>
#include <dflash/train/drafter_rank.hpp>
#include <dflash/train/eval_prompts.hpp>
#include <dflash/train/settings.hpp>
#include <dflash/train/stop_signals.hpp>
#include <dflash/train/target_replica.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace dflash::train {

/// By rule; `dflash eval` has more.
inline constexpr std::int64_t kTrainingPrompts = 16;
inline constexpr std::int64_t kTrainingAnswerTokens = 128;

struct AcceptanceResult {
    eval::Acceptance drafter;
    double lookup_tau = 0;  ///< of prompt look-up on the same prompts
    eval::GreedyComparison greedy;
    eval::TeacherForcedSums written;  ///< training's forward on the texts that were decoded ...
    eval::RoundAgreement agreement;   ///< ... and whether its rounds are those of decoding
    eval::TeacherForcedSums answers;  ///< training's forward on the data's own answers
    double seconds = 0;
};

/// Used by the training loop's thread.
class AcceptanceEvaluator {
  public:
    /// The weights are those of `source`, on whose worker they are read. All must outlive this.
    AcceptanceEvaluator(std::vector<DecodingSite> sites,
                        const EvalPrompts& prompts,
                        std::vector<TokenId> stop_tokens,
                        const EvalSettings& settings,
                        DrafterRank& source);

    /// Makes libraries load and allocate what run() needs.
    void warm_up();

    /// Seconds that the last one took, without plain decoding: what the next one will cost.
    double cost_s() const { return last_s_; }

    /// Decodes the prompts and compares the text, token by token, with plain greedy decoding, which
    /// is done the first time only. The result does not depend on the number of devices, and
    /// training does not depend on it. Nothing when a stop is asked for. Throws Error{Internal} for
    /// a text that is not the target's.
    std::optional<AcceptanceResult> run(const StopSignals& signals);

    std::int64_t num_prompts() const { return std::ssize(prompts_); }

  private:
    bool decode_plainly(const StopSignals& signals);

    DecodingPool pool_;
    std::vector<EvalPrompt> prompts_;
    std::vector<eval::DecodeTask> tasks_;
    eval::DecodeOptions options_;
    DrafterRank& source_;
    std::optional<eval::DecodeRun> plain_;
    double lookup_tau_ = 0;
    double last_s_ = 0;
};

/// Who decodes in a run: the workers of targets, which must be whole, and whoever shares memory
/// with one, with the same weights. All must outlive the sites.
std::vector<DecodingSite> decoding_sites(const std::vector<std::unique_ptr<gpu::Worker>>& workers,
                                         const std::vector<std::unique_ptr<TargetReplica>>& targets,
                                         const model::DraftConfig& config,
                                         const KernelStart& kernels);

/// How many prompts, of how many tokens at most, are decoded in training; by rule or as set.
std::int64_t training_prompts(const EvalSettings& settings);
std::int64_t training_answer_tokens(const EvalSettings& settings);

}  // namespace dflash::train
