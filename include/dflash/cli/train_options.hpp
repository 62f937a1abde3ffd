// SPDX-License-Identifier: Apache-2.0
// The options of `dflash train` and `dflash plan`: named options and --set on top of configuration
// files.
#pragma once

#include <dflash/core/settings.hpp>
#include <dflash/train/session.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace dflash::cli {

/// Options as given, before settings are resolved.
struct TrainOptions {
    std::optional<std::string> config_file;
    std::vector<std::string> set;  ///< KEY=VALUE
    std::optional<std::string> resume;
    std::optional<std::int64_t> step;
    bool extend_data = false;

    /// Named options that are aliases of settings: (option, setting, value as text); in the order
    /// of declaration.
    struct Alias {
        std::string option;
        std::string setting;
        std::string help;
        std::optional<std::string> value;
    };

    std::vector<Alias> aliases;

    TrainOptions();

    /// Adds all options to a command.
    void add_to(CLI::App& app);

    /// Adds only those that set settings: the aliases, --config and --set.
    void add_settings_to(CLI::App& app);
};

/// Settings from, lowest to highest: defaults, ./dflash.toml or --config (for a resume: the run's
/// config.toml), --set, named options. A run has one length: train.hours, train.tokens or
/// train.epochs of a higher level replaces that of a lower one, whichever of them it is. Throws
/// Error{Config} with file, line and column, or the option, and the nearest valid name.
train::TrainRequest resolve(const TrainOptions& options, const std::string& command_line);

}  // namespace dflash::cli
