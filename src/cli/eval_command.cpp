// SPDX-License-Identifier: Apache-2.0
#include "eval_command.hpp"

#include <dflash/cli/train_options.hpp>
#include <dflash/core/error.hpp>
#include <dflash/train/acceptance_run.hpp>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <unistd.h>

namespace dflash::cli {
namespace {

std::vector<TrainOptions::Alias> eval_aliases() {
    return {
        {"--target",
         "run.target",
         "target model: an HF folder, or ORG/NAME in the Hugging Face cache",
         {}},
        {"--data", "run.data", "rows whose answers are decoded: files as for training", {}},
        {"--gpus",
         "run.gpus",
         "devices: all, 0-7, 0,2, cpu:N; prompts are dealt to them, with the same result",
         {}},
        {"--seed", "run.seed", "of the choice of rows and of sampled tokens", {}},
        {"--prompts", "eval.acceptance_prompts", "rows that are decoded (64), by the seed", {}},
        {"--max-new-tokens", "eval.acceptance_tokens", "longest answer in tokens (256)", {}},
        {"--temperature", "eval.temperature", "of target and drafter (0: greedy)", {}},
        {"--top-p", "eval.top_p", "share of the probability that sampling keeps (1: all)", {}},
        {"--top-k", "eval.top_k", "tokens that sampling keeps (0: all)", {}},
        {"--block-size", "eval.block_size", "slots of a block, at most the drafter's own", {}},
        {"--batch", "eval.batch", "prompts at a time on a device (8)", {}},
        {"--thinking", "eval.thinking", "true or false: whether prompts ask for reasoning", {}},
    };
}

}  // namespace

int eval_command(const Arguments& arguments, const std::string& command_line) {
    CLI::App app(
        "Decodes prompts with a drafter as servers do, and says how many drafted tokens the target "
        "keeps and how much faster that is, beside prompt look-up and plain decoding of the same "
        "prompts. Writes nothing.",
        "dflash eval");
    TrainOptions options;
    options.aliases = eval_aliases();
    train::AcceptanceRequest request;
    bool json = false;
    app.add_option(
        "--draft", request.draft, "the drafter: a folder such as RUN/best/draft, or ORG/NAME");
    options.add_settings_to(app);
    app.add_option("--show", request.show, "prints so many texts, with the tokens of each round")
        ->check(CLI::Range(0, 1000))
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    app.add_flag("--json", json, "prints the report as JSON");
    if (!parse(app, arguments)) {
        return 0;
    }
    if (request.draft.empty()) {
        throw Error(ErrorKind::Config,
                    {.what = "no drafter",
                     .where = "command line",
                     .cause = {},
                     .hint = "Name its folder: --draft RUN/best/draft"});
    }
    request.settings = resolve(options, command_line).settings;
    const bool shows = ::isatty(STDERR_FILENO) == 1;
    request.on_progress = [shows](const std::string& line) {
        fmt::print(stderr, "{}{}", shows ? "\r\x1b[K" : "", line);
        fmt::print(stderr, "{}", shows ? "" : "\n");
        std::fflush(stderr);
    };
    const train::AcceptanceReport report = train::judge_acceptance(request);
    if (shows) {
        fmt::print(stderr, "\r\x1b[K");
    }
    if (json) {
        fmt::print("{}\n", report.to_json().dump_pretty());
        return 0;
    }
    for (const std::string& line : report.to_lines()) {
        fmt::print("{}\n", line);
    }
    return 0;
}

}  // namespace dflash::cli
