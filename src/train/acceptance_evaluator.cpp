// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/check.hpp>
#include <dflash/tensor/bridge.hpp>
#include <dflash/train/acceptance_evaluator.hpp>
#include <dflash/train/acceptance_texts.hpp>
#include <dflash/train/kernel_start.hpp>

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

namespace dflash::train {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kWarmUpRounds = 2;  // of each number of sequences
constexpr std::size_t kAll = std::numeric_limits<std::size_t>::max();

double seconds_since(Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
}

}  // namespace

std::int64_t training_prompts(const EvalSettings& settings) {
    return settings.acceptance_prompts.value_or(kTrainingPrompts);
}

std::int64_t training_answer_tokens(const EvalSettings& settings) {
    return settings.acceptance_tokens.value_or(kTrainingAnswerTokens);
}

std::vector<DecodingSite> decoding_sites(const std::vector<std::unique_ptr<gpu::Worker>>& workers,
                                         const std::vector<std::unique_ptr<TargetReplica>>& targets,
                                         const model::DraftConfig& config,
                                         const KernelStart& kernels) {
    std::vector<DecodingSite> sites;
    for (const auto& worker : workers) {
        const at::Device device = tensor::torch_device(worker->device());
        const auto own = std::ranges::find_if(
            targets, [&](const auto& target) { return &target->worker() == worker.get(); });
        const auto shared = std::ranges::find_if(targets, [&](const auto& target) {
            return tensor::torch_device(target->worker().device()) == device;
        });
        if (shared == targets.end()) {
            continue;
        }
        DecodingSite site{.worker = worker.get()};
        if (own == targets.end()) {
            site.own_target = worker->call({"share the target"}, [&] {
                return target::replicate(
                    (*shared)->model(), device, kernels.make_row_ops(worker->device()));
            });
        }
        site.target = own == targets.end() ? site.own_target.get() : &(*own)->model();
        add_drafter(site, config, kernels);
        sites.push_back(std::move(site));
    }
    return sites;
}

AcceptanceEvaluator::AcceptanceEvaluator(std::vector<DecodingSite> sites,
                                         const EvalPrompts& prompts,
                                         std::vector<TokenId> stop_tokens,
                                         const EvalSettings& settings,
                                         DrafterRank& source)
    : pool_(std::move(sites)), prompts_(prompts.prompts), source_(source) {
    DFLASH_CHECK(!prompts_.empty(), "no prompts to decode");
    options_.stop_tokens = std::move(stop_tokens);
    options_.slots = settings.batch;
    for (const EvalPrompt& prompt : prompts_) {
        tasks_.push_back({prompt.row, prompt.tokens, training_answer_tokens(settings)});
    }
}

void AcceptanceEvaluator::warm_up() {
    for (const Decoding how : {Decoding::Rounds, Decoding::Lookup, Decoding::Drafter}) {
        pool_.warm_up(how, tasks_, options_, kWarmUpRounds);
    }
    // A text as long as any can be, once on each device.
    const auto longest = std::ranges::max_element(
        tasks_, {}, [](const eval::DecodeTask& task) { return task.prompt.size(); });
    JudgedText text{.tokens = longest->prompt, .begin = std::ssize(longest->prompt)};
    text.tokens.resize(text.tokens.size() + static_cast<std::size_t>(longest->max_new_tokens),
                       longest->prompt.front());
    pool_.warm_up_judging(text);
}

/// The target's own text, and what look-up would have drafted of it. False if a stop was asked for.
bool AcceptanceEvaluator::decode_plainly(const StopSignals& signals) {
    eval::DecodeOptions options = options_;
    options.stop = [&signals] { return signals.stop_requested(); };
    eval::DecodeRun plain = pool_.decode(Decoding::Rounds, tasks_, options);
    if (!plain.complete) {
        return false;
    }
    const eval::DecodeRun copied = pool_.decode(Decoding::Lookup, tasks_, options);
    if (!copied.complete) {
        return false;
    }
    eval::Acceptance lookup(pool_.config().block_size);
    for (const eval::DecodedText& text : copied.texts) {
        lookup.add(text);
    }
    lookup_tau_ = lookup.tau();
    plain_ = std::move(plain);
    return true;
}

std::optional<AcceptanceResult> AcceptanceEvaluator::run(const StopSignals& signals) {
    const Clock::time_point start = Clock::now();
    if (!plain_ && !decode_plainly(signals)) {
        return std::nullopt;
    }
    const Clock::time_point begin = Clock::now();
    // A copy: the drafter's own weights are its worker's.
    const at::Tensor flat = source_.worker().call({"read the weights"}, [&] {
        return source_.drafter().weights().compute_flat().to(at::kCPU,
                                                             /*non_blocking=*/false,
                                                             /*copy=*/true);
    });
    pool_.set_weights(flat);
    eval::DecodeOptions options = options_;
    options.stop = [&signals] { return signals.stop_requested(); };
    const eval::DecodeRun drafted = pool_.decode(Decoding::Drafter, tasks_, options);
    if (!drafted.complete) {
        return std::nullopt;
    }
    const std::int64_t block_size = pool_.config().block_size;
    AcceptanceResult result{.drafter = eval::Acceptance(block_size),
                            .lookup_tau = lookup_tau_,
                            .greedy = {},
                            .written = eval::TeacherForcedSums(block_size),
                            .agreement = {},
                            .answers = eval::TeacherForcedSums(block_size)};
    for (const eval::DecodedText& text : drafted.texts) {
        result.drafter.add(text);
    }
    result.greedy = pool_.compare(tasks_, plain_->texts, drafted.texts, [this](std::int64_t row) {
        return std::ranges::find(prompts_, row, &EvalPrompt::row)->place;
    });
    const JudgedTexts written =
        pool_.judge(written_texts(tasks_, drafted.texts, kAll), options.stop);
    result.written = written.sums;
    result.agreement = written.agreement;
    const auto longest = static_cast<std::size_t>(tasks_.front().max_new_tokens);
    result.answers = pool_.judge(answered_texts(prompts_, longest, kAll), options.stop).sums;
    if (signals.stop_requested()) {
        return std::nullopt;
    }
    last_s_ = seconds_since(begin);
    result.seconds = seconds_since(start);
    return result;
}

}  // namespace dflash::train
