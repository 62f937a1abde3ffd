// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/build_info.hpp>
#include <dflash/train/environment.hpp>
#include <dflash/train/library_check.hpp>
#include <dflash/train/version.hpp>

#include <array>
#include <ctime>
#include <filesystem>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fstream>
#include <string_view>
#include <sys/utsname.h>
#include <thread>
#include <unistd.h>

namespace dflash::train {
namespace {

/// PRETTY_NAME of /etc/os-release: "Debian GNU/Linux 12 (bookworm)".
std::string system_name() {
    constexpr std::string_view kKey = "PRETTY_NAME=\"";
    std::ifstream file("/etc/os-release");
    for (std::string line; std::getline(file, line);) {
        if (line.starts_with(kKey) && line.ends_with('"')) {
            return line.substr(kKey.size(), line.size() - kKey.size() - 1);
        }
    }
    return "unknown";
}

io::Json host_json() {
    ::utsname system{};
    ::uname(&system);
    const gpu::Device cpu{};
    return io::Json::object(
        {{"name", io::Json::string(system.nodename)},
         {"system", io::Json::string(system_name())},
         {"kernel", io::Json::string(fmt::format("{} {}", system.sysname, system.release))},
         {"cpu", io::Json::string(gpu::describe(cpu))},
         {"cores", io::Json::integer(std::thread::hardware_concurrency())},
         {"memory_bytes", io::Json::integer(gpu::memory_of(cpu).total_bytes)}});
}

io::Json build_json() {
    const BuildInfo build = build_info();
    return io::Json::object({{"commit", io::Json::string(build.commit)},
                             {"compiler", io::Json::string(build.compiler)},
                             {"build_type", io::Json::string(build.build_type)}});
}

io::Json devices_json(const std::vector<gpu::Device>& devices) {
    std::vector<io::Json> list;
    for (const gpu::Device& device : devices) {
        list.push_back(io::Json::object({{"name", io::Json::string(device.name)},
                                         {"what", io::Json::string(gpu::describe(device))}}));
    }
    return io::Json::array(std::move(list));
}

std::string current_folder() {
    std::error_code error;
    return std::filesystem::current_path(error).string();
}

}  // namespace

io::Json environment_json(const PreparedRun& run,
                          const RunStart& start,
                          std::vector<io::Json> former) {
    std::vector<io::Json> changes;
    for (const std::string& change : start.changes) {
        changes.push_back(io::Json::string(change));
    }
    return io::Json::object({
        {"command_line", io::Json::string(start.command_line)},
        {"working_directory", io::Json::string(current_folder())},
        {"started_at",
         io::Json::string(fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr))))},
        {"continues_after_step", io::Json::integer(start.step)},
        {"changes", io::Json::array(std::move(changes))},
        {"version", io::Json::string(std::string(kVersion))},
        {"build", build_json()},
        {"libraries", to_json(loaded_libraries(/*with_gpu=*/run.devices.front().is_cuda()))},
        {"devices", devices_json(run.devices)},
        {"host", host_json()},
        {"process", io::Json::integer(::getpid())},
        {"target", io::Json::string(run.location.folder)},
        {"target_revision", io::Json::string(run.location.revision)},
        {"data", io::Json::parse(run.history->to_text(), "data")},
        {"former", io::Json::array(std::move(former))},
    });
}

}  // namespace dflash::train
