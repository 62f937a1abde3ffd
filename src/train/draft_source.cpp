// SPDX-License-Identifier: Apache-2.0
#include "checkpoint_files.hpp"

#include <dflash/core/error.hpp>
#include <dflash/io/checksums.hpp>
#include <dflash/io/toml.hpp>
#include <dflash/train/checkpoint.hpp>
#include <dflash/train/draft_source.hpp>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <string_view>
#include <system_error>
#include <utility>
#include <variant>

namespace dflash::train {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kStepPrefix = "step-";

bool is_there(const fs::path& path) {
    std::error_code ignored;
    return fs::exists(path, ignored);
}

[[noreturn]] void fail(std::string what, const std::string& where, std::string hint = {}) {
    throw Error(ErrorKind::Config,
                {.what = std::move(what), .where = where, .cause = {}, .hint = std::move(hint)});
}

std::optional<std::int64_t> step_of(const std::string& name) {
    std::int64_t step = 0;
    if (!name.starts_with(kStepPrefix)) {
        return std::nullopt;
    }
    const char* const end = name.data() + name.size();
    const auto parsed = std::from_chars(name.data() + kStepPrefix.size(), end, step);
    return parsed.ec == std::errc() && parsed.ptr == end ? std::optional(step) : std::nullopt;
}

/// Steps of a run whose folder holds that, rising.
std::vector<std::int64_t> steps_holding(const std::string& run_folder, const char* what) {
    std::vector<std::int64_t> steps;
    std::error_code error;
    for (fs::directory_iterator entry(run_folder, error), end; !error && entry != end;
         entry.increment(error)) {
        const std::optional<std::int64_t> step = step_of(entry->path().filename().string());
        if (step && !entry->is_symlink(error) && is_there(entry->path() / what)) {
            steps.push_back(*step);
        }
    }
    std::sort(steps.begin(), steps.end());
    return steps;
}

/// Without a slash at its end; what a link such as RUN/latest points to.
fs::path resolved(const std::string& path) {
    std::error_code error;
    fs::path real = fs::canonical(path, error);
    return error ? fs::path(path) : real;
}

/// What config.toml of a run says of the target.
std::string target_of_run(const fs::path& run_folder) {
    const fs::path path = run_folder / "config.toml";
    if (!is_there(path)) {
        return "";
    }
    for (const io::TomlEntry& entry : io::read_toml_file(path.string())) {
        if (entry.key == "run.target" && std::holds_alternative<std::string>(entry.value)) {
            return std::get<std::string>(entry.value);
        }
    }
    return "";
}

void verify_draft(const DraftSource& source) {
    const std::string list = source.step_folder + "/" + kChecksumFile;
    if (!is_there(list)) {
        return;
    }
    try {
        io::Checksums checksums = io::read_checksums(list);
        std::erase_if(checksums,
                      [](const auto& file) { return !file.first.starts_with("draft/"); });
        io::verify_checksums(source.step_folder, checksums, io::From::Anywhere);
    } catch (const Error& error) {
        if (error.kind() != ErrorKind::Data) {
            throw;
        }
        std::vector<std::int64_t> others = draft_steps(source.run_folder);
        std::erase(others, step_of(fs::path(source.step_folder).filename().string()));
        ErrorParts parts = error.parts();
        parts.hint = others.empty()
                         ? "The drafter is damaged, and its run has no other"
                         : fmt::format("The drafter is damaged; the run has those of steps {}",
                                       fmt::join(others, ", "));
        throw Error(ErrorKind::Data, std::move(parts));
    }
}

/// The drafter of a step's folder.
DraftSource in_step(const std::string& step_folder, const fs::path& real) {
    return {.draft_folder = step_folder + "/draft",
            .step_folder = step_folder,
            .run_folder = real.parent_path().string(),
            .target = target_of_run(real.parent_path())};
}

DraftSource in_run(const std::string& run_folder, std::optional<std::int64_t> step) {
    // One that lost its weights is damaged, and not to be passed over.
    const std::vector<std::int64_t> steps = steps_holding(run_folder, "draft");
    if (steps.empty()) {
        fail("the run has no checkpoint with a drafter",
             run_folder,
             "A run saves every checkpoint.every and when it ends; kill -USR1 makes it save now");
    }
    const std::int64_t chosen = step.value_or(steps.back());
    if (std::find(steps.begin(), steps.end(), chosen) == steps.end()) {
        fail(fmt::format(
                 "the run has no drafter of step {}, but of {}", chosen, fmt::join(steps, ", ")),
             run_folder);
    }
    const std::string folder = CheckpointStore(run_folder, 1, 1).folder_of(chosen);
    return in_step(folder, resolved(folder));
}

DraftSource find(const std::string& path, std::optional<std::int64_t> step) {
    const fs::path folder(path);
    if (!is_there(folder)) {
        fail("no such folder", path, "Name the folder of a run, of a step or of a drafter");
    }
    const fs::path real = resolved(path);
    const bool is_run = is_there(folder / "config.toml") || !steps_holding(path, "draft").empty();
    if (is_run) {
        return in_run(path, step);
    }
    const bool is_step = is_there(folder / "draft");
    if (!is_step && !is_there(folder / "config.json")) {
        fail(
            "this is neither a run nor a checkpoint nor a drafter: it has no config.toml, no "
            "draft folder and no config.json",
            path,
            "Name the folder of a run, of a step or of a drafter");
    }
    if (step) {
        fail("--step is given, but this is no folder of a run", path, "Leave --step out");
    }
    if (is_step) {
        return in_step(path, real);
    }
    if (real.filename() == "draft" && is_there(real.parent_path() / kChecksumFile)) {
        DraftSource source = in_step(real.parent_path().string(), real.parent_path());
        source.draft_folder = path;
        return source;
    }
    return {.draft_folder = path, .step_folder = {}, .run_folder = {}, .target = {}};
}

}  // namespace

std::vector<std::int64_t> draft_steps(const std::string& run_folder) {
    return steps_holding(run_folder, "draft/model.safetensors");
}

DraftSource find_draft(const std::string& path, std::optional<std::int64_t> step) {
    std::string folder = path;
    while (folder.size() > 1 && folder.back() == '/') {
        folder.pop_back();
    }
    DraftSource source = find(folder, step);
    if (!source.step_folder.empty()) {
        verify_draft(source);
    }
    return source;
}

}  // namespace dflash::train
