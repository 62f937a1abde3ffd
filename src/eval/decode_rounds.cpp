// SPDX-License-Identifier: Apache-2.0
// T tokens of a pass through the target, S sequences, H hidden size.
#include "block_verifier.hpp"
#include "round_steps.hpp"

#include <dflash/core/check.hpp>
#include <dflash/eval/decode_rounds.hpp>
#include <dflash/tensor/bridge.hpp>

#include <algorithm>
#include <c10/core/GradMode.h>
#include <chrono>
#include <utility>

namespace dflash::eval {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
}

class Decoding {
  public:
    Decoding(target::TargetModel& target,
             target::DecodeCache& cache,
             DraftSource& source,
             RoundSteps& steps,
             std::span<const DecodeTask> tasks,
             const DecodeOptions& options)
        : target_(target),
          cache_(cache),
          source_(source),
          steps_(steps),
          tasks_(tasks),
          options_(options) {
        const std::int64_t slots = std::min({options.slots, std::ssize(tasks), cache.slots()});
        for (std::int64_t slot = slots - 1; slot >= 0; --slot) {
            free_slots_.push_back(narrow<std::int32_t>(slot));
        }
        run_.texts.resize(tasks.size());
    }

    DecodeRun run() {
        while (next_task_ < tasks_.size() || !active_.empty()) {
            if (options_.stop && options_.stop()) {
                run_.complete = false;
                break;
            }
            if (next_task_ < tasks_.size() && !free_slots_.empty()) {
                const auto begin = Clock::now();
                read_prompts();
                run_.prompts_s += seconds_since(begin);
            } else {
                const auto begin = Clock::now();
                round();
                run_.rounds_s += seconds_since(begin);
            }
            leave();
            if (options_.on_progress) {
                options_.on_progress(done_, emitted_);
            }
        }
        return std::move(run_);
    }

  private:
    struct Sequence {
        std::size_t task = 0;
        std::int32_t slot = 0;
        std::vector<TokenId> tokens;  // prompt and all that was chosen, the last one the anchor
        bool done = false;
    };

    /// As many prompts as there are slots for and a pass takes.
    void read_prompts() {
        std::vector<TokenId> tokens;
        std::vector<std::int32_t> starts{0};
        std::vector<std::int32_t> slots;
        const std::size_t first = active_.size();
        while (next_task_ < tasks_.size() && !free_slots_.empty()) {
            const DecodeTask& task = tasks_[next_task_];
            if (!tokens.empty() &&
                std::ssize(tokens) + std::ssize(task.prompt) > kMostPromptTokens) {
                break;
            }
            const std::int32_t slot = free_slots_.back();
            free_slots_.pop_back();
            cache_.truncate(slot, 0);
            source_.truncate(slot, 0);
            run_.texts[next_task_].id = task.id;
            active_.push_back({next_task_, slot, task.prompt});
            tokens.insert(tokens.end(), task.prompt.begin(), task.prompt.end());
            starts.push_back(narrow<std::int32_t>(tokens.size()));
            slots.push_back(slot);
            ++next_task_;
        }
        const at::Tensor residual_TH = steps_.extend(tokens, starts, slots);
        std::vector<std::int32_t> last_rows;
        std::vector<std::int32_t> one_each{0};
        for (std::size_t i = 1; i < starts.size(); ++i) {
            last_rows.push_back(starts[i] - 1);
            one_each.push_back(narrow<std::int32_t>(i));
        }
        const at::Tensor last_SH = residual_TH.index_select(
            0, tensor::upload(std::span<const std::int32_t>(last_rows), residual_TH.device()));
        const std::span<Sequence> entered = std::span(active_).subspan(first);
        NoDrafts none;
        RoundDrafts no_drafts{.on_host = std::vector<std::vector<TokenId>>(entered.size()),
                              .drafted_SD = {}};
        const std::vector<BlockVerdict> verdicts = verify_blocks(
            target_, none, views(entered), no_drafts, last_SH, one_each, options_.rule);
        for (std::size_t i = 0; i < entered.size(); ++i) {
            take(entered[i], {}, verdicts[i]);
        }
    }

    void round() {
        const std::vector<SequenceView> sequences = views(active_);
        QueuedRound queued = steps_.run(sequences, options_.rule);
        const std::vector<BlockVerdict> verdicts = verify_blocks(target_,
                                                                 source_,
                                                                 sequences,
                                                                 queued.drafts,
                                                                 queued.residual_TH,
                                                                 queued.starts,
                                                                 options_.rule);
        for (std::size_t i = 0; i < active_.size(); ++i) {
            Sequence& sequence = active_[i];
            // Of what went through the target, the anchor and the accepted drafts stay.
            const std::int64_t start = std::ssize(sequence.tokens) - 1;
            const std::int64_t length = start + 1 + verdicts[i].accepted;
            cache_.truncate(sequence.slot, length);
            source_.truncate(sequence.slot, length);
            const std::vector<TokenId>& drafts = queued.drafts.on_host[i];
            run_.texts[sequence.task].rounds.push_back(
                {start, drafts, verdicts[i].accepted, verdicts[i].bonus});
            take(sequence, drafts, verdicts[i]);
        }
    }

    std::vector<SequenceView> views(std::span<const Sequence> sequences) const {
        std::vector<SequenceView> result;
        for (const Sequence& sequence : sequences) {
            result.push_back({sequence.slot, tasks_[sequence.task].id, sequence.tokens});
        }
        return result;
    }

    /// Adds accepted drafts and the bonus token.
    void take(Sequence& sequence, const std::vector<TokenId>& drafts, const BlockVerdict& verdict) {
        DecodedText& text = run_.texts[sequence.task];
        for (std::int64_t k = 0; k <= verdict.accepted; ++k) {
            const auto at = static_cast<std::size_t>(k);
            const TokenId token = k < verdict.accepted ? drafts[at] : verdict.bonus;
            sequence.tokens.push_back(token);
            if (sequence.done) {
                continue;
            }
            text.emitted.push_back(token);
            ++emitted_;
            if (!verdict.leads.empty()) {
                text.leads.push_back(verdict.leads[at]);
            }
            text.stopped =
                std::count(options_.stop_tokens.begin(), options_.stop_tokens.end(), token) > 0;
            sequence.done =
                text.stopped || std::ssize(text.emitted) == tasks_[sequence.task].max_new_tokens;
        }
    }

    void leave() {
        for (const Sequence& sequence : active_) {
            if (sequence.done) {
                free_slots_.push_back(sequence.slot);
                ++done_;
            }
        }
        std::erase_if(active_, [](const Sequence& sequence) { return sequence.done; });
    }

    target::TargetModel& target_;
    target::DecodeCache& cache_;
    DraftSource& source_;
    RoundSteps& steps_;
    std::span<const DecodeTask> tasks_;
    const DecodeOptions& options_;
    std::vector<std::int32_t> free_slots_;
    std::vector<Sequence> active_;
    std::size_t next_task_ = 0;
    std::int64_t done_ = 0;
    std::int64_t emitted_ = 0;
    DecodeRun run_;
};

}  // namespace

std::int64_t DecodeRun::round_tokens() const {
    std::int64_t tokens = 0;
    for (const DecodedText& text : texts) {
        tokens += std::ssize(text.emitted) - 1;
    }
    return tokens;
}

std::int64_t DecodeRun::target_calls() const {
    std::int64_t calls = 0;
    for (const DecodedText& text : texts) {
        calls += std::ssize(text.rounds);
    }
    return calls;
}

std::int64_t slot_capacity(std::span<const DecodeTask> tasks,
                           const DecodeOptions& options,
                           std::int64_t block_size) {
    std::int64_t capacity = 0;
    for (const DecodeTask& task : tasks) {
        DFLASH_CHECK(!task.prompt.empty() && task.max_new_tokens > 0,
                     "a prompt of {} tokens, {} to be written",
                     task.prompt.size(),
                     task.max_new_tokens);
        capacity = std::max(
            capacity,
            std::ssize(task.prompt) + std::max(task.max_new_tokens, options.room) + block_size);
    }
    return capacity;
}

RoundDecoder::RoundDecoder(target::TargetModel& target, std::int64_t slots, std::int64_t capacity)
    : target_(target), cache_(target.make_cache(slots, capacity)) {}

RoundDecoder::~RoundDecoder() = default;

std::int64_t RoundDecoder::slots() const {
    return cache_->slots();
}

std::int64_t RoundDecoder::capacity() const {
    return cache_->capacity();
}

void RoundDecoder::prepare(DraftSource& source, RoundShapes shapes) {
    const c10::NoGradGuard no_grad;
    source.allocate(slots(), capacity());
    const RoundSteps* before = steps_.empty() ? nullptr : steps_.back().get();
    steps_.push_back(std::make_unique<RoundSteps>(target_, *cache_, source, shapes, before));
}

DecodeRun RoundDecoder::decode(DraftSource& source,
                               std::span<const DecodeTask> tasks,
                               const DecodeOptions& options) {
    const c10::NoGradGuard no_grad;
    const auto steps = std::find_if(steps_.begin(), steps_.end(), [&](const auto& known) {
        return known->source() == &source;
    });
    DFLASH_CHECK(steps != steps_.end(), "a source of drafts that was not prepared");
    const std::int64_t need = slot_capacity(tasks, {}, source.block_size());
    DFLASH_CHECK(
        need <= capacity(), "tasks need slots of {} tokens, there are {}", need, capacity());
    return Decoding(target_, *cache_, source, **steps, tasks, options).run();
}

DecodeRun decode(target::TargetModel& target,
                 DraftSource& drafts,
                 std::span<const DecodeTask> tasks,
                 const DecodeOptions& options) {
    if (tasks.empty()) {
        return {};
    }
    RoundDecoder decoder(target,
                         std::min(options.slots, std::ssize(tasks)),
                         slot_capacity(tasks, options, drafts.block_size()));
    decoder.prepare(drafts, RoundShapes::Exact);
    return decoder.decode(drafts, tasks, options);
}

}  // namespace dflash::eval
