// SPDX-License-Identifier: Apache-2.0
#include "generate_command.hpp"

#include <dflash/cli/signals.hpp>
#include <dflash/cli/train_options.hpp>
#include <dflash/train/generate.hpp>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

namespace dflash::cli {
namespace {

std::vector<TrainOptions::Alias> aliases() {
    return {
        {"--target",
         "run.target",
         "target model: an HF folder, or ORG/NAME in the Hugging Face cache",
         {}},
        {"--data",
         "run.data",
         "rows to answer: JSON lines (plain, .gz, .zst); several and patterns: 'a.jsonl,more/*'",
         {}},
        {"--output", "run.output", "file for the rows with their answers", {}},
        {"--gpus", "run.gpus", "devices: all, 0-7, 0,2,5-7, 0,0,0, cpu:N", {}},
        {"--samples", "generate.samples", "answers to each prompt", {}},
        {"--thinking", "generate.thinking", "on, off, or mixed: half of the answers", {}},
        {"--max-new-tokens", "generate.max_new_tokens", "longest answer", {}},
        {"--temperature", "generate.temperature", "0: always the likeliest token", {}},
        {"--top-p", "generate.top_p", "share of the likeliest tokens that is drawn from", {}},
        {"--top-k", "generate.top_k", "number of tokens that is drawn from", {}},
        {"--batch", "generate.batch", "answers at a time on a device", {}},
        {"--seed", "run.seed", "seed of what is drawn", {}},
    };
}

}  // namespace

int generate_command(const Arguments& arguments, const std::string& command_line) {
    CLI::App app(
        "Lets the target answer the rows of data files, and writes the rows with its answers, in "
        "their order. Rows that have an answer are kept as they are. Started again after it was "
        "ended, it goes on.",
        "dflash generate");
    TrainOptions options;
    options.aliases = aliases();
    bool all = false;
    constexpr auto kLast = CLI::MultiOptionPolicy::TakeLast;
    for (TrainOptions::Alias& alias : options.aliases) {
        app.add_option(alias.option, alias.value, fmt::format("{} [{}]", alias.help, alias.setting))
            ->multi_option_policy(kLast);
    }
    app.add_flag("--all", all, "writes the answers anew that rows have");
    app.add_option("--config",
                   options.config_file,
                   "configuration file; default ./dflash.toml if it is there")
        ->multi_option_policy(kLast);
    app.add_option("--set",
                   options.set,
                   "KEY=VALUE: any setting, in TOML notation; may be given several "
                   "times")
        ->allow_extra_args(false);
    if (!parse(app, arguments)) {
        return 0;
    }
    // The handlers write to it for as long as the process lives.
    static train::StopSignals signals;
    install_signal_handlers(signals);
    return train::generate({.settings = resolve(options, command_line).settings,
                            .all = all,
                            .command_line = command_line},
                           signals);
}

}  // namespace dflash::cli
