// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/error.hpp>
#include <dflash/io/atomic_file.hpp>
#include <dflash/io/json.hpp>
#include <dflash/train/run_folder.hpp>
#include <dflash/train/version.hpp>

#include <ctime>
#include <filesystem>
#include <fmt/chrono.h>
#include <fmt/format.h>

namespace dflash::train {
namespace fs = std::filesystem;

namespace {

/// There, and not an empty folder.
bool in_use(const std::string& folder) {
    std::error_code ignored;
    return fs::exists(folder, ignored) &&
           !(fs::is_directory(folder, ignored) && fs::is_empty(folder, ignored));
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
    // Permissions and read-only file systems show only when something is written.
    const std::string probe = folder + "/config.toml";
    io::write_file_atomically(probe, "");
    fs::remove(probe);
}

void describe_run(const std::string& folder,
                  Settings& settings,
                  const PreparedRun& run,
                  const std::string& command_line) {
    io::write_file_atomically(folder + "/config.toml",
                              "# Resolved settings of this run, written by dflash " +
                                  std::string(kVersion) + ".\n\n" + settings.list().dump());
    std::vector<io::Json> devices;
    for (const gpu::Device& device : run.devices) {
        devices.push_back(io::Json::object({{"name", io::Json::string(device.name)},
                                            {"what", io::Json::string(gpu::describe(device))}}));
    }
    const io::Json environment = io::Json::object({
        {"command_line", io::Json::string(command_line)},
        {"version", io::Json::string(std::string(kVersion))},
        {"libraries", library_versions()},
        {"devices", io::Json::array(std::move(devices))},
        {"target", io::Json::string(run.location.folder)},
        {"target_revision", io::Json::string(run.location.revision)},
        {"working_directory", io::Json::string(fs::current_path().string())},
    });
    io::write_file_atomically(folder + "/environment.json", environment.dump_pretty() + "\n");
    io::write_file_atomically(folder + "/data-report.md", run.training->report().to_markdown());
}

}  // namespace dflash::train
