// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/error.hpp>
#include <dflash/core/log.hpp>
#include <dflash/core/text.hpp>
#include <dflash/io/atomic_file.hpp>
#include <dflash/io/folder_lock.hpp>
#include <dflash/io/json.hpp>
#include <dflash/io/toml.hpp>
#include <dflash/train/draft_source.hpp>
#include <dflash/train/run_answers.hpp>
#include <dflash/train/run_search.hpp>

#include <algorithm>
#include <filesystem>
#include <fmt/format.h>
#include <set>
#include <system_error>

namespace dflash::train {
namespace fs = std::filesystem;

namespace {

/// Whether the two are the same but for the data.
bool same_maths(const Identity& a, const Identity& b) {
    const auto without_data = [](Identity identity) {
        identity.erase(kDataIdentity);
        return identity;
    };
    return without_data(a) == without_data(b);
}

/// The folders in a folder; none if it is not there or cannot be read.
std::vector<fs::path> folders_in(const std::string& folder) {
    std::vector<fs::path> found;
    std::error_code error;
    for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
         entry.increment(error)) {
        if (entry->is_directory(error) && !entry->is_symlink(error)) {
            found.push_back(entry->path());
        }
    }
    std::sort(found.begin(), found.end());
    return found;
}

/// What the newest checkpoint says of itself, without its tensors.
struct SavedHead {
    Progress progress;
    Identity identity;
};

std::optional<SavedHead> newest_head(const std::string& run_folder) {
    const CheckpointStore store(run_folder, 1, 1);
    const std::vector<std::int64_t> steps = store.steps();
    if (steps.empty()) {
        return std::nullopt;
    }
    const std::string path = store.folder_of(steps.back()) + "/state/state.json";
    const io::Json json = io::read_json_file(path);
    const io::Json* identity = json.find("identity");
    if (identity == nullptr || !identity->is_object()) {
        return std::nullopt;
    }
    SavedHead head;
    head.progress.step = json.require_integer("step", path);
    head.progress.samples = json.require_integer("samples", path);
    head.progress.tokens = json.require_integer("tokens", path);
    head.progress.trained_s = json.require_number("trained_s", path);
    for (const auto& [name, value] : identity->members()) {
        head.identity[name] = value.is_string() ? value.as_string() : "";
    }
    return head;
}

/// Whether a run that has answers, and no checkpoint yet, was started with the same settings.
bool began_alike(const std::string& folder,
                 const Identity& now,
                 const PreparedRun& run,
                 const Settings& settings) {
    if (!run.answers || !run.answers->made_as_in(folder)) {
        return false;
    }
    Settings saved;
    SettingList list = saved.list();
    for (const io::TomlEntry& entry : io::read_toml_file(folder + "/config.toml")) {
        list.find(entry.key, entry.place).assign(entry.value, SettingOrigin::File, entry.place);
    }
    const auto differs = [&](const Setting& setting) {
        const auto found = now.find(setting.name);
        return found != now.end() && found->second != to_toml(setting.value());
    };
    return saved.run.data == settings.run.data && saved.run.eval_data == settings.run.eval_data &&
           saved.run.init == settings.run.init && std::ranges::none_of(list.all(), differs);
}

std::optional<UnfinishedRun> judge_run(const std::string& folder,
                                       const Identity& now,
                                       const PreparedRun& run,
                                       const Settings& settings) {
    std::error_code closed;  // a folder of another user
    if (!fs::exists(folder + "/config.toml", closed)) {
        return std::nullopt;
    }
    const std::optional<SavedHead> head = newest_head(folder);
    if (!head && began_alike(folder, now, run, settings)) {
        return UnfinishedRun{.folder = folder, .running = io::FolderLock::is_held(folder)};
    }
    if (!head || !same_maths(head->identity, now)) {
        return std::nullopt;
    }
    const auto history = head->identity.find(kDataIdentity);
    if (history == head->identity.end()) {
        return std::nullopt;
    }
    const data::DataHistory data = data::DataHistory::parse(history->second);
    const data::DataComparison comparison = run.training->compare_with(data.last());
    if (comparison.change == data::DataChange::Other) {
        return std::nullopt;
    }
    const RunLength length(settings.train,
                           epoch_sizes_of(run.train_ids, data.states(), run.mixture));
    if (length.finished(head->progress)) {
        return std::nullopt;
    }
    return UnfinishedRun{.folder = folder,
                         .step = head->progress.step,
                         .running = io::FolderLock::is_held(folder),
                         .data_grew = comparison.change == data::DataChange::Grown};
}

}  // namespace

std::vector<UnfinishedRun> find_unfinished_runs(const std::string& runs_folder,
                                                const Identity& now,
                                                const PreparedRun& run,
                                                const Settings& settings) {
    std::vector<UnfinishedRun> found;
    for (const fs::path& folder : folders_in(runs_folder)) {
        try {
            if (auto unfinished = judge_run(folder.string(), now, run, settings)) {
                found.push_back(std::move(*unfinished));
            }
        } catch (const std::exception& error) {
            log_debug("{} is not looked at: {}", folder.string(), error.what());
        }
    }
    return found;
}

std::string to_text(const UnfinishedRun& run) {
    if (run.running) {
        return fmt::format("a run with the same settings is going on in {}: dflash status {}",
                           run.folder,
                           shell_word(run.folder));
    }
    return fmt::format(
        "an unfinished run with the same settings is in {}, {}; this "
        "is a new one. To continue that: dflash --resume {}{}",
        run.folder,
        run.step > 0 ? fmt::format("saved at step {}", run.step)
                     : std::string("with answers of the target and no checkpoint yet"),
        shell_word(run.folder),
        run.data_grew ? " --extend-data" : "");
}

void name_unfinished_runs(const Identity& now,
                          const PreparedRun& run,
                          const Settings& settings,
                          const std::string& new_folder) {
    std::set<std::string> places{"runs"};
    const fs::path parent = fs::path(new_folder).lexically_normal().parent_path();
    places.insert(parent.empty() ? "." : parent.string());
    for (const std::string& place : places) {
        for (const UnfinishedRun& unfinished : find_unfinished_runs(place, now, run, settings)) {
            log_warning("{}", to_text(unfinished));
        }
    }
}

std::optional<BestDraft> best_draft(const std::string& run_folder) {
    std::optional<BestDraft> best;
    const CheckpointStore store(run_folder, 1, 1);
    for (const std::int64_t step : draft_steps(run_folder)) {
        try {
            const std::optional<double> acceptance = store.acceptance_of(step);
            if (acceptance && (!best || *acceptance >= best->acceptance_length)) {
                best = BestDraft{step, *acceptance, store.folder_of(step) + "/draft"};
            }
        } catch (const Error& error) {
            log_debug("{} does not count: {}", store.folder_of(step), error.what());
        }
    }
    return best;
}

void point_to_best(const std::string& run_folder) {
    const std::string link = run_folder + "/best";
    try {
        if (const std::optional<BestDraft> best = best_draft(run_folder)) {
            io::replace_symlink(link, fs::path(best->folder).parent_path().filename().string());
        } else {
            std::error_code ignored;
            fs::remove(link, ignored);
        }
    } catch (const Error& error) {
        log_warning("{}", error.what());
    }
}

}  // namespace dflash::train
