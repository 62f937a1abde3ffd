// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/error.hpp>
#include <dflash/core/log.hpp>
#include <dflash/report/tensorboard.hpp>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <filesystem>
#include <fmt/format.h>
#include <unistd.h>
#include <utility>

namespace dflash::report {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kFilePrefix = "events.out.tfevents.";
constexpr std::chrono::seconds kFlushEvery{5};
constexpr std::size_t kMaxPending = 1 << 20;

double now_s() {
    return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch())
        .count();
}

/// Name of this machine, without characters that a file name should not have.
std::string host_name() {
    std::array<char, 256> name{};
    if (::gethostname(name.data(), name.size() - 1) != 0 || name[0] == '\0') {
        return "localhost";
    }
    std::string host = name.data();
    std::replace_if(
        host.begin(),
        host.end(),
        [](unsigned char c) { return std::isalnum(c) == 0 && c != '-' && c != '.' && c != '_'; },
        '_');
    return host;
}

/// TensorBoard reads the files of a folder in the order of their names, so a new one must have a
/// later time than all others, even after a restart within the second or with a clock set back.
std::int64_t time_for_name(const std::string& folder) {
    auto time = static_cast<std::int64_t>(now_s());
    std::error_code error;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
        const std::string name = entry.path().filename().string();
        std::int64_t other = 0;
        if (name.starts_with(kFilePrefix) &&
            std::from_chars(name.data() + kFilePrefix.size(), name.data() + name.size(), other)
                    .ec == std::errc()) {
            time = std::max(time, other + 1);
        }
    }
    return time;
}

std::string new_path(const std::string& folder) {
    const std::string name =
        fmt::format("{}{:010}.{}", kFilePrefix, time_for_name(folder), host_name());
    return (fs::path(folder) / name).string();
}

}  // namespace

TensorBoardLog::TensorBoardLog(const std::string& run_folder, std::int64_t last_step)
    : file_(new_path(run_folder), now_s()), flushed_at_(std::chrono::steady_clock::now()) {
    file_.add_session_start(now_s(), last_step + 1);
    file_.flush();
}

TensorBoardLog::~TensorBoardLog() {
    try {
        flush();
        if (failing_) {
            log_warning("{} could not be written to the end: {} bytes and {} steps were lost",
                        file_.path(),
                        file_.pending_bytes(),
                        dropped_);
        }
    } catch (...) {  // a destructor does not throw; there is nobody left to tell
    }
}

void TensorBoardLog::add(std::int64_t step,
                         double wall_time_s,
                         std::span<const io::Scalar> scalars) {
    if (file_.pending_bytes() < kMaxPending) {
        file_.add_scalars(wall_time_s, step, scalars);
    } else {
        ++dropped_;
    }
    if (std::chrono::steady_clock::now() - flushed_at_ >= kFlushEvery) {
        flush();
    }
}

void TensorBoardLog::add(std::int64_t step,
                         double wall_time_s,
                         std::initializer_list<io::Scalar> scalars) {
    add(step, wall_time_s, std::span(scalars.begin(), scalars.size()));
}

void TensorBoardLog::flush() {
    flushed_at_ = std::chrono::steady_clock::now();
    try {
        file_.flush();
    } catch (const Error& error) {
        if (!std::exchange(failing_, true)) {
            log_warning("{} The numbers are kept and written later", error.what());
        }
        return;
    }
    if (std::exchange(failing_, false)) {
        log_warning("{} is written again; {} steps were lost", file_.path(), dropped_);
        dropped_ = 0;
    }
}

}  // namespace dflash::report
