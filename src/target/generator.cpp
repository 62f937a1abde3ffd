// SPDX-License-Identifier: Apache-2.0
// Legend: T prompt tokens of a call, S sequences, V vocabulary, H hidden size.
#include "cached_attention.hpp"
#include "generator_steps.hpp"

#include <dflash/core/activity.hpp>
#include <dflash/core/check.hpp>
#include <dflash/core/error.hpp>
#include <dflash/gpu/event.hpp>
#include <dflash/tensor/bridge.hpp>

#include <algorithm>
#include <chrono>
#include <fmt/format.h>
#include <span>
#include <utility>

namespace dflash::target {
namespace {

// Stands for a token where the logits are not finite.
constexpr TokenId kNotFinite = -1;

}  // namespace

/// A sequence in a slot. What the device was asked for is ahead of what the host has read.
struct Generator::Row {
    GenerationRequest request;
    std::int64_t ticket = 0;      ///< tells it from others that had the slot
    std::int64_t prefilled = 0;   ///< prompt tokens in the cache
    std::int64_t chosen = 0;      ///< tokens of the answer that were asked for
    std::vector<TokenId> tokens;  ///< and read

    bool decodes() const { return chosen > 0 && chosen < request.max_new_tokens; }
};

/// Tokens of one step on their way to the host.
struct Generator::Reading {
    std::vector<std::int32_t> slots;
    std::vector<std::int64_t> tickets;
    at::Tensor tokens_S;  // int32, host, page-locked for a GPU
    std::optional<gpu::Event> arrived;
};

Generator::Generator(TargetModel& model, GeneratorOptions options)
    : model_(model),
      options_(std::move(options)),
      cache_(model.make_cache(options_.slots, options_.capacity)),
      latest_(at::zeros({options_.slots + 1}, model.embed_VH().options().dtype(at::kInt))),
      rows_(static_cast<std::size_t>(options_.slots)) {
    DFLASH_CHECK(options_.prefill_tokens >= 1, "prefill_tokens is {}", options_.prefill_tokens);
    std::sort(options_.stop_tokens.begin(), options_.stop_tokens.end());
    steps_ = std::make_unique<Steps>(
        model_, *cache_, latest_, options_.graphs && attends_without_host(model.embed_VH()));
}

Generator::~Generator() = default;

void Generator::run(const Next& next, const Take& take, const std::function<bool()>& stop) {
    while (!stop || !stop()) {
        admit(next);
        if (std::all_of(rows_.begin(), rows_.end(), [](const auto& row) { return !row; })) {
            drop_all();
            return;
        }
        const bool prefilled = prefill();
        const bool decoded = decode();
        // While the device has the newest step to do, the one before is read.
        const std::size_t ahead = (prefilled || decoded) && latest_.is_cuda() ? 1 : 0;
        while (readings_.size() > ahead) {
            read_oldest(take);
        }
        note_progress();
    }
    drop_all();
}

void Generator::admit(const Next& next) {
    for (std::size_t slot = 0; slot < rows_.size(); ++slot) {
        if (rows_[slot]) {
            continue;
        }
        std::optional<GenerationRequest> request = next();
        if (!request) {
            return;
        }
        const auto length = static_cast<std::int64_t>(request->prompt.size());
        // The last token of an answer is not put into the cache.
        DFLASH_CHECK(length >= 1 && request->max_new_tokens >= 1 &&
                         length + request->max_new_tokens - 1 <= options_.capacity,
                     "a prompt of {} tokens and an answer of {} for {}",
                     length,
                     request->max_new_tokens,
                     options_.capacity);
        rows_[slot] = std::make_unique<Row>();
        rows_[slot]->request = std::move(*request);
        rows_[slot]->ticket = next_ticket_++;
    }
}

// Prompts in the order of their arrival, the last one of a call perhaps in part.
bool Generator::prefill() {
    std::vector<std::int32_t> waiting;
    for (std::size_t slot = 0; slot < rows_.size(); ++slot) {
        if (rows_[slot] && rows_[slot]->chosen == 0) {
            waiting.push_back(static_cast<std::int32_t>(slot));
        }
    }
    if (waiting.empty()) {
        return false;
    }
    const auto row_of = [&](std::int32_t slot) -> Row& {
        return *rows_[static_cast<std::size_t>(slot)];
    };
    std::sort(waiting.begin(), waiting.end(), [&](std::int32_t a, std::int32_t b) {
        return row_of(a).ticket < row_of(b).ticket;
    });
    std::vector<TokenId> tokens;
    std::vector<std::int32_t> starts = {0};
    std::vector<std::int32_t> slots;
    std::vector<std::int32_t> ready;  // slots whose prompts end in this call ...
    std::vector<std::int64_t> last;   // ... and where
    for (const std::int32_t slot : waiting) {
        const auto room = options_.prefill_tokens - static_cast<std::int64_t>(tokens.size());
        if (room == 0) {
            break;
        }
        Row& row = row_of(slot);
        const std::vector<TokenId>& prompt = row.request.prompt;
        const auto length = static_cast<std::int64_t>(prompt.size());
        const std::int64_t count = std::min(room, length - row.prefilled);
        tokens.insert(
            tokens.end(), prompt.begin() + row.prefilled, prompt.begin() + row.prefilled + count);
        row.prefilled += count;
        starts.push_back(narrow<std::int32_t>(tokens.size()));
        slots.push_back(slot);
        if (row.prefilled == length) {
            ready.push_back(slot);
            last.push_back(static_cast<std::int64_t>(tokens.size()) - 1);
        }
    }
    const at::Tensor residual_TH =
        model_.extend(*cache_, {.tokens = tokens, .starts = starts, .slots = slots}, {}, {});
    if (!ready.empty()) {
        const at::Tensor last_S =
            tensor::upload(std::span<const std::int64_t>(last), residual_TH.device());
        choose(ready, model_.logits(residual_TH.index_select(0, last_S)));
    }
    return true;
}

bool Generator::decode() {
    std::vector<std::int32_t> slots;
    for (std::size_t slot = 0; slot < rows_.size(); ++slot) {
        if (rows_[slot] && rows_[slot]->decodes()) {
            slots.push_back(static_cast<std::int32_t>(slot));
        }
    }
    if (slots.empty()) {
        return false;
    }
    choose(slots, steps_->run(slots));
    return true;
}

// The next token of each slot, left in latest_ and sent to the host.
void Generator::choose(const std::vector<std::int32_t>& slots, const at::Tensor& logits_SV) {
    const at::Device device = logits_SV.device();
    auto reading = std::make_unique<Reading>();
    reading->slots = slots;
    std::vector<Sampling> rules;
    std::vector<float> uniforms;
    for (const std::int32_t slot : slots) {
        Row& row = *rows_[static_cast<std::size_t>(slot)];
        reading->tickets.push_back(row.ticket);
        rules.push_back(row.request.sampling);
        uniforms.push_back(sampling_uniform(row.request.seed, row.request.sequence, row.chosen));
        ++row.chosen;
    }
    if (!rules_ || rules != rules_of_last_) {
        rules_ = std::make_unique<SamplingRules>(rules, device);
        rules_of_last_ = std::move(rules);
    }
    at::Tensor uniforms_S;
    if (!rules_->all_greedy()) {
        uniforms_S = tensor::upload(std::span<const float>(uniforms), device);
    }
    const at::Tensor finite_S = logits_SV.amax(1).isfinite();
    const at::Tensor chosen_S = rules_->choose(logits_SV, uniforms_S).to(at::kInt);
    latest_.index_copy_(
        0, tensor::upload(std::span<const std::int32_t>(slots), device).to(at::kLong), chosen_S);
    const at::Tensor tokens_S = at::where(finite_S, chosen_S, kNotFinite);
    if (device.is_cuda()) {
        reading->tokens_S =
            at::empty(tokens_S.sizes(), at::TensorOptions().dtype(at::kInt).pinned_memory(true));
        reading->tokens_S.copy_(tokens_S, /*non_blocking=*/true);
        reading->arrived.emplace();
        reading->arrived->record(tensor::current_stream(device));
    } else {
        reading->tokens_S = tokens_S.to(at::kInt);
    }
    readings_.push_back(std::move(reading));
}

void Generator::read_oldest(const Take& take) {
    const std::unique_ptr<Reading> reading = std::move(readings_.front());
    readings_.erase(readings_.begin());
    if (reading->arrived) {
        reading->arrived->synchronize();
    }
    const auto* tokens = reading->tokens_S.const_data_ptr<TokenId>();
    for (std::size_t i = 0; i < reading->slots.size(); ++i) {
        std::unique_ptr<Row>& row = rows_[static_cast<std::size_t>(reading->slots[i])];
        if (!row || row->ticket != reading->tickets[i]) {
            continue;  // it had ended before this step, which nobody knew yet
        }
        if (tokens[i] == kNotFinite) {
            throw Error(ErrorKind::Numeric,
                        {.what = fmt::format("the target's logits are not finite after {} prompt "
                                             "tokens and {} of the answer, expected numbers",
                                             row->request.prompt.size(),
                                             row->tokens.size()),
                         .where = fmt::format("prompt {}", row->request.id),
                         .cause = {},
                         .hint = "Check the weights of the target"});
        }
        row->tokens.push_back(tokens[i]);
        tokens_chosen_.fetch_add(1, std::memory_order_relaxed);
        const bool stopped =
            std::binary_search(options_.stop_tokens.begin(), options_.stop_tokens.end(), tokens[i]);
        if (stopped ||
            static_cast<std::int64_t>(row->tokens.size()) == row->request.max_new_tokens) {
            Generation done{
                .id = row->request.id, .tokens = std::move(row->tokens), .stopped = stopped};
            row.reset();
            cache_->truncate(reading->slots[i], 0);
            take(std::move(done));
        }
    }
}

double Generator::time_step() {
    std::vector<std::int32_t> slots;
    for (std::int64_t slot = 0; slot < options_.slots; ++slot) {
        slots.push_back(static_cast<std::int32_t>(slot));
        cache_->note_appended(slot, options_.capacity / 4);  // of whatever lies there
    }
    double seconds = 0;
    for (int i = 0; i < 2; ++i) {  // the first one warms up
        const auto begin = std::chrono::steady_clock::now();
        const at::Tensor best_S = steps_->run(slots).argmax(1).cpu();  // waits
        seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
        for (const std::int32_t slot : slots) {
            cache_->truncate(slot, options_.capacity / 4);
        }
    }
    drop_all();
    return seconds;
}

void Generator::drop_all() {
    while (!readings_.empty()) {
        if (readings_.front()->arrived) {
            readings_.front()->arrived->synchronize();
        }
        readings_.erase(readings_.begin());
    }
    for (std::size_t slot = 0; slot < rows_.size(); ++slot) {
        rows_[slot].reset();
        cache_->truncate(static_cast<std::int64_t>(slot), 0);
    }
}

}  // namespace dflash::target
