// SPDX-License-Identifier: Apache-2.0
#include <dflash/cli/train_options.hpp>
#include <dflash/core/error.hpp>
#include <dflash/core/text.hpp>
#include <dflash/io/toml.hpp>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <fmt/format.h>

namespace dflash::cli {
namespace {

// Text and times are taken as they are written: "--data 7.jsonl" and "--gpus 0" are text, though
// TOML reads 0 as a number.
SettingValue value_for(const Setting& setting,
                       const std::string& text,
                       const SettingValue& parsed) {
    const bool is_text = setting.type == "text" || setting.type == "time";
    return is_text && !std::holds_alternative<std::string>(parsed) ? SettingValue(text) : parsed;
}

/// Given twice, the last one counts: people add options to the end of a line they have.
constexpr auto kLast = CLI::MultiOptionPolicy::TakeLast;

/// Settings of a run while the levels are laid over one another, lowest first.
class Levels {
  public:
    explicit Levels(train::Settings& settings) : settings_(settings), list_(settings.list()) {}

    void file(const std::string& path) {
        begin_level();
        for (const io::TomlEntry& entry : io::read_toml_file(path)) {
            set(list_.find(entry.key, entry.place), entry.value, SettingOrigin::File, entry.place);
        }
    }

    void set_options(const std::vector<std::string>& assignments) {
        begin_level();
        for (const std::string& assignment : assignments) {
            const std::string place = "--set " + assignment;
            const io::TomlEntry entry = io::parse_assignment(assignment, place);
            Setting& setting = list_.find(entry.key, place);
            const std::string text = assignment.substr(assignment.find('=') + 1);
            set(setting, value_for(setting, text, entry.value), SettingOrigin::SetOption, place);
        }
    }

    void named_options(const std::vector<TrainOptions::Alias>& aliases) {
        begin_level();
        for (const TrainOptions::Alias& alias : aliases) {
            if (alias.value) {
                Setting& setting = list_.find(alias.setting, alias.option);
                const bool is_text = setting.type == "text" || setting.type == "time";
                const SettingValue value = is_text
                                               ? SettingValue(*alias.value)
                                               : io::parse_toml_value(*alias.value, alias.option);
                set(setting, value, SettingOrigin::NamedOption, alias.option);
            }
        }
    }

    const SettingList& list() const { return list_; }

  private:
    void begin_level() { length_given_ = false; }

    void set(Setting& setting,
             const SettingValue& value,
             SettingOrigin origin,
             const std::string& place) {
        const bool is_length = setting.name == "train.hours" || setting.name == "train.tokens" ||
                               setting.name == "train.epochs";
        if (is_length && !length_given_) {
            settings_.train.hours.reset();
            settings_.train.tokens.reset();
            length_given_ = true;
        }
        setting.assign(value, origin, place);
    }

    train::Settings& settings_;
    SettingList list_;
    bool length_given_ = false;  // by the level that is being laid
};

}  // namespace

TrainOptions::TrainOptions()
    : aliases{
          {"--target",
           "run.target",
           "target model: an HF folder, or ORG/NAME in the Hugging Face cache",
           {}},
          {"--data",
           "run.data",
           "training data: JSON lines with messages (plain, .gz, .zst); several, patterns and "
           "weights: "
           "'a.jsonl,more/*.jsonl:0.5'",
           {}},
          {"--gpus", "run.gpus", "devices: all, 0-7, 0,2,5-7, 0,0,0, cpu:N", {}},
          {"--init",
           "run.init",
           "drafter to start from, instead of random weights: folder or ORG/NAME",
           {}},
          {"--output", "run.output", "run folder; default runs/<target>-<yyyymmdd-hhmm>", {}},
          {"--eval-data", "run.eval_data", "held-out rows of their own", {}},
          {"--hours", "train.hours", "how long, in hours ...", {}},
          {"--tokens", "train.tokens", "... or in tokens of packed rows ...", {}},
          {"--epochs", "train.epochs", "... or in passes over the data (default)", {}},
          {"--lr", "train.lr", "peak learning rate", {}},
          {"--max-length", "data.max_length", "samples are cut at this many tokens", {}},
          {"--block-size", "draft.block_size", "slots of a block", {}},
          {"--anchors", "draft.anchors", "most blocks of one document and epoch", {}},
          {"--layers", "draft.num_layers", "layers of the drafter", {}},
          {"--seed", "run.seed", "seed of everything random", {}},
          {"--split",
           "run.split",
           "T+D: targets and drafters, instead of the planner's choice",
           {}},
          {"--target-gpus",
           "run.target_gpus",
           "positions in the --gpus list that hold a target",
           {}},
          {"--draft-gpus",
           "run.draft_gpus",
           "positions in the --gpus list that train; the two lists may overlap",
           {}},
      } {}

void TrainOptions::add_settings_to(CLI::App& app) {
    for (Alias& alias : aliases) {
        app.add_option(alias.option, alias.value, fmt::format("{} [{}]", alias.help, alias.setting))
            ->multi_option_policy(kLast);
    }
    app.add_option(
           "--config", config_file, "configuration file; default ./dflash.toml if it is there")
        ->multi_option_policy(kLast);
    app.add_option(
           "--set", set, "KEY=VALUE: any setting, in TOML notation; may be given several times")
        ->allow_extra_args(false);
}

void TrainOptions::add_to(CLI::App& app) {
    add_settings_to(app);
    app.add_option(
           "--resume",
           resume,
           "continue the run in this folder; with --epochs, --hours or --tokens longer, with "
           "--lr at another learning rate, on any devices")
        ->multi_option_policy(kLast);
    app.add_option(
           "--step", step, "with --resume: from the checkpoint of this step instead of the newest")
        ->multi_option_policy(kLast);
    app.add_flag(
        "--extend-data",
        extend_data,
        "with --resume: rows were added at the end of the data; they enter at the next epoch");
}

train::TrainRequest resolve(const TrainOptions& options, const std::string& command_line) {
    train::TrainRequest request;
    request.command_line = command_line;
    Levels levels(request.settings);
    if ((options.step || options.extend_data) && !options.resume) {
        throw Error(ErrorKind::Config,
                    {.what = fmt::format("{} is given without --resume",
                                         options.step ? "--step" : "--extend-data"),
                     .where = {},
                     .cause = {},
                     .hint = "Name the run to continue: --resume RUN"});
    }
    if (options.resume) {
        request.resume_folder = *options.resume;
        request.resume_step = options.step;
        request.extend_data = options.extend_data;
        request.config_files.push_back(train::resume_config_path(*options.resume));
        levels.file(request.config_files.back());
    }
    if (options.config_file || (!options.resume && std::filesystem::exists("dflash.toml"))) {
        request.config_files.push_back(options.config_file.value_or("./dflash.toml"));
        levels.file(request.config_files.back());
    }
    levels.set_options(options.set);
    levels.named_options(options.aliases);
    if (options.resume && !request.settings.run.output.empty()) {
        throw Error(
            ErrorKind::Config,
            {.what = fmt::format("--output {} is given with --resume", request.settings.run.output),
             .where = {},
             .cause = {},
             .hint = "A resumed run goes on in its own folder; copy that first to continue "
                     "elsewhere, or start from its draft with --init"});
    }
    for (const Setting& setting : levels.list().all()) {
        if (setting.origin != SettingOrigin::Default && !setting.is_default()) {
            request.changed_settings.push_back(
                fmt::format("{} = {} ({})", setting.name, to_toml(setting.value()), setting.place));
        }
    }
    train::check_settings(request.settings);
    return request;
}

}  // namespace dflash::cli
