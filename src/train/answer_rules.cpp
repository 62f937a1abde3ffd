// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/log.hpp>
#include <dflash/train/answer_rules.hpp>
#include <dflash/train/stop_tokens.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <thread>

namespace dflash::train {

AnswerRules AnswerRules::read(const Settings& settings, const RunText& text) {
    const auto config = target::GenerationConfig::read(text.location.folder, text.target);
    const GenerateSettings& generate = settings.generate;
    AnswerRules rules{.sampling = config.sampling,
                      .stop_tokens = answer_stop_tokens(config, *text.tokenizer, *text.format),
                      .found_config = config.found,
                      .ignored = config.ignored};
    rules.sampling.temperature = generate.temperature.value_or(config.sampling.temperature);
    rules.sampling.top_p = generate.top_p.value_or(config.sampling.top_p);
    rules.sampling.top_k = generate.top_k.value_or(config.sampling.top_k);
    return rules;
}

std::string AnswerRules::describe_sampling() const {
    return sampling.greedy() ? "greedy"
                             : fmt::format("temperature {}, top_p {}, top_k {}",
                                           sampling.temperature,
                                           sampling.top_p,
                                           sampling.top_k);
}

void AnswerRules::warn() const {
    for (const std::string& what : ignored) {
        log_warning("generation_config.json asks for {}, which is not followed", what);
    }
    if (stop_tokens.empty()) {
        log_warning(
            "neither the target nor its chat format names a token that ends an answer: "
            "all answers are cut at generate.max_new_tokens");
    }
}

ResponseOptions response_options(const Settings& settings,
                                 data::AnswerChoice choice,
                                 const RunText& text,
                                 const AnswerRules& rules) {
    const GenerateSettings& generate = settings.generate;
    ResponseOptions options;
    options.choice = choice;
    options.thinking = generate.thinking == "on"    ? ThinkingMode::On
                       : generate.thinking == "off" ? ThinkingMode::Off
                                                    : ThinkingMode::Mixed;
    options.samples = generate.samples;
    options.max_new_tokens = generate.max_new_tokens;
    options.max_prompt_tokens = generate.max_prompt_tokens;
    options.context = text.target.max_position_embeddings;
    options.max_repeated = generate.max_repeated;
    options.sampling = rules.sampling;
    options.seed = static_cast<std::uint64_t>(settings.run.seed);
    options.render = settings.data.render;
    options.num_threads = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
    return options;
}

ResponseIdentity answer_identity(const Settings& settings,
                                 const RunText& text,
                                 const AnswerRules& rules) {
    return {{"chat format", std::string(text.format->name())},
            {"sampling", rules.describe_sampling()},
            {"stop tokens", fmt::format("{}", fmt::join(rules.stop_tokens, ", "))},
            {"seed", std::to_string(settings.run.seed)},
            {"generate.max_new_tokens", std::to_string(settings.generate.max_new_tokens)}};
}

}  // namespace dflash::train
