// SPDX-License-Identifier: Apache-2.0
// Legend: T tokens of a call, H hidden size, V vocabulary.
#include <dflash/core/log.hpp>
#include <dflash/core/text.hpp>
#include <dflash/tensor/bridge.hpp>
#include <dflash/train/answer_check.hpp>
#include <dflash/train/answer_rules.hpp>
#include <dflash/train/answering.hpp>
#include <dflash/train/run_answers.hpp>

#include <algorithm>
#include <chrono>
#include <fmt/format.h>
#include <span>
#include <utility>

namespace dflash::train {
namespace {

// Of an answer: 64 rows give some 4,000, so that a share is known to about a point.
constexpr std::int64_t kAnswerTokens = 64;
constexpr std::int64_t kMostPromptTokens = 2048;
constexpr double kForeign = 0.15;
// No further rows are begun after that time.
constexpr double kMostSeconds = 15;
constexpr std::int64_t kGroupCuda = 64;
constexpr std::int64_t kGroupCpu = 4;

using Clock = std::chrono::steady_clock;

/// A question, and its answer by the data or by the target.
struct Question {
    std::vector<TokenId> prompt;
    std::vector<TokenId> answer;
};

// The first answer of a sample; nothing if it has none that can be compared.
std::optional<Question> question_of(const data::Sample& sample) {
    const auto first = std::ranges::find(sample.trainable, 1);
    const auto begin = first - sample.trainable.begin();
    if (first == sample.trainable.end() || begin == 0 || begin > kMostPromptTokens) {
        return std::nullopt;
    }
    const auto end = std::min<std::ptrdiff_t>(
        std::find(first, sample.trainable.end(), 0) - sample.trainable.begin(),
        begin + kAnswerTokens);
    return Question{.prompt = {sample.tokens.begin(), sample.tokens.begin() + begin},
                    .answer = {sample.tokens.begin() + begin, sample.tokens.begin() + end}};
}

// Samples whose answers are the data's.
std::vector<SampleId> own_samples(const PreparedRun& run) {
    std::vector<SampleId> own;
    for (const SampleId id : run.train_ids) {
        if (!run.answers || !run.answers->asks(id)) {
            own.push_back(id);
        }
    }
    return own;
}

std::vector<Question> choose_questions(const PreparedRun& run,
                                       const std::vector<SampleId>& own,
                                       std::int64_t wanted) {
    std::vector<Question> questions;
    const std::int64_t count = std::min<std::int64_t>(wanted, std::ssize(own));
    for (std::int64_t i = 0; i < count; ++i) {
        const SampleId id = own[static_cast<std::size_t>(i * std::ssize(own) / count)];
        if (auto question = question_of(run.training->encode(id))) {
            questions.push_back(std::move(*question));
        }
    }
    return questions;
}

// How many tokens of the answer are the target's likeliest ones.
std::int64_t count_likeliest(target::TargetModel& model,
                             target::DecodeCache& cache,
                             const std::vector<TokenId>& prompt,
                             const std::vector<TokenId>& answer) {
    std::vector<TokenId> tokens = prompt;
    tokens.insert(tokens.end(), answer.begin(), answer.end() - 1);
    const std::vector<std::int32_t> starts = {0, static_cast<std::int32_t>(tokens.size())};
    const std::vector<std::int32_t> slots = {0};
    const at::Tensor residual_TH =
        model.extend(cache, {.tokens = tokens, .starts = starts, .slots = slots}, {}, {});
    const auto length = static_cast<std::int64_t>(answer.size());
    const at::Tensor last_TH =
        residual_TH.narrow(0, static_cast<std::int64_t>(prompt.size()) - 1, length);
    const at::Tensor likeliest_T = model.logits(last_TH).argmax(1).to(at::kInt).cpu();
    cache.truncate(0, 0);
    const std::span<const TokenId> likeliest(likeliest_T.const_data_ptr<TokenId>(), answer.size());
    std::int64_t equal = 0;
    for (std::size_t i = 0; i < answer.size(); ++i) {
        equal += likeliest[i] == answer[i] ? 1 : 0;
    }
    return equal;
}

// The target's own answers, as long as those of the data may be.
std::vector<Question> answer_anew(target::Generator& generator,
                                  std::span<const Question> questions,
                                  const AnswerRules& rules,
                                  std::int64_t seed) {
    std::vector<Question> answered;
    std::size_t next = 0;
    generator.run(
        [&]() -> std::optional<target::GenerationRequest> {
            if (next == questions.size()) {
                return std::nullopt;
            }
            const auto id = static_cast<std::int64_t>(next);
            return target::GenerationRequest{.id = id,
                                             .prompt = questions[next++].prompt,
                                             .max_new_tokens = kAnswerTokens,
                                             .sampling = rules.sampling,
                                             .seed = static_cast<std::uint64_t>(seed),
                                             .sequence = static_cast<std::uint64_t>(id)};
        },
        [&](target::Generation generation) {
            answered.push_back({.prompt = questions[static_cast<std::size_t>(generation.id)].prompt,
                                .answer = std::move(generation.tokens)});
        });
    return answered;
}

// Whether the whole target fits the device beside what a few answers need.
bool fits(const PreparedRun& run, const gpu::Device& device) {
    const Bytes element = device.is_cuda() ? 2 : 4;
    const Bytes weights =
        run.target.num_parameters(run.target.num_layers, /*with_ends=*/true) * element;
    return weights + weights / 4 < gpu::memory_of(device).free_bytes;
}

void tell(const AnswerShares& shares,
          const PreparedRun& run,
          const Settings& settings,
          double seconds,
          double tokens_per_second) {
    const std::string found = fmt::format(
        "{:.0f} % of the tokens of the data's answers are the target's likeliest ones, of its own "
        "answers to the same questions {:.0f} % ({} rows, {} and {} tokens, {})",
        100 * shares.share(),
        100 * shares.own_share(),
        shares.rows,
        format_count(shares.tokens),
        format_count(shares.own_tokens),
        format_seconds(seconds));
    if (!shares.foreign()) {
        log_info("answers   {}", found);
        return;
    }
    const data::DataReport& report = run.training->report();
    const auto devices = static_cast<double>(run.devices.size());
    log_warning(
        "these are not the target's answers: {}. A drafter learns to guess what the target writes; "
        "--set data.responses=regenerate lets it answer all rows in this run, and dflash generate "
        "--all --target {} --data {} --output answers.jsonl beforehand, in about {}. Answers that "
        "were "
        "drawn at a temperature T compare with its own after --set generate.temperature=T",
        found,
        shell_word(settings.run.target),
        shell_word(settings.run.data),
        format_seconds(static_cast<double>(report.trainable_tokens) /
                       std::max(tokens_per_second * devices, 1e-9)));
}

}  // namespace

double AnswerShares::share() const {
    return tokens > 0 ? static_cast<double>(likeliest) / static_cast<double>(tokens) : 0;
}

double AnswerShares::own_share() const {
    return own_tokens > 0 ? static_cast<double>(own_likeliest) / static_cast<double>(own_tokens)
                          : 0;
}

bool AnswerShares::foreign() const {
    return tokens > 0 && own_tokens > 0 && own_share() - share() > kForeign;
}

std::optional<AnswerShares> check_answers(const PreparedRun& run,
                                          const Settings& settings,
                                          Whereabouts& whereabouts,
                                          Watchdog& watchdog,
                                          StatusBoard& board,
                                          const StopSignals& signals) {
    const std::vector<SampleId> own = own_samples(run);
    if (own.empty()) {
        return std::nullopt;
    }
    if (settings.data.check_answers == 0) {
        log_info(
            "answers   of the data are not compared with the target's: data.check_answers = 0");
        return std::nullopt;
    }
    const std::vector<Question> questions = choose_questions(run, own, settings.data.check_answers);
    if (questions.empty() || signals.stop_requested()) {
        return std::nullopt;
    }
    const gpu::Device& device = run.devices.front();
    if (!fits(run, device)) {
        log_info(
            "answers   of the data are not compared with the target's: the whole target does "
            "not fit {} alone",
            device.name);
        return std::nullopt;
    }
    const Activity::Scope activity(whereabouts.loop(), "compare answers");
    const auto comparing = board.enter(report::RunState::Starting, "comparing answers");
    const RunText text{.location = run.location,
                       .target = run.target,
                       .tokenizer = run.tokenizer,
                       .format = run.format,
                       .format_origin = run.format_origin};
    const AnswerRules rules = AnswerRules::read(settings, text);
    std::size_t longest = 0;
    for (const Question& question : questions) {
        longest = std::max(longest, question.prompt.size());
    }
    const std::int64_t capacity = static_cast<std::int64_t>(longest) + kAnswerTokens;
    const std::int64_t group =
        std::min<std::int64_t>(device.is_cuda() ? kGroupCuda : kGroupCpu, std::ssize(questions));
    AnswerShares shares;
    double tokens_per_second = 0;
    const auto begin = Clock::now();
    const auto seconds = [&] {
        return std::chrono::duration<double>(Clock::now() - begin).count();
    };
    {
        Answering answering(text,
                            {.devices = {device},
                             .stop_tokens = rules.stop_tokens,
                             .capacity = capacity,
                             .batch = group,
                             .cache = settings.cache},
                            whereabouts,
                            watchdog);
        tokens_per_second = answering.tokens_per_second();
        std::span<const Question> left(questions);
        while (!left.empty() && !signals.stop_requested() &&
               (shares.rows == 0 || seconds() < kMostSeconds)) {
            const std::span<const Question> now =
                left.first(std::min(left.size(), static_cast<std::size_t>(group)));
            left = left.subspan(now.size());
            answering.with_first(
                "compare answers", [&](target::TargetModel& model, target::Generator& generator) {
                    const auto cache = model.make_cache(1, capacity);
                    for (const Question& question : now) {
                        shares.tokens += std::ssize(question.answer);
                        shares.likeliest +=
                            count_likeliest(model, *cache, question.prompt, question.answer);
                    }
                    for (const Question& anew :
                         answer_anew(generator, now, rules, settings.run.seed)) {
                        shares.own_tokens += std::ssize(anew.answer);
                        shares.own_likeliest +=
                            count_likeliest(model, *cache, anew.prompt, anew.answer);
                    }
                });
            shares.rows += std::ssize(now);
        }
    }
    whereabouts.forget_parts();
    tell(shares, run, settings, seconds(), tokens_per_second);
    return shares;
}

}  // namespace dflash::train
