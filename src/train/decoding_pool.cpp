// SPDX-License-Identifier: Apache-2.0
// T tokens, H hidden size.
#include <dflash/core/activity.hpp>
#include <dflash/core/check.hpp>
#include <dflash/eval/drafter_source.hpp>
#include <dflash/eval/plain_decoding.hpp>
#include <dflash/eval/prompt_lookup.hpp>
#include <dflash/tensor/bridge.hpp>
#include <dflash/train/acceptance_texts.hpp>
#include <dflash/train/decoding_pool.hpp>
#include <dflash/train/kernel_start.hpp>
#include <dflash/train/torch_worker.hpp>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

namespace dflash::train {
namespace {

std::int64_t capacity_of(std::span<const eval::DecodeTask> tasks) {
    std::int64_t capacity = 0;
    for (const eval::DecodeTask& task : tasks) {
        capacity = std::max(capacity, std::ssize(task.prompt) + task.max_new_tokens);
    }
    return capacity;
}

std::size_t num_groups(std::size_t tasks, std::int64_t slots) {
    const auto size = static_cast<std::size_t>(slots);
    return (tasks + size - 1) / size;
}

std::span<const eval::DecodeTask> group_of(std::span<const eval::DecodeTask> tasks,
                                           std::int64_t slots,
                                           std::size_t group) {
    const auto size = static_cast<std::size_t>(slots);
    const std::size_t first = group * size;
    return tasks.subspan(first, std::min(size, tasks.size() - first));
}

/// The same prompts with answers so short that half of the sequences, and half of the rest, end
/// every `rounds` rounds: each round gives a token at least.
std::vector<eval::DecodeTask> with_short_answers(std::span<const eval::DecodeTask> tasks,
                                                 int rounds) {
    std::vector<eval::DecodeTask> result(tasks.begin(), tasks.end());
    for (std::size_t i = 0; i < result.size(); ++i) {
        std::int64_t length = 1;  // from the prompt's own pass
        for (std::size_t left = result.size(); i < left; left /= 2) {
            length += rounds;
        }
        result[i].max_new_tokens = std::min(result[i].max_new_tokens, length);
    }
    return result;
}

/// How far apart the target has the logits of two tokens behind a text. The cache has always the
/// same size, so that the allocator has had it before.
double logit_distance(target::TargetModel& target,
                      std::span<const TokenId> tokens,
                      std::int64_t capacity,
                      TokenId one,
                      TokenId other) {
    const std::unique_ptr<target::DecodeCache> cache = target.make_cache(1, capacity);
    const std::vector<std::int32_t> starts{0, narrow<std::int32_t>(tokens.size())};
    const std::vector<std::int32_t> slots{0};
    const at::Tensor residual_TH =
        target.extend(*cache, {.tokens = tokens, .starts = starts, .slots = slots}, {}, {});
    const at::Tensor logits_V = target.logits(residual_TH.narrow(0, residual_TH.size(0) - 1, 1))[0];
    return std::abs(logits_V[one].item<double>() - logits_V[other].item<double>());
}

}  // namespace

void add_drafter(DecodingSite& site, const model::DraftConfig& config, const KernelStart& kernels) {
    const gpu::Device& device = site.worker->device();
    const at::Device on = tensor::torch_device(device);
    site.worker->call({"build a drafter for decoding"}, [&] {
        const model::FrozenEnds ends{site.target->embed_VH(), site.target->head_VH()};
        site.drafter = std::make_unique<model::Drafter>(config,
                                                        ends,
                                                        on,
                                                        compute_dtype(device),
                                                        kernels.make_drafter_paths(config, device),
                                                        model::DraftWeights::Use::Inference);
        site.decoder = std::make_unique<model::DraftDecoder>(
            config, ends, site.drafter->weights(), kernels.make_row_ops(device));
        synchronize_stream(device);
    });
}

/// What all devices know of groups that are decoded at the same time.
class DecodingPool::Groups {
  public:
    Groups(std::size_t count, const eval::DecodeOptions& options)
        : count_(count), options_(options), progress_(count) {}

    std::optional<std::size_t> take() {
        const std::size_t group = next_++;
        return group < count_ && !stop() ? std::optional(group) : std::nullopt;
    }

    bool stop() {
        if (options_.stop && options_.stop()) {
            stopped_ = true;
        }
        return stopped_;
    }

    void give_up() { stopped_ = true; }

    bool stopped() const { return stopped_; }

    /// Options for one group.
    eval::DecodeOptions options_of(std::size_t group) {
        eval::DecodeOptions options = options_;
        options.stop = [this] { return stop(); };
        options.on_progress = [this, group](std::int64_t done, std::int64_t tokens) {
            note_progress();
            if (!options_.on_progress) {
                return;
            }
            const std::lock_guard lock(mutex_);
            progress_[group] = {done, tokens};
            std::pair<std::int64_t, std::int64_t> sum{0, 0};
            for (const auto& [group_done, group_tokens] : progress_) {
                sum.first += group_done;
                sum.second += group_tokens;
            }
            options_.on_progress(sum.first, sum.second);
        };
        return options;
    }

  private:
    std::size_t count_;
    const eval::DecodeOptions& options_;
    std::atomic<std::size_t> next_ = 0;
    std::atomic<bool> stopped_ = false;
    std::mutex mutex_;  // guards: progress_
    std::vector<std::pair<std::int64_t, std::int64_t>> progress_;
};

/// What one device decodes with in rounds.
struct DecodingPool::Rounds {
    eval::NoDrafts none;
    eval::PromptLookup lookup;
    eval::DrafterSource drafter;
    eval::RoundDecoder decoder;
    std::set<Decoding> prepared{};

    Rounds(DecodingSite& site, std::int64_t block_size, std::int64_t slots, std::int64_t capacity)
        : lookup(block_size),
          drafter(*site.decoder, block_size),
          decoder(*site.target, slots, capacity) {}

    eval::DraftSource& source(Decoding how) {
        DFLASH_CHECK(how != Decoding::Generator, "the generator has no rounds");
        switch (how) {
            case Decoding::Drafter:
                return drafter;
            case Decoding::Lookup:
                return lookup;
            default:
                return none;
        }
    }

    eval::DecodeRun decode(Decoding how,
                           std::span<const eval::DecodeTask> tasks,
                           const eval::DecodeOptions& options) {
        return decoder.decode(source(how), tasks, options);
    }
};

DecodingPool::DecodingPool(std::vector<DecodingSite> sites)
    : sites_(std::move(sites)), rounds_(sites_.size()) {
    DFLASH_CHECK(!sites_.empty(), "no device to decode on");
}

DecodingPool::~DecodingPool() = default;

/// Runs body(i) on the worker of every site i at the same time; throws the first site's error.
/// `on_error` may tell the others not to go on.
void DecodingPool::on_all(const char* what,
                          const std::function<void(std::size_t site)>& body,
                          const std::function<void()>& on_error) {
    std::vector<std::exception_ptr> errors(sites_.size());
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < sites_.size(); ++i) {
        threads.emplace_back([&, i] {
            try {
                sites_[i].worker->call({what}, [&] { body(i); });
            } catch (...) {
                errors[i] = std::current_exception();
                if (on_error) {
                    on_error();
                }
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    for (const std::exception_ptr& error : errors) {
        if (error) {
            std::rethrow_exception(error);
        }
    }
}

void DecodingPool::set_weights(const at::Tensor& flat) {
    on_all("take the drafter's weights", [&](std::size_t i) {
        sites_[i].drafter->weights().compute_flat().copy_(flat);
        synchronize_stream(sites_[i].worker->device());
    });
}

/// Ready for `how`. On the site's worker.
DecodingPool::Rounds& DecodingPool::rounds_of(std::size_t site,
                                              Decoding how,
                                              std::span<const eval::DecodeTask> tasks,
                                              const eval::DecodeOptions& options) {
    const std::int64_t block_size = config().block_size;
    const std::int64_t slots = std::min(options.slots, std::ssize(tasks));
    const std::int64_t capacity = eval::slot_capacity(tasks, options, block_size);
    std::unique_ptr<Rounds>& rounds = rounds_[site];
    if (!rounds || rounds->decoder.slots() < slots || rounds->decoder.capacity() < capacity) {
        rounds.reset();  // first give back, then take
        rounds = std::make_unique<Rounds>(sites_[site], block_size, slots, capacity);
    }
    if (rounds->prepared.insert(how).second) {
        rounds->decoder.prepare(rounds->source(how), eval::RoundShapes::Graphs);
    }
    return *rounds;
}

eval::DecodeRun DecodingPool::decode(Decoding how,
                                     std::span<const eval::DecodeTask> tasks,
                                     const eval::DecodeOptions& options) {
    Groups groups(num_groups(tasks.size(), options.slots), options);
    eval::DecodeRun all;
    all.texts.resize(tasks.size());
    std::mutex mutex;  // guards: all
    const auto take = [&](std::size_t group, eval::DecodeRun run) {
        const std::lock_guard lock(mutex);
        all.prompts_s += run.prompts_s;
        all.rounds_s += run.rounds_s;
        all.complete = all.complete && run.complete;
        std::move(run.texts.begin(),
                  run.texts.end(),
                  all.texts.begin() + static_cast<std::ptrdiff_t>(group) * options.slots);
    };
    const auto body = [&](std::size_t i) {
        DecodingSite& site = sites_[i];
        std::unique_ptr<eval::PlainDecoder> plain;
        while (const auto group = groups.take()) {
            const std::span<const eval::DecodeTask> own = group_of(tasks, options.slots, *group);
            if (how == Decoding::Generator && !plain) {
                plain =
                    std::make_unique<eval::PlainDecoder>(*site.target,
                                                         std::min(options.slots, std::ssize(tasks)),
                                                         capacity_of(tasks),
                                                         options.stop_tokens);
            }
            const eval::DecodeOptions of_group = groups.options_of(*group);
            take(*group,
                 plain ? plain->decode(own, of_group)
                       : rounds_of(i, how, tasks, options).decode(how, own, of_group));
        }
    };
    on_all("decode prompts", body, [&] { groups.give_up(); });
    all.complete = all.complete && !groups.stopped();
    return all;
}

void DecodingPool::warm_up(Decoding how,
                           std::span<const eval::DecodeTask> tasks,
                           const eval::DecodeOptions& options,
                           int rounds) {
    on_all("warm up decoding", [&](std::size_t i) {
        for (std::size_t group = 0; group < num_groups(tasks.size(), options.slots); ++group) {
            const std::span<const eval::DecodeTask> own = group_of(tasks, options.slots, group);
            eval::DecodeOptions few = options;
            few.on_progress = [](std::int64_t, std::int64_t) { note_progress(); };
            rounds_of(i, how, tasks, options).decode(how, with_short_answers(own, rounds), few);
        }
    });
}

JudgedTexts DecodingPool::judge(std::span<const JudgedText> texts,
                                const std::function<bool()>& stop) {
    JudgedTexts all{eval::TeacherForcedSums(config().block_size), {}};
    std::atomic<std::size_t> next = 0;
    std::mutex mutex;  // guards: all
    on_all("judge texts", [&](std::size_t i) {
        eval::TeacherForced judged(*sites_[i].target, *sites_[i].drafter);
        eval::RoundAgreement agreement;
        for (std::size_t t = next++; t < texts.size(); t = next++) {
            if (stop && stop()) {
                break;
            }
            const JudgedText& text = texts[t];
            const eval::TeacherForcedText& leading = judged.add(text.tokens, text.begin);
            if (text.decoded != nullptr) {
                agreement.add(leading, *text.decoded);
            }
            note_progress();
        }
        const std::lock_guard lock(mutex);
        all.sums += judged.sums();
        all.agreement += agreement;
    });
    return all;
}

void DecodingPool::warm_up_judging(const JudgedText& text) {
    const std::vector<JudgedText> cuts = cut_in_halves(text);
    on_all("warm up judging", [&](std::size_t i) {
        eval::TeacherForced judged(*sites_[i].target, *sites_[i].drafter);
        for (const JudgedText& cut : cuts) {
            judged.add(cut.tokens, cut.begin);
            note_progress();
        }
    });
    // Ties are looked at on one device.
    DecodingSite& site = sites_.front();
    site.worker->call({"warm up looking at ties"}, [&] {
        for (const JudgedText& cut : cuts) {
            logit_distance(*site.target,
                           cut.tokens,
                           std::ssize(text.tokens),
                           cut.tokens.front(),
                           cut.tokens.front());
        }
    });
}

eval::GreedyComparison DecodingPool::compare(
    std::span<const eval::DecodeTask> tasks,
    std::span<const eval::DecodedText> plain,
    std::span<const eval::DecodedText> drafted,
    const std::function<std::string(std::int64_t)>& name_of) {
    DecodingSite& site = sites_.front();
    const auto distance_of =
        [&](std::size_t index, std::size_t position, TokenId one, TokenId other) {
            std::vector<TokenId> tokens = tasks[index].prompt;
            const std::vector<TokenId>& emitted = plain[index].emitted;
            tokens.insert(tokens.end(),
                          emitted.begin(),
                          emitted.begin() + static_cast<std::ptrdiff_t>(position));
            return site.worker->call({"look at a tie"}, [&] {
                return logit_distance(*site.target, tokens, capacity_of(tasks), one, other);
            });
        };
    return eval::compare_greedy(
        plain, drafted, compute_dtype(site.worker->device()), name_of, distance_of);
}

}  // namespace dflash::train
