// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/error.hpp>
#include <dflash/core/text.hpp>
#include <dflash/io/toml.hpp>
#include <dflash/train/resume.hpp>
#include <dflash/train/schedule.hpp>

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <set>
#include <utility>

namespace dflash::train {
namespace {

constexpr std::array<std::string_view, 10> kMayChange{"train.lr",
                                                      "train.schedule",
                                                      "train.warmup_fraction",
                                                      "train.min_lr_fraction",
                                                      "train.wsd_decay_fraction",
                                                      "train.weight_decay",
                                                      "train.clip",
                                                      "train.epochs",
                                                      "train.tokens",
                                                      "train.hours"};

constexpr const char* kAbsent = "(absent)";

std::string value_in(const Identity& identity, const std::string& name) {
    const auto found = identity.find(name);
    return found == identity.end() ? kAbsent : found->second;
}

/// Whether a setting is as it was before it existed: a run that was saved without it did what its
/// default does, which whoever adds a setting of the maths sees to.
bool is_new_at_default(const ResumeChange& change, const SettingList& settings) {
    return change.before == kAbsent &&
           std::ranges::any_of(settings.all(), [&](const Setting& setting) {
               return setting.name == change.name && setting.default_text == change.now;
           });
}

std::vector<ResumeChange> differences(const Identity& saved, const Identity& now) {
    std::set<std::string> names;
    for (const Identity* identity : {&saved, &now}) {
        for (const auto& [name, value] : *identity) {
            names.insert(name);
        }
    }
    names.erase(kDataIdentity);
    Settings defaults;
    const SettingList settings = defaults.list();
    std::vector<ResumeChange> found;
    for (const std::string& name : names) {
        ResumeChange change{name, value_in(saved, name), value_in(now, name)};
        if (change.before != change.now && !is_new_at_default(change, settings)) {
            found.push_back(std::move(change));
        }
    }
    return found;
}

/// Settings as they were before the changes.
TrainSettings settings_before(Settings settings, const std::vector<ResumeChange>& changes) {
    const std::string unset = to_toml(std::monostate());
    SettingList list = settings.list();
    for (const ResumeChange& change : changes) {
        list.find(change.name, {})
            .assign(change.before == unset ? SettingValue()
                                           : io::parse_toml_value(change.before, change.name),
                    SettingOrigin::File,
                    {});
    }
    return settings.train;
}

}  // namespace

bool may_change_on_resume(std::string_view setting) {
    return std::ranges::find(kMayChange, setting) != kMayChange.end();
}

SavedData saved_data(const Checkpoint& checkpoint, bool extend, const std::string& run_folder) {
    const auto entry = checkpoint.identity.find(kDataIdentity);
    try {
        return {.history = data::DataHistory::parse(
                    entry == checkpoint.identity.end() ? "" : entry->second),
                .cursor = checkpoint.progress.cursor,
                .extend = extend,
                .run_folder = run_folder};
    } catch (const Error& error) {
        throw Error(ErrorKind::Config,
                    {.what = "the checkpoint does not say which data it was made with",
                     .where = fmt::format("{}, step {}", run_folder, checkpoint.progress.step),
                     .cause = error.parts().what,
                     .hint = fmt::format("It was written by another version of dflash; start a new "
                                         "run from its weights with --init {}/latest/draft",
                                         shell_word(run_folder))});
    }
}

std::vector<ResumeChange> changes_on_resume(const Identity& saved,
                                            const Identity& now,
                                            const std::string& run_folder) {
    std::vector<ResumeChange> allowed;
    std::string refused;
    std::string options;
    for (ResumeChange& change : differences(saved, now)) {
        if (may_change_on_resume(change.name)) {
            allowed.push_back(std::move(change));
            continue;
        }
        refused += fmt::format("{}{}: {} when it was saved, {} now",
                               refused.empty() ? "" : "; ",
                               change.name,
                               change.before,
                               change.now);
        if (change.name.find('.') != std::string::npos && change.now != to_toml(std::monostate())) {
            options += fmt::format(" --set {}", shell_word(change.name + "=" + change.now));
        }
    }
    if (!refused.empty()) {
        const std::string folder = shell_word(run_folder);
        throw Error(
            ErrorKind::Config,
            {.what = "this run cannot be resumed with other maths: " + refused,
             .where = run_folder,
             .cause = {},
             .hint = fmt::format("Resume without the change, or start a new run from its weights: "
                                 "dflash --config {0}/config.toml --init {0}/latest/draft{1}",
                                 folder,
                                 options)});
    }
    return allowed;
}

std::vector<std::string> describe_changes(const std::vector<ResumeChange>& changes,
                                          const PreparedRun& run,
                                          const Settings& settings,
                                          const Progress& progress) {
    std::vector<std::string> lines;
    for (const ResumeChange& change : changes) {
        lines.push_back(fmt::format("{}: {} until step {}, {} from here on",
                                    change.name,
                                    change.before,
                                    progress.step,
                                    change.now));
    }
    if (!run.growth.empty()) {
        lines.push_back(fmt::format(
            "data: {}; the {} held-out samples stay", run.growth, run.held_out_ids.size()));
    }
    if (lines.empty()) {
        return lines;
    }
    const TrainSettings train_before = settings_before(settings, changes);
    const RunLength before(train_before, run.sizes_before);
    const RunLength now(settings.train, run.epoch_sizes);
    const auto samples = [](const RunLength& length) {
        return length.by_epochs()
                   ? fmt::format(" of {} samples in all", format_count(length.num_samples()))
                   : std::string();
    };
    const double done_before = before.fraction_done(progress);
    const double done = now.fraction_done(progress);
    lines.push_back(fmt::format(
        "length: {}{}, {:.1f} % done, learning rate {:.3g} (before: {}{}, {:.1f} % done, {:.3g})",
        now.to_text(),
        samples(now),
        100 * done,
        learning_rate(settings.train, done),
        before.to_text(),
        samples(before),
        100 * done_before,
        learning_rate(train_before, done_before)));
    return lines;
}

std::optional<std::string> nothing_left(const PreparedRun& run,
                                        const Settings& settings,
                                        const Progress& progress,
                                        const std::string& run_folder) {
    const RunLength length(settings.train, run.epoch_sizes);
    if (!length.finished(progress)) {
        return std::nullopt;
    }
    std::string longer;
    if (length.fraction_done(progress) < 1) {
        longer = fmt::format("--set train.max_steps={}", 2 * *settings.train.max_steps);
    } else if (settings.train.hours) {
        longer = fmt::format("--hours {}", 2 * *settings.train.hours);
    } else if (settings.train.tokens) {
        longer = fmt::format("--tokens {}", 2 * *settings.train.tokens);
    } else {
        longer = fmt::format("--epochs {}", 2 * settings.train.epochs);
    }
    return fmt::format("this run is done ({} steps, {}); to train longer: dflash --resume {} {}",
                       format_count(progress.step),
                       length.fraction_done(progress) < 1
                           ? fmt::format("train.max_steps = {}", *settings.train.max_steps)
                           : length.to_text(),
                       shell_word(run_folder),
                       longer);
}

}  // namespace dflash::train
