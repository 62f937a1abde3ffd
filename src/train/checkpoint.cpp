// SPDX-License-Identifier: Apache-2.0
#include "checkpoint_files.hpp"

#include <dflash/core/error.hpp>
#include <dflash/core/log.hpp>
#include <dflash/core/scope.hpp>
#include <dflash/core/text.hpp>
#include <dflash/io/atomic_file.hpp>
#include <dflash/train/checkpoint.hpp>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <functional>
#include <unistd.h>
#include <utility>

namespace dflash::train {
namespace fs = std::filesystem;

namespace {

std::optional<std::int64_t> step_of(const std::string& folder_name) {
    std::int64_t step = 0;
    if (!folder_name.starts_with("step-")) {
        return std::nullopt;
    }
    const char* const end = folder_name.data() + folder_name.size();
    const auto parsed = std::from_chars(folder_name.data() + 5, end, step);
    return parsed.ec == std::errc() && parsed.ptr == end ? std::optional(step) : std::nullopt;
}

// A folder that is half removed must not look like a draft, so it loses its name first. What an
// interruption leaves has the name of a leftover.
void remove_step_folder(const std::string& folder) {
    const std::string doomed = fmt::format("{}.tmp-removed-{}", folder, ::getpid());
    remove_tree(doomed);
    rename_path(folder, doomed);
    remove_tree(doomed);
}

void set_aside(const std::string& folder, const std::string& why) {
    const std::string aside = folder + ".superseded";
    log_warning("{} {}; it is kept as {}", folder, why, aside);
    remove_tree(aside);
    rename_path(folder, aside);
}

// Before the first byte: a disk that every try fills up again keeps others from writing.
void require_space(const std::string& folder, std::int64_t bytes) {
    std::error_code error;
    const fs::space_info space = fs::space(folder, error);
    if (!error && static_cast<std::int64_t>(space.available) < bytes) {
        throw Error(ErrorKind::Storage,
                    {.what = fmt::format("a checkpoint needs {}, and {} are free",
                                         format_bytes(bytes),
                                         format_bytes(static_cast<std::int64_t>(space.available))),
                     .where = folder,
                     .cause = {},
                     .hint = "Free some space there"});
    }
}

}  // namespace

CheckpointStore::CheckpointStore(std::string run_folder,
                                 std::int64_t keep,
                                 std::int64_t keep_drafts)
    : run_folder_(std::move(run_folder)), keep_(keep), keep_drafts_(keep_drafts) {}

std::string CheckpointStore::folder_of(std::int64_t step) const {
    return (fs::path(run_folder_) / fmt::format("step-{:06}", step)).string();
}

SaveCost CheckpointStore::save(const Checkpoint& checkpoint,
                               std::optional<double> acceptance,
                               const std::function<void()>& between) {
    const std::string final_folder = folder_of(checkpoint.progress.step);
    std::error_code ignored;
    if (!fs::exists(fs::path(final_folder) / "state", ignored)) {
        untold_ = save_new(checkpoint, acceptance, final_folder, between);
    } else if (acceptance && !acceptance_of(checkpoint.progress.step)) {
        // Saved already, at the same step of the same run, but evaluated only now.
        add_acceptance(final_folder, *acceptance);
    }
    // Also of a save that is repeated, because it failed behind its rename.
    io::replace_symlink(run_folder_ + "/latest", fs::path(final_folder).filename().string());
    try {
        prune();
    } catch (const Error& error) {
        // The new checkpoint is there; what is too much of old ones goes with the next.
        log_warning("older checkpoints stay for now: {}", error.what());
    }
    return std::exchange(untold_, SaveCost{});
}

SaveCost CheckpointStore::save_new(const Checkpoint& checkpoint,
                                   std::optional<double> acceptance,
                                   const std::string& final_folder,
                                   const std::function<void()>& between) const {
    const auto start = std::chrono::steady_clock::now();
    const auto seconds = [&] {
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    };
    const auto pause = [&] {
        if (between) {
            between();
        }
    };
    const std::string temporary = fmt::format("{}.tmp-{}", final_folder, ::getpid());
    remove_tree(temporary);
    require_space(run_folder_, checkpoint_bytes(checkpoint.optimizer.master.numel()));
    // Half a checkpoint must not keep others from writing to a disk that is full.
    ScopeGuard remove_half([&] {
        std::error_code ignored;
        fs::remove_all(temporary, ignored);
    });
    SaveCost cost;
    cost.bytes = write_checkpoint_files(temporary, checkpoint, acceptance, pause);
    cost.write_s = seconds();
    read_back(temporary, pause);
    cost.verify_s = seconds() - cost.write_s;
    if (std::error_code ignored; fs::exists(final_folder, ignored)) {
        if (fs::exists(fs::path(final_folder) / "draft", ignored)) {
            // A draft that retention kept of an earlier, interrupted pass over the same step.
            remove_step_folder(final_folder);
        } else {
            set_aside(final_folder, "is no checkpoint of this run");
        }
    }
    io::publish_folder(temporary, final_folder);
    remove_half.dismiss();
    return cost;
}

std::optional<double> CheckpointStore::acceptance_of(std::int64_t step) const {
    return read_acceptance(folder_of(step));
}

std::vector<std::int64_t> CheckpointStore::steps() const {
    std::vector<std::int64_t> found;
    if (fs::is_directory(run_folder_)) {
        for (const fs::directory_entry& entry : fs::directory_iterator(run_folder_)) {
            const auto step = step_of(entry.path().filename().string());
            // One without state.json is damaged, and its loss is not to pass unnoticed.
            if (step && fs::exists(entry.path() / "state")) {
                found.push_back(*step);
            }
        }
    }
    std::sort(found.begin(), found.end());
    return found;
}

void CheckpointStore::prune() const {
    std::vector<std::int64_t> whole = steps();
    if (static_cast<std::int64_t>(whole.size()) > keep_) {
        whole.resize(whole.size() - static_cast<std::size_t>(keep_));
        for (const std::int64_t step : whole) {
            remove_state(folder_of(step));
        }
    }
    // The best first, and of equals the later; what was never evaluated comes last.
    std::vector<std::pair<double, std::int64_t>> drafts;
    for (const fs::directory_entry& entry : fs::directory_iterator(run_folder_)) {
        const auto step = step_of(entry.path().filename().string());
        if (step && fs::exists(entry.path() / "draft") && !fs::exists(entry.path() / "state")) {
            drafts.emplace_back(acceptance_of(*step).value_or(0), *step);
        }
    }
    std::sort(drafts.begin(), drafts.end(), std::greater<>());
    for (std::size_t i = static_cast<std::size_t>(keep_drafts_); i < drafts.size(); ++i) {
        remove_step_folder(folder_of(drafts[i].second));
    }
}

void CheckpointStore::remove_leftovers() const {
    if (!fs::is_directory(run_folder_)) {
        return;
    }
    for (const fs::directory_entry& entry : fs::directory_iterator(run_folder_)) {
        if (entry.path().filename().string().find(".tmp-") != std::string::npos) {
            log_info("removing {}, left by a save that was interrupted", entry.path().string());
            remove_tree(entry.path().string());
        } else if (entry.is_directory() && !entry.is_symlink()) {
            remove_tree((entry.path() / "state.removed").string());
        }
    }
}

void CheckpointStore::set_aside_after(std::int64_t step) const {
    for (const std::int64_t later : steps()) {
        if (later > step) {
            set_aside(folder_of(later),
                      fmt::format("belongs to the former continuation of step {}", step));
            io::sync_folder(run_folder_);
        }
    }
}

Checkpoint CheckpointStore::load(std::optional<std::int64_t> step) const {
    const std::vector<std::int64_t> available = steps();
    if (available.empty()) {
        throw Error(ErrorKind::Config,
                    {.what = "no checkpoint to resume from",
                     .where = run_folder_,
                     .cause = {},
                     .hint = "Start the run again with another --output"});
    }
    const std::int64_t chosen = step.value_or(available.back());
    if (std::find(available.begin(), available.end(), chosen) == available.end()) {
        throw Error(
            ErrorKind::Config,
            {.what = fmt::format("no whole checkpoint of step {}; there are those of steps {}",
                                 chosen,
                                 fmt::join(available, ", ")),
             .where = run_folder_,
             .cause = {},
             .hint = {}});
    }
    const std::string folder = folder_of(chosen);
    try {
        return read_checkpoint_files(folder, chosen);
    } catch (const OtherVersion& other) {
        throw Error(ErrorKind::Config,
                    {.what = fmt::format(
                         "format_version: got {}, expected {}", other.version, kFormatVersion),
                     .where = folder + "/state/state.json",
                     .cause = {},
                     .hint = "This checkpoint was written by another version of dflash"});
    } catch (const Error& error) {
        if (error.kind() == ErrorKind::Internal) {
            throw;
        }
        // A file that is missing or no JSON may be the user's mistake elsewhere; here we wrote it.
        std::vector<std::int64_t> others = available;
        std::erase(others, chosen);
        ErrorParts parts = error.parts();
        parts.hint = others.empty()
                         ? "The checkpoint is damaged, and there is no other to resume from"
                         : fmt::format(
                               "The checkpoint is damaged; resume from another one with "
                               "--step {}",
                               fmt::join(others, " or "));
        throw Error(ErrorKind::Data, std::move(parts));
    }
}

}  // namespace dflash::train
