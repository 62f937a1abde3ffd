// SPDX-License-Identifier: Apache-2.0
#include "command_parser.hpp"
#include "data_command.hpp"
#include "eval_command.hpp"
#include "export_command.hpp"
#include "generate_command.hpp"
#include "kernels_command.hpp"
#include "status_command.hpp"

#include <dflash/cli/run.hpp>
#include <dflash/cli/settings_help.hpp>
#include <dflash/cli/signals.hpp>
#include <dflash/cli/train_options.hpp>
#include <dflash/core/build_info.hpp>
#include <dflash/core/error.hpp>
#include <dflash/core/text.hpp>
#include <dflash/gpu/device.hpp>
#include <dflash/report/console.hpp>
#include <dflash/report/failure_report.hpp>
#include <dflash/train/session.hpp>
#include <dflash/train/version.hpp>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <fmt/format.h>
#include <functional>
#include <map>
#include <string>
#include <unistd.h>
#include <vector>

namespace dflash::cli {
namespace {

std::string join_command_line(const Arguments& arguments) {
    std::string line = "dflash";
    for (const std::string& argument : arguments) {
        const bool plain =
            argument.find_first_of(" \t\"'\\$*?") == std::string::npos && !argument.empty();
        line += plain ? " " + argument : " '" + argument + "'";
    }
    return line;
}

int train_command(const Arguments& arguments, const std::string& command_line) {
    CLI::App app("Trains a DFlash drafter for a frozen target model.", "dflash train");
    TrainOptions options;
    options.add_to(app);
    bool help_settings = false;
    app.add_flag("--help-settings", help_settings, "lists all settings with units and defaults");
    if (!parse(app, arguments)) {
        return 0;
    }
    if (help_settings) {
        fmt::print("{}", settings_help());
        return 0;
    }
    // The handlers write to it for as long as the process lives.
    static train::StopSignals signals;
    install_signal_handlers(signals);
    return train::train(resolve(options, command_line), signals);
}

int plan_command(const Arguments& arguments, const std::string& command_line) {
    CLI::App app("Prints what a run would do, need and take; loads nothing and writes nothing.",
                 "dflash plan");
    TrainOptions options;
    options.add_to(app);
    if (parse(app, arguments)) {
        train::print_plan(resolve(options, command_line));
    }
    return 0;
}

int devices_command(const Arguments& arguments, const std::string& /*command_line*/) {
    CLI::App app("Lists devices as --gpus names them.", "dflash devices");
    std::string gpus = gpu::cuda_device_count() > 0 ? "all" : "cpu:1";
    app.add_option("--gpus", gpus, "devices: all, 0-7, 0,2,5-7, 0,0,0, cpu:N");
    if (parse(app, arguments)) {
        for (const gpu::Device& device : gpu::parse_devices(gpus)) {
            const gpu::DeviceMemory memory = gpu::memory_of(device);
            fmt::print("{:<9} {}; {} of {} free\n",
                       device.name,
                       gpu::describe(device),
                       format_bytes(memory.free_bytes),
                       format_bytes(memory.total_bytes));
        }
    }
    return 0;
}

struct Command {
    const char* summary;
    std::function<int(const Arguments&, const std::string&)> run;
};

const std::map<std::string, Command>& commands() {
    static const std::map<std::string, Command> all = {
        {"train", {"train a drafter (the default)", train_command}},
        {"data", {"say whether data files are all right for a target", data_command}},
        {"generate", {"let the target answer the rows of data files", generate_command}},
        {"eval", {"decode with a drafter: acceptance and speed", eval_command}},
        {"plan", {"print what a run would do, need and take", plan_command}},
        {"export", {"write a drafter in the format of a server or trainer", export_command}},
        {"status", {"print what a run is doing", status_command}},
        {"kernels", {"list, compile or clear the compiled CUDA kernels", kernels_command}},
        {"devices", {"list devices as --gpus names them", devices_command}},
    };
    return all;
}

void print_usage() {
    fmt::print(
        "dflash {}: trains DFlash drafters for speculative decoding.\n\n"
        "  dflash --gpus 0-7 --data prompts.jsonl [--target DIR|ORG/NAME] [OPTIONS]\n"
        "  dflash COMMAND --help\n\nCommands:\n",
        train::kVersion);
    for (const auto& [name, command] : commands()) {
        fmt::print("  {:<9} {}\n", name, command.summary);
    }
    fmt::print(
        "\ndflash train --help lists the options of training, dflash train --help-settings all "
        "settings.\n");
}

int dispatch(Arguments arguments) {
    const std::string command_line = join_command_line(arguments);
    if (arguments.empty() || arguments[0] == "--help" || arguments[0] == "-h" ||
        arguments[0] == "help") {
        print_usage();
        return arguments.empty() ? 2 : 0;
    }
    if (arguments[0] == "--version") {
        const BuildInfo build = build_info();
        fmt::print("dflash {} ({}, {})\n", train::kVersion, build.commit, build.compiler);
        return 0;
    }
    if (arguments[0].starts_with("-")) {
        return train_command(arguments, command_line);
    }
    const auto found = commands().find(arguments[0]);
    if (found == commands().end()) {
        std::vector<std::string> names;
        for (const auto& [name, command] : commands()) {
            names.push_back(name);
        }
        const auto near = nearest_name(arguments[0], names);
        throw Error(ErrorKind::Config,
                    {.what = fmt::format("unknown command {}", quote(arguments[0])),
                     .where = "command line",
                     .cause = {},
                     .hint = near ? fmt::format("Did you mean dflash {}", *near)
                                  : "dflash --help lists the commands"});
    }
    arguments.erase(arguments.begin());
    return found->second.run(arguments, command_line);
}

/// Without a run, and so without a log file, what was printed is all that the command gives.
void expect_output_written(const report::Console& console) {
    const bool printed = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
    if (console.log_path().empty() && (!printed || console.is_gone())) {
        throw Error(ErrorKind::Storage,
                    {.what = "the output of the command could not be written",
                     .where = "standard output",
                     .cause = "the disk is full, or what stands behind it is closed",
                     .hint = "Write it to a place that takes it"});
    }
}

}  // namespace

int run(int argc, char** argv) {
    report::Console& console = report::console();
    try {
        const int code = dispatch({argv + 1, argv + argc});
        console.flush();
        expect_output_written(console);
        return code;
    } catch (...) {
        if (!console.log_path().empty()) {
            return report::report_failure(std::current_exception(), console);
        }
        // No run has begun: standard output may be meant for a file or a program.
        console.end_blocks();
        console.flush();
        report::Console errors(STDERR_FILENO);
        return report::report_failure(std::current_exception(), errors);
    }
}

}  // namespace dflash::cli
