// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/error.hpp>
#include <dflash/core/log.hpp>
#include <dflash/core/text.hpp>
#include <dflash/io/atomic_file.hpp>
#include <dflash/io/json.hpp>
#include <dflash/train/environment.hpp>
#include <dflash/train/run_folder.hpp>
#include <dflash/train/version.hpp>

#include <ctime>
#include <filesystem>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

namespace dflash::train {
namespace fs = std::filesystem;

namespace {

/// There, and not an empty folder.
bool in_use(const std::string& folder) {
    std::error_code ignored;
    return fs::exists(folder, ignored) &&
           !(fs::is_directory(folder, ignored) && fs::is_empty(folder, ignored));
}

/// What environment.json says of the starts of the run so far, oldest first.
std::vector<io::Json> former_starts(const std::string& path) {
    if (!fs::exists(path)) {
        return {};
    }
    try {
        io::Json last = io::read_json_file(path);
        std::vector<io::Json> starts;
        if (const io::Json* former = last.find("former"); former != nullptr && former->is_array()) {
            starts = former->items();
        }
        std::erase_if(last.members(), [](const auto& member) { return member.first == "former"; });
        starts.push_back(std::move(last));
        return starts;
    } catch (const Error& error) {
        log_warning("{} cannot be read and is written anew: {}", path, error.what());
        return {};
    }
}

std::string text_of(const io::Json& object, const char* key) {
    const io::Json* value = object.find(key);
    return value != nullptr && value->is_string() ? value->as_string() : "";
}

/// Comments for config.toml: each start after the first, and what it changed.
std::string resume_comments(const io::Json& environment) {
    std::vector<io::Json> starts = environment.find("former")->items();
    starts.push_back(environment);
    std::string comments;
    for (std::size_t i = 1; i < starts.size(); ++i) {
        const io::Json* step = starts[i].find("continues_after_step");
        comments += fmt::format("# Resumed after step {} at {}\n",
                                step == nullptr ? 0 : step->to_integer().value_or(0),
                                text_of(starts[i], "started_at"));
        if (const io::Json* changes = starts[i].find("changes")) {
            for (const io::Json& change : changes->items()) {
                comments += fmt::format(
                    "#   {}\n", change.is_string() ? escape_controls(change.as_string()) : "");
            }
        }
    }
    return comments;
}

}  // namespace

std::string new_run_folder(const RunSettings& settings, const std::string& target_name) {
    if (settings.output.empty()) {
        const std::time_t now = std::time(nullptr);
        const std::string name =
            fmt::format("runs/{}-{:%Y%m%d-%H%M}", target_name, *std::localtime(&now));
        std::string folder = name;
        for (int n = 2; in_use(folder); ++n) {
            folder = fmt::format("{}-{}", name, n);
        }
        return folder;
    }
    if (in_use(settings.output)) {
        throw Error(
            ErrorKind::Config,
            {.what = "the output folder is there and not empty",
             .where = settings.output,
             .cause = {},
             .hint = fmt::format("Continue that run with --resume {}, or choose another --output",
                                 settings.output)});
    }
    return settings.output;
}

void create_run_folder(const std::string& folder) {
    io::create_folders(folder);
    // Permissions and read-only file systems show only when something is written. The name is that
    // of a leftover, should the process be killed here; no file of the run is touched.
    const std::string probe = fmt::format("{}/probe.tmp-{}", folder, ::getpid());
    io::write_file_atomically(probe, "");
    fs::remove(probe);
}

void describe_run(const std::string& folder,
                  Settings& settings,
                  const PreparedRun& run,
                  const RunStart& start) {
    const std::string path = folder + "/environment.json";
    const io::Json environment = environment_json(run, start, former_starts(path));
    io::write_file_atomically(path, environment.dump_pretty() + "\n");
    io::write_file_atomically(folder + "/config.toml",
                              fmt::format("# Resolved settings of this run, written by dflash {}.\n"
                                          "{}\n{}",
                                          kVersion,
                                          resume_comments(environment),
                                          settings.list().dump()));
    write_data_report(folder, run.training->report());
}

void write_data_report(const std::string& folder, const data::DataReport& report) {
    io::write_file_atomically(folder + "/data-report.md", report.to_markdown());
    io::write_file_atomically(folder + "/data-report.json", report.to_json().dump_pretty() + "\n");
}

}  // namespace dflash::train
