// SPDX-License-Identifier: Apache-2.0
#include "command_parser.hpp"

#include <dflash/core/error.hpp>
#include <dflash/core/settings.hpp>
#include <dflash/core/text.hpp>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <fmt/format.h>

namespace dflash::cli {

bool parse(CLI::App& app, Arguments arguments) {
    app.allow_extras();
    std::reverse(arguments.begin(), arguments.end());  // CLI11 takes a vector from its back
    try {
        app.parse(arguments);
    } catch (const CLI::CallForHelp&) {
        fmt::print("{}", app.help());
        return false;
    } catch (const CLI::ParseError& error) {
        throw Error(ErrorKind::Config,
                    {.what = error.what(),
                     .where = "command line",
                     .cause = {},
                     .hint = fmt::format("{} --help lists the options", app.get_name())});
    }
    const std::vector<std::string> extras = app.remaining();
    if (extras.empty()) {
        return true;
    }
    std::vector<std::string> known;
    for (const CLI::Option* option : app.get_options()) {
        known.push_back(option->get_name());
    }
    const std::string& unknown = extras.front();
    const std::string name = unknown.substr(0, unknown.find('='));
    std::string hint = fmt::format(
        "{} --help lists the options; other settings go through --set KEY=VALUE", app.get_name());
    if (const auto ours = foreign_name(name); ours && unknown.starts_with("--")) {
        hint = fmt::format("dflash calls it {}", *ours);
    } else if (const auto near = nearest_name(name, known); near && unknown.starts_with("-")) {
        hint = fmt::format("Did you mean {}", *near);
    }
    throw Error(
        ErrorKind::Config,
        {.what = fmt::format(
             "unknown {} {}", unknown.starts_with("-") ? "option" : "argument", quote(unknown)),
         .where = "command line",
         .cause = {},
         .hint = hint});
}

}  // namespace dflash::cli
