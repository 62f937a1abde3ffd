// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/error.hpp>
#include <dflash/core/log.hpp>
#include <dflash/core/text.hpp>
#include <dflash/io/atomic_file.hpp>
#include <dflash/io/json.hpp>
#include <dflash/report/status_block.hpp>
#include <dflash/report/status_file.hpp>

#include <array>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <iterator>
#include <mutex>
#include <pthread.h>
#include <sstream>
#include <unistd.h>
#include <utility>

namespace dflash::report {
namespace fs = std::filesystem;

struct StatusFile::State {
    explicit State(std::string p) : path(std::move(p)) {}

    void run() {
        pthread_setname_np(pthread_self(), "dflash-status");
        std::unique_lock lock(mutex);
        for (;;) {
            wake.wait(lock, [this] { return stopping || text; });
            if (!text) {
                break;
            }
            const std::string now = *std::exchange(text, std::nullopt);
            lock.unlock();
            write(now);
            lock.lock();
        }
        ended = true;
        wake.notify_all();
    }

    void write(const std::string& now) {
        try {
            io::write_file_atomically(path, now);
            failing = false;
        } catch (const Error& error) {
            if (!std::exchange(failing, true)) {
                log_warning("{}: {}; it is tried again", error.parts().what, error.parts().cause);
            }
        }
    }

    const std::string path;
    bool failing = false;  // of the thread alone
    std::mutex mutex;      // guards all below
    std::condition_variable wake;
    std::optional<std::string> text;
    bool stopping = false;
    bool ended = false;
};

StatusFile::StatusFile(std::string path)
    : state_(std::make_shared<State>(std::move(path))),
      thread_([state = state_] { state->run(); }) {}

StatusFile::~StatusFile() {
    finish();
}

void StatusFile::write(const RunStatus& status) {
    std::string text = to_json(status).dump_pretty() + "\n";
    const std::lock_guard lock(state_->mutex);
    state_->text = std::move(text);
    state_->wake.notify_all();
}

void StatusFile::finish() {
    if (!thread_.joinable()) {
        return;
    }
    std::unique_lock lock(state_->mutex);
    state_->stopping = true;
    state_->wake.notify_all();
    const bool ended =
        state_->wake.wait_for(lock, std::chrono::seconds(5), [this] { return state_->ended; });
    lock.unlock();
    if (ended) {
        thread_.join();
    } else {
        thread_.detach();
    }
}

std::string host_name() {
    std::array<char, 256> name{};
    return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

std::optional<std::int64_t> process_start_ticks(std::int64_t pid) {
    std::ifstream file(fmt::format("/proc/{}/stat", pid));
    std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    // Field 2 is the name in parentheses and may hold anything, so fields are counted behind it.
    const std::size_t name_end = text.rfind(')');
    if (name_end == std::string::npos) {
        return std::nullopt;
    }
    std::istringstream fields(text.substr(name_end + 1));
    std::string state;
    fields >> state;
    if (state == "Z" || state == "X") {
        return std::nullopt;  // ended, and only its parent has not asked for its exit code
    }
    constexpr int kFieldsBetween = 18;  // state is field 3, the start is field 22
    std::int64_t value = 0;
    for (int i = 0; i < kFieldsBetween; ++i) {
        fields >> value;
    }
    std::int64_t start = 0;
    return fields >> start ? std::optional(start) : std::nullopt;
}

Writer writer_of(const RunStatus& status) {
    if (status.host != host_name()) {
        return Writer::Unknown;
    }
    return process_start_ticks(status.pid) == status.process_start_ticks ? Writer::Running
                                                                         : Writer::Gone;
}

RunStatus read_status(const std::string& run_folder) {
    const std::string path = (fs::path(run_folder) / "status.json").string();
    std::error_code ignored;
    if (!fs::exists(path, ignored)) {
        throw Error(ErrorKind::Config,
                    {.what = "there is no status.json",
                     .where = run_folder,
                     .cause = {},
                     .hint = "Name a folder that a run has written: dflash status RUN"});
    }
    return status_from_json(io::read_json_file(path), path);
}

std::optional<std::string> newest_run(const std::string& folder) {
    std::optional<std::string> newest;
    fs::file_time_type newest_time;
    std::error_code error;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
        const fs::file_time_type time = fs::last_write_time(entry.path() / "status.json", error);
        if (!error && (!newest || time > newest_time)) {
            newest = entry.path().string();
            newest_time = time;
        }
    }
    return newest;
}

namespace {

/// What can be done with a run whose process has ended without reaching its length.
std::string continuation(const std::string& run_folder) {
    std::error_code ignored;
    const auto has = [&](const char* name) {
        return fs::exists(fs::path(run_folder) / name, ignored);
    };
    // Before its first checkpoint a run has the answers that the target has given.
    return has("latest") || has("answers.jsonl")
               ? "continue  dflash --resume " + shell_word(run_folder)
               : std::string("continue  nothing was saved yet: start it again");
}

}  // namespace

std::vector<std::string> status_lines(const RunStatus& status,
                                      const std::string& run_folder,
                                      Writer writer,
                                      int columns,
                                      double now_s) {
    const double age_s = std::max(now_s - status.written_s, 0.0);
    const std::string process = fmt::format("process {} on {}", status.pid, status.host);
    std::vector<std::string> lines;
    lines.push_back(fmt::format("run       {}", run_folder));
    if (is_live(status.state)) {
        lines.push_back(fmt::format("written   {} ago by {}", format_seconds(age_s), process));
    } else {
        lines.push_back(fmt::format("ended     {} ago with exit code {}",
                                    format_seconds(age_s),
                                    status.exit_code.value_or(0)));
    }
    // Clocks in the block stand at the time of writing where nobody writes any more.
    const bool live = is_live(status.state) && writer != Writer::Gone;
    for (std::string& line :
         block_lines(status,
                     {.columns = columns,
                     .lines = kMaxBlockLines + static_cast<int>(status.devices.size()),
                     .colours = false},
                     live ? now_s : status.written_s)) {
        lines.push_back(std::move(line));
    }
    if (status.failure) {
        for (const std::string& line :
             failure_lines(*status.failure, (fs::path(run_folder) / "console.log").string())) {
            lines.push_back(line);
        }
        lines.push_back(continuation(run_folder));
    } else if (is_live(status.state) && writer == Writer::Gone) {
        lines.push_back(fmt::format(
            "the process that wrote this is not running: it ended without a word while {}",
            to_string(status.state)));
        lines.push_back(continuation(run_folder));
    } else if (is_live(status.state) && writer == Writer::Unknown) {
        constexpr double kLate = 3;  // times the interval, and half a minute for a slow disk
        lines.push_back(
            age_s > kLate * status.every_s + 30
                ? fmt::format("it runs on {} and should have written by now: look there",
                              status.host)
                : fmt::format("it runs on {}", status.host));
    } else if (status.state == RunState::Stopped) {
        lines.push_back(continuation(run_folder));
    }
    return lines;
}

}  // namespace dflash::report
