// SPDX-License-Identifier: Apache-2.0
#include "status_command.hpp"

#include <dflash/core/error.hpp>
#include <dflash/report/console.hpp>
#include <dflash/report/status_file.hpp>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <fmt/format.h>
#include <optional>

namespace dflash::cli {
namespace {

constexpr const char* kRunsFolder = "runs";

double wall_time_s() {
    return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch())
        .count();
}

std::string require_newest_run() {
    const std::optional<std::string> newest = report::newest_run(kRunsFolder);
    if (!newest) {
        throw Error(ErrorKind::Config,
                    {.what = "no run was found",
                     .where = std::string("./") + kRunsFolder,
                     .cause = {},
                     .hint = "Name the folder of a run: dflash status RUN"});
    }
    return *newest;
}

std::string_view to_string(report::Writer writer) {
    switch (writer) {
        case report::Writer::Running:
            return "running";
        case report::Writer::Gone:
            return "gone";
        case report::Writer::Unknown:
            break;
    }
    return "unknown";
}

}  // namespace

int status_command(const Arguments& arguments, const std::string& /*command_line*/) {
    CLI::App app("Prints what a run is doing, and whether its process is still there.",
                 "dflash status");
    std::string folder;
    bool json = false;
    app.add_option("RUN", folder, "folder of the run; by default the newest one below ./runs");
    app.add_flag("--json", json, "prints status.json, and as \"process\" running, gone or unknown");
    if (!parse(app, arguments)) {
        return 0;
    }
    if (folder.empty()) {
        folder = require_newest_run();
    }
    const report::RunStatus status = report::read_status(folder);
    const report::Writer writer = report::writer_of(status);
    if (json) {
        io::Json object = report::to_json(status);
        object.set("process", io::Json::string(std::string(to_string(writer))));
        fmt::print("{}\n", object.dump_pretty());
        return 0;
    }
    const int columns = std::max(report::console().width() - 1, 1);
    for (const std::string& line :
         report::status_lines(status, folder, writer, columns, wall_time_s())) {
        fmt::print("{}\n", line);
    }
    return 0;
}

}  // namespace dflash::cli
